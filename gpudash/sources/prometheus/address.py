"""Addresses of Prometheus servers: ``http[s]://host[:port][/path]``, without room for a password."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

PREFIX = "prometheus:"
"""Prefix of a server's address where file names are allowed too."""

EXAMPLE = "http://host:9090"

TOKEN = "GPUDASH_PROMETHEUS_TOKEN"
TOKEN_FILE = "GPUDASH_PROMETHEUS_TOKEN_FILE"
"""Environment variables for the bearer token, or for the file that contains it."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server.

    Attributes:
        scheme: "http" or "https".
        host: name or IP address; IPv6 without brackets.
        port: TCP port.
        path: prefix of ``/api/v1``, without a trailing slash.
    """

    scheme: str
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if ":" in self.host:
            host = f"[{self.host}]"
        else:
            host = self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def local(self) -> bool:
        """Whether the server is on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_address(text: str) -> ServerAddress:
    """The server in ``text``: "http://host:9090", optionally prefixed with "prometheus:".

    Raises:
        ValueError: one sentence, which repeats no password.
    """
    rest = text.strip().removeprefix(PREFIX)
    if not rest:
        raise ValueError(f"There is no address behind {PREFIX}; write for example {PREFIX}{EXAMPLE}.")
    # Check by regex first: urlsplit accepts nearly anything.
    found = re.fullmatch(r"(https?)://([^/].*)", rest, re.IGNORECASE)
    # Do not repeat what precedes an @ (a password): messages end up on screens and in logs.
    if found is None:
        if "@" in rest:
            raise ValueError(_no_user(rest))
        raise ValueError(f"{rest!r} is no address of a Prometheus server; write for example {PREFIX}{EXAMPLE}.")
    try:
        parts = urlsplit(f"{found[1].lower()}://{found[2]}")
        host = parts.hostname
        port = parts.port
    except ValueError as error:
        shown = rest.rpartition("@")[2]
        raise ValueError(f"{shown!r} is no address ({error}); write for example {PREFIX}{EXAMPLE}.") from None
    if "@" in parts.netloc:
        raise ValueError(_no_user(rest))
    if not host or re.search(r"[\s\x00-\x1f]", found[2]) or port == 0:
        raise ValueError(f"{rest!r} names no machine and port; write for example {PREFIX}{EXAMPLE}.")
    if parts.query or parts.fragment:
        rest = re.split("[?#]", rest)[0]  # a query may contain a key
        raise ValueError(f"{rest!r} goes on behind the server's address; leave out everything from ? or # on.")
    path = parts.path.rstrip("/")
    # Pages whose address people copy from the browser.
    for page in ("/api/v1", "/graph", "/query"):
        path = path.removesuffix(page)
    return ServerAddress(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path)


def _no_user(rest: str) -> str:
    shown = rest.rpartition("@")[2]
    return (
        f"The address of {shown} holds a user or password, which would be shown; leave it out and set {TOKEN} instead."
    )
