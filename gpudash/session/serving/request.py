"""What a request asks for, and what is wrong with one. Pure: nothing here touches a socket."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from email.message import Message

MOST_HEADERS = 64

_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")

REASONS = {
    200: "OK",
    400: "Bad HttpRequest",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected HttpRequest",
    431: "HttpRequest Header Fields Too Large",
    500: "Internal Server Error",
}
"""Every status that is answered with."""


class BadRequestError(ValueError):
    """A request that is answered with `code` and one sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is asked for; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)


def checked_request(line: str, fields: Message) -> HttpRequest:
    """The request of a line and header fields that the standard library has read, which it does more leniently.

    Raises:
        BadRequestError: when it is none.
    """
    asked = _LINE.fullmatch(line)
    if asked is None:
        raise BadRequestError(400, "This is no HTTP request.")
    if len(fields) > MOST_HEADERS:
        raise BadRequestError(431, "There are too many header fields.")
    headers: dict[str, str] = {}
    for name, value in fields.items():
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):  # a folded value holds line ends
            raise BadRequestError(400, "A header field cannot be read.")
        name = name.lower()
        if name in headers and name in ("host", "authorization", "content-length"):
            raise BadRequestError(400, "A header field stands there twice.")
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    if fields.defects:
        raise BadRequestError(400, "A header field cannot be read.")
    if asked[3] == "1" and "host" not in headers:
        raise BadRequestError(400, "The Host field is missing.")
    return HttpRequest(asked[1], asked[2].partition("?")[0], headers)


def begins_like_one(received: bytes) -> bool:
    """Whether what has come so far can become a request: its first word is in capital letters."""
    word = received[:17].split(b" ")[0]
    return not word or (word.isalpha() and word.isupper() and len(word) <= 16)


def names_a_domain(host: str) -> bool:
    """Whether a Host field names a domain other than ``localhost``.

    A page of the web reaches a loopback server under a domain of its own, whose address it turns to 127.0.0.1 (DNS
    rebinding); whoever asks for this machine by purpose writes an address or ``localhost``.
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def takes_gzip(request: HttpRequest) -> bool:
    """Whether the answer may be compressed."""
    for part in request.headers.get("accept-encoding", "").split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def takes_openmetrics(request: HttpRequest) -> bool:
    """Whether the answer is wanted in the OpenMetrics format rather than in the older text format."""
    return any(
        part.partition(";")[0].strip().lower() == "application/openmetrics-text"
        for part in request.headers.get("accept", "").split(",")
    )
