"""Where to listen, and guarded by what: reading ``ADDRESS:PORT``, and whether only this machine can reach it; a token,
and a certificate with its key, both read once, before anything listens."""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpudash.system.foreign_files import open_regular
from gpudash.system.log import hide

LOOPBACK = "127.0.0.1"

PORT = 10950
"""Port where none is given. Prometheus' list of exporters' ports has 9100 to 9999 all taken (9400 dcgm-exporter, 9835
nvidia_gpu_exporter); this one lies above it and below what Linux gives to outgoing connections (32768 and up)."""

TOKEN_VARIABLE = "GPUDASH_SERVE_TOKEN"

SHORTEST_TOKEN = 16
"""Characters of the shortest token: fewer can be guessed."""

MOST_BYTES = 4096


class ServingError(ValueError):
    """Why nothing can be served, in one sentence; `remedy` is the way out."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen.

    Attributes:
        host: an IP address, or a name.
        port: 0 is any free one.
    """

    host: str = LOOPBACK
    port: int = PORT

    def __str__(self) -> str:
        if ":" in self.host:
            return f"[{self.host}]:{self.port}"
        return f"{self.host}:{self.port}"


def read_address(text: str) -> Address:
    """The address in ``text``: "9500", ":9500", "0.0.0.0:9500", "[::1]:9500", "[::1]" or "localhost".

    Without an address it is the loopback one, without a port `PORT`.

    Raises:
        ServingError: when it is none.
    """
    host, port = _split(text.strip())
    if port and not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
        raise _not_an_address(text)
    if "%" in host or any(not character.isprintable() or character in " /@?#" for character in host):
        raise _not_an_address(text)
    return Address(host or LOOPBACK, int(port) if port else PORT)


def _split(text: str) -> tuple[str, str]:
    if text.isdecimal():
        return "", text
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or not is_ip(host) or (rest and not rest[1:]) or rest[:1] not in ("", ":"):
            raise _not_an_address(text)
        return host, rest[1:]
    if text.count(":") > 1 or not text or text.endswith(":"):
        raise _not_an_address(text)
    host, _, port = text.partition(":")
    if not is_ip(host) and host.replace(".", "").isdecimal():
        raise _not_an_address(text)
    return host, port


def _not_an_address(text: str) -> ServingError:
    return ServingError(
        f"{text!r} is not an address to serve on",
        "Write ADDRESS:PORT such as 127.0.0.1:9500, [::1]:9500, or :9500 for this machine only.",
    )


def is_ip(host: str) -> bool:
    """Whether ``host`` is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def resolve(address: Address) -> tuple[socket.AddressFamily, Address]:
    """The one IP address to listen on: the family, and the address without a name.

    Raises:
        ServingError: when the name has none.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ServingError(f"{address.host!r} has no address to serve on ({why})") from None
    family, _, _, _, where = found[0]
    return socket.AddressFamily(family), Address(str(where[0]), address.port)


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches the IP address ``host``."""
    address = ipaddress.ip_address(host)
    mapped = None
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
    return (mapped or address).is_loopback


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A secret that requests must bring."""

    secret: str

    def __post_init__(self) -> None:
        hide(self.secret)

    def __repr__(self) -> str:
        return "Token(…)"

    def admits(self, authorization: str) -> bool:
        """Whether a request's Authorization field has it; takes as long for a wrong one as for a right one."""
        scheme, _, given = authorization.partition(" ")
        presented = given.strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(presented, self.secret.encode()) and scheme.lower() == "bearer"


def take_token(file: Path | None) -> Token | None:
    """The token in ``file``, else in the environment, from which it is removed: no program started later gets it.

    Raises:
        ServingError: when the file cannot be read or others can read it, or what is there is no token.
    """
    given = os.environ.pop(TOKEN_VARIABLE, None)
    if file is not None:
        return _token(_read_secret(file), f"The token file {file}")
    if given is None:
        return None
    return _token(given, TOKEN_VARIABLE)


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What connections are encrypted with; ``None`` where neither file is given.

    Raises:
        ServingError: when one of the two is missing, cannot be read, or does not match the other.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--serve-key"
        if certificate is None:
            missing = "--serve-cert"
        raise ServingError("TLS needs a certificate and its key", f"Give {missing} FILE as well.")
    _opened(certificate, "certificate").close()
    _opened(key, "key", stat.S_IROTH).close()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ServingError:
        raise ServingError(f"The key {key} is protected by a passphrase", "Give one that is not.") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ServingError(f"The key {key} does not belong to the certificate {certificate}") from None
        why = ""
        if error.reason:
            why = f" ({error.reason})"
        text = f"{certificate} and {key} are not a certificate and its key in PEM format{why}"
        raise ServingError(text) from None
    except OSError as error:
        raise ServingError(f"The certificate {certificate} cannot be used ({error.strerror})") from None
    return context


def require_guarded(address: Address, *, token: bool, tls: bool) -> Address:
    """The IP address to listen on.

    Raises:
        ServingError: when it has none, or others can reach it and token or TLS are missing.
    """
    _, where = resolve(address)
    if _is_loopback(where.host) or (token and tls):
        return where
    text = f"{address} can be reached from other machines"
    if not token:
        remedy = f"Give --serve-token-file FILE (or {TOKEN_VARIABLE}), or serve this machine only: --serve."
        raise ServingError(f"{text}, so serving there needs a token{'' if tls else ' and TLS'}", remedy)
    remedy = "Give --serve-cert FILE and --serve-key FILE, or serve this machine only: --serve."
    raise ServingError(f"{text}, so serving there needs TLS", remedy)


def _no_passphrase() -> str:
    raise ServingError("")  # openssl would ask for it on the terminal


def _read_secret(file: Path) -> str:
    with _opened(file, "token file", stat.S_IRGRP | stat.S_IROTH) as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ServingError(f"The token file {file} holds more than {MOST_BYTES} bytes; it is no token")
    return data.decode("utf-8", "replace")


def _token(text: str, where: str) -> Token:
    secret = text.strip()
    if not secret:
        raise ServingError(f"{where} is empty", "Write a token into it: openssl rand -hex 32")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise ServingError(f"{where} is no token", "A token is one line of printable ASCII without spaces.")
    if len(secret) < SHORTEST_TOKEN:
        text = f"{where} has {len(secret)} characters, which can be guessed"
        raise ServingError(text, f"A token has at least {SHORTEST_TOKEN}: openssl rand -hex 32")
    return Token(secret)


def _opened(file: Path, what: str, forbidden: int = 0) -> BinaryIO:
    """A file to read.

    Args:
        what: it is, in words.
        forbidden: permissions that it must not have, as of `os.stat`.

    Raises:
        ServingError: when it cannot be read, is no regular file, or has such a permission.
    """
    try:
        stream = open_regular(file)
    except (OSError, ValueError) as error:  # a ValueError of a name with a NUL
        raise ServingError(f"The {what} {file} cannot be read ({getattr(error, 'strerror', error)})") from None
    readers = os.fstat(stream.fileno()).st_mode & forbidden
    if not readers:
        return stream
    stream.close()
    who = "A whole group"
    if readers & stat.S_IROTH:
        who = "Everybody on this machine"
    remedy = f"chmod {'go' if forbidden & stat.S_IRGRP else 'o'}-r {file}"
    raise ServingError(f"{who} can read the {what} {file}", remedy)
