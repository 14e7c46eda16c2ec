"""The standard library's web server, bounded so that no client can make it slow or big.

Every connection has a thread, is given one answer and closed. When there are too many, the one that has been there
longest goes, so that a scrape gets through however many stand idle.
"""

from __future__ import annotations

import io
import logging
import re
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NoReturn

logger = logging.getLogger(__name__)

MOST_HEADERS = 64

_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")

TURN_S = 0.25
"""Longest that the accepting thread sleeps; as late may a slow client be cut off."""

JOIN_S = 2.0
"""Longest that closing waits for the threads."""

HEAD_BYTES = 8192
"""Longest head of a request; a longer one is refused."""

DISCARDED_BYTES = 64 * 1024
"""Bytes that a client may send after its request before it is cut off."""

PIECE = 4096


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


def _checked_request(line: str, fields: Message) -> HttpRequest:
    """The request of a line and header fields that the standard library has read, which it does more leniently.

    Raises:
        BadRequestError: when it is none.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise BadRequestError(400, "This is no HTTP request.")
    if len(fields) > MOST_HEADERS:
        raise BadRequestError(431, "There are too many header fields.")
    headers: dict[str, str] = {}
    for name, value in fields.items():
        # The standard library joins folded lines and takes odd characters; both are ways to smuggle a field past a
        # proxy.
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):  # a folded value holds line ends
            raise BadRequestError(400, "A header field cannot be read.")
        name = name.lower()
        # Two of these would be read differently by two servers.
        if name in headers and name in ("host", "authorization", "content-length"):
            raise BadRequestError(400, "A header field stands there twice.")
        if name in headers:
            headers[name] = f"{headers[name]}, {value.strip()}"
        else:
            headers[name] = value.strip()
    if fields.defects:
        raise BadRequestError(400, "A header field cannot be read.")
    if match[3] == "1" and "host" not in headers:
        raise BadRequestError(400, "The Host field is missing.")
    # A query after ? changes nothing here.
    return HttpRequest(match[1], match[2].partition("?")[0], headers)


def _begins_like_one(received: bytes) -> bool:
    """Whether what has come so far can become a request: its first word is in capital letters."""
    word = received[:17].split(b" ")[0]
    return not word or (word.isalpha() and word.isupper() and len(word) <= 16)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a request is answered with; `fields` are header fields beside those of every answer."""

    code: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a client may take.

    Attributes:
        connections: at a time.
        seconds: for a connection, from its beginning to the end of its answer.
        leaving_s: for going away after the answer.
        per_second: connections that are taken in a second; more wait, and the monitor has the processor.
    """

    connections: int = 128
    seconds: float = 5.0
    leaving_s: float = 1.0
    per_second: int = 500


class Server(ThreadingMixIn, TCPServer):
    """Answers requests on threads of its own, from `start` to `close`.

    Args:
        listener: a listening socket, which the server closes.
        tls: with what connections are encrypted; ``None`` for none.
        reply: answers a request, on one thread at a time; it must not wait.
        on_trouble: called with an unforeseen exception; such a connection is answered with 500 or ended.

    Attributes:
        answers: requests answered, by status.
        dropped: connections ended without an answer.
    """

    daemon_threads = True

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        reply: Callable[[HttpRequest], HttpResponse],
        on_trouble: Callable[[Exception], None],
        limits: ServerLimits | None = None,
    ) -> None:
        super().__init__(listener.getsockname(), _Client, bind_and_activate=False)
        # The base class has made a socket of its own, which is replaced by the one that listens.
        self.socket.close()
        self.socket = listener
        self.timeout = TURN_S
        self.answers: Counter[int] = Counter()
        self.dropped = 0
        self._tls, self._reply, self._on_trouble = tls, reply, on_trouble
        self._limits = limits or ServerLimits()
        self._open: dict[socket.socket, float] = {}  # connection, oldest first → time at which it is cut off
        self._changed = threading.Condition()  # guards the connections and the counts
        self._replying = threading.Lock()
        self._second, self._taken = 0, 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpudash-serving", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self.socket.settimeout(TURN_S)  # a client that leaves before it is taken does not hold up the thread
        self._thread.start()

    def close(self) -> bool:
        """End every connection and thread, within `JOIN_S`; false when one is still running then."""
        until = time.monotonic() + JOIN_S
        # First the flag, for the shutdown wakes the thread that looks at it.
        self._closing.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        # One that was never started cannot be joined.
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)
        with self._changed:
            self._cut_off_until(float("inf"))
            gone = self._changed.wait_for(lambda: not self._open, max(0.0, until - time.monotonic()))
        self.server_close()
        return gone and not self._thread.is_alive()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection, with room made for it.

        Raises:
            OSError: when there is none after all.
        """
        # Counted by whole seconds, which bounds the rate without a clock for each connection.
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._taken = second, 0
        elif self._taken >= self._limits.per_second:
            self._closing.wait(TURN_S)
            raise BlockingIOError
        self._taken += 1
        try:
            plain, address = self.socket.accept()
        except (ConnectionError, TimeoutError):  # the client left before it was taken
            raise
        except OSError:  # such as no descriptor left: the client that has been here longest gives its own
            self._make_room(len(self._open))
            self._taken = self._limits.per_second
            raise
        self._make_room(self._limits.connections)
        try:
            if self._tls is None:
                taken = plain
            else:
                taken = self._encrypted(plain, self._tls)
        except ValueError as error:
            raise OSError from error
        # Known from its beginning, so that it is cut off even if it never sends anything.
        with self._changed:
            self._open[taken] = time.monotonic() + self._limits.seconds
        return taken, address

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, on the thread that served it."""
        with self._changed:
            # Closed under the lock: cutting off must not hit a descriptor that belongs to the next connection by now.
            request.close()
            self._open.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of the exception that is being handled."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            logger.error("a connection to the server of figures failed", exc_info=error)
            self._on_trouble(error)

    def answered(self, request: HttpRequest | BadRequestError) -> HttpResponse:
        """The answer to a request, or to what is none, counted."""
        try:
            if isinstance(request, BadRequestError):
                raise request
            # One reply at a time: gathering the figures takes the store's lock, and its cost is bounded by this.
            with self._replying:
                answer = self._reply(request)
        except BadRequestError as error:
            answer = HttpResponse(error.code, f"{error}\n".encode())
        except Exception as error:
            logger.exception("the figures could not be gathered")
            self._on_trouble(error)
            answer = HttpResponse(500, b"The figures could not be gathered.\n")
        # Counted before it is sent: what is on its way was answered.
        with self._changed:
            self.answers[answer.code] += 1
        return answer

    def drop(self) -> None:
        """Count a connection that ended without an answer."""
        with self._changed:
            self.dropped += 1

    def let_leave(self, connection: socket.socket) -> None:
        """Give a client that has its answer a moment to take it."""
        with self._changed:
            self._open[connection] = time.monotonic() + self._limits.leaving_s

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.handle_request()
                self._cut_off_until(time.monotonic())
            except Exception as error:
                logger.exception("the server of figures met an error and goes on")
                self._on_trouble(error)
                self._closing.wait(TURN_S)

    def _cut_off_until(self, now: float) -> None:
        """End the connections whose time is over: their threads hear of it at once, whatever they wait for."""
        with self._changed:
            for connection, until in self._open.items():
                if until <= now:
                    _cut_off(connection)

    def _make_room(self, connections: int) -> None:
        """Wait until there are fewer connections than that, of which the oldest is ended."""
        with self._changed:
            if self._open and len(self._open) >= connections:
                _cut_off(next(iter(self._open)))
                # Its own thread takes it out; waited for with a limit, lest a thread that hangs stop the server.
                self._changed.wait_for(lambda: len(self._open) < connections, JOIN_S)

    def _encrypted(self, plain: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        try:
            # The handshake belongs to the connection's thread, since it waits for the client.
            return tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        except BaseException:
            plain.close()
            self.drop()
            raise


def _cut_off(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # the system's: TLS' own belongs to another thread


class _GoneError(Exception):
    """The client went away, or was cut off."""


class _Client(BaseHTTPRequestHandler):
    """One connection, on its thread: a request, its answer, and the end."""

    server: Server
    protocol_version = "HTTP/1.1"
    command = ""

    def setup(self) -> None:
        """Read and write whole heads and answers, so that an answer is sent in one go."""
        self.connection = self.request
        self.rfile = io.BytesIO()
        self.wfile = self._written = io.BytesIO()

    def handle(self) -> None:
        """Answer the one request."""
        try:
            if isinstance(self.connection, ssl.SSLSocket):
                self.connection.do_handshake()
            try:
                request: HttpRequest | BadRequestError = self._request()
            except BadRequestError as error:
                request = error
            self._send(self.server.answered(request))
        except (OSError, ValueError, _GoneError):
            self.server.drop()
        else:
            self._leave()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> NoReturn:
        """What the standard library refuses is refused in our words."""
        if code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            raise BadRequestError(431, "There are too many header fields.")
        raise BadRequestError(400, "This is no HTTP request.")

    def handle_expect_100(self) -> bool:
        """Never answered with 100 Continue: no request needs a body."""
        return True

    def _request(self) -> HttpRequest:
        """What is asked for, read as far as the blank line that ends the head."""
        head = bytearray()
        # Either kind of line end, as RFC 9112 lets a server take a bare line feed.
        while not (b"\n\r\n" in head or b"\n\n" in head):
            # Looked at after each piece, so that what is no HTTP is refused at once and not after the time is over.
            if not _begins_like_one(bytes(head[:17])):
                raise BadRequestError(400, "This is no HTTP request.")
            if len(head) > HEAD_BYTES:
                raise BadRequestError(431, "The request is too long.")
            piece = self.connection.recv(PIECE)
            if not piece:
                raise _GoneError
            head += piece
        lines = head.replace(b"\r\n", b"\n").partition(b"\n\n")[0]
        if len(lines) > HEAD_BYTES:
            raise BadRequestError(431, "The request is too long.")
        if b"\r" in lines:  # the standard library takes it for a line's end
            raise BadRequestError(400, "A header field cannot be read.")
        self.rfile = io.BytesIO(lines + b"\n\n")
        self.raw_requestline = self.rfile.readline()
        # The standard library reads the head, more leniently; `_checked_request` is strict.
        if not self.parse_request():
            raise BadRequestError(400, "This is no HTTP request.")
        return _checked_request(self.requestline, self.headers)

    def _send(self, answer: HttpResponse) -> None:
        self.request_version = self.protocol_version  # a request without a version is answered with a head as well
        self.send_response_only(answer.code, HTTPStatus(answer.code).phrase)
        fields = (
            ("Date", self.date_time_string()),
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
            *answer.fields,
        )
        for name, value in fields:
            self.send_header(name, value)
        self.end_headers()
        # A HEAD has the length of the body and no body.
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.connection.sendall(self._written.getbuffer())

    def _leave(self) -> None:
        """Say that nothing more comes, and hear the client out for a moment: a connection that is closed with bytes
        unread takes back the answer on its way."""
        self.server.let_leave(self.connection)
        with suppress(OSError, ValueError):
            # The library's unwrap waits for the client's farewell, for as long as `let_leave` gives.
            if isinstance(self.connection, ssl.SSLSocket):
                self.connection.unwrap()  # says farewell
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_WR)
            left = DISCARDED_BYTES
            while left > 0 and (piece := socket.socket.recv(self.connection, PIECE)):
                left -= len(piece)
