"""Addresses of machines over ssh: ``ssh://[user@]host[:port]``, as ssh itself reads them, without anything that it
could take for an option."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "ssh:"
"""Prefix of such an address."""

EXAMPLE = "ssh://user@host"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,252}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@\\-]{0,63}")


@dataclass(frozen=True, slots=True)
class SshHost:
    """Destination of an ssh connection.

    Attributes:
        host: name (possibly one that only ``~/.ssh/config`` defines) or IP address.
        user, port: login and TCP port; ``None`` leaves them to ssh's configuration.
    """

    host: str
    user: str | None = None
    port: int | None = None

    @property
    def arguments(self) -> list[str]:
        """ssh's arguments for this destination, the host last."""
        if self.user is None:
            user = []
        else:
            user = ["-l", self.user]
        if self.port is None:
            port = []
        else:
            port = ["-p", str(self.port)]
        return [*user, *port, "--", self.host]

    @property
    def name(self) -> str:
        """Its name in sentences: "host", "user@host:2222"."""
        if ":" in self.host and self.port is not None:
            host = f"[{self.host}]"
        else:
            host = self.host
        return f"{self._user}{host}{'' if self.port is None else f':{self.port}'}"

    @property
    def login(self) -> str:
        """The command to log in by hand: "ssh -p 2222 user@host"."""
        return f"ssh {'' if self.port is None else f'-p {self.port} '}{self._user}{self.host}"

    @property
    def _user(self) -> str:
        if self.user is None:
            return ""
        return f"{self.user}@"

    def __str__(self) -> str:
        if ":" in self.host:
            host = f"[{self.host}]"
        else:
            host = self.host
        return f"ssh://{self._user}{host}{'' if self.port is None else f':{self.port}'}"


def read_host(text: str) -> SshHost:
    """The machine at an address.

    Raises:
        ValueError: one sentence, if it is malformed, or contains a password or what ssh could take for an option.
    """
    rest = text.removeprefix(PREFIX).lstrip("/").removesuffix("/")
    if not text.startswith(PREFIX) or not rest:
        raise ValueError(f"{text!r} is no address of a machine over ssh; write it as {EXAMPLE}.")
    user, at, place = rest.rpartition("@")
    if ":" in user:
        raise ValueError(
            f"A password does not belong into the address of {place!r}; ssh asks for it where it needs one."
        )
    if place.startswith("["):
        host, bracket, port = place[1:].partition("]")
        valid = bool(bracket) and _IPV6.fullmatch(host) is not None and (not port or port.startswith(":"))
        port = port[1:]
    else:
        host, _, port = place.partition(":")
        valid = _NAME.fullmatch(host) is not None
    if not valid or (at and _USER.fullmatch(user) is None):
        raise ValueError(f"{text!r} is no address of a machine over ssh; write it as {EXAMPLE} or {EXAMPLE}:2222.")
    if (port or place.endswith(":")) and not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65_536):
        raise ValueError(f"{port!r} is no port; one is a number from 1 to 65535, as in {EXAMPLE}:2222.")
    return SshHost(host, user or None, int(port) if port else None)
