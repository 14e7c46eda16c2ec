"""Where to listen: reading ``ADDRESS:PORT``, and whether only this machine can reach it."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"

PORT = 10950
"""Port where none is given. Prometheus' list of exporters' ports has 9100 to 9999 all taken (9400 dcgm-exporter, 9835
nvidia_gpu_exporter); this one lies above it and below what Linux gives to outgoing connections (32768 and up)."""


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
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the IP address ``host``."""
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
