"""A small web server that no client can make slow or big: one thread, so many connections, so long each.

Every connection is given one answer and closed. When there are too many, the one that has been there longest goes, so
that a scrape gets through however many stand idle.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate

from gpudash.session.serving.connection import HEAD_BYTES, Connection, GoneError
from gpudash.session.serving.request import REASONS, BadRequestError, Request, begins_like_one, read_request

TURN_S = 0.25
"""Longest that the thread sleeps; as late may a slow client be cut off."""

JOIN_S = 2.0
"""Longest that closing waits for the thread."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered with; `fields` are header fields beside those of every answer."""

    code: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
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


class Server:
    """Answers requests on a thread of its own, from `start` to `close`.

    Args:
        listener: a listening socket, which the server closes.
        tls: with what connections are encrypted; ``None`` for none.
        reply: answers a request, on the server's thread; it must not wait.
        on_trouble: told of an exception that nobody foresaw; such a connection is answered with 500 or ended.

    Attributes:
        answers: requests answered, by status.
        dropped: connections ended without an answer.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        reply: Callable[[Request], Answer],
        on_trouble: Callable[[Exception], None],
        limits: Limits | None = None,
    ) -> None:
        self.answers: Counter[int] = Counter()
        self.dropped = 0
        self._listener, self._accepting = listener, listener.accept
        self._tls, self._reply, self._on_trouble = tls, reply, on_trouble
        self._limits = limits or Limits()
        self._selector = selectors.DefaultSelector()
        self._open: dict[Connection, None] = {}
        self._second, self._taken = 0, 0
        self._listening = False
        self._closing = threading.Event()
        self._waking, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="gpudash-serving", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> bool:
        """End every connection and the thread, within `JOIN_S`; false when the thread could not be joined."""
        self._closing.set()
        if self._thread.ident is None:
            self._end()
            return True
        with suppress(OSError):
            self._waker.send(b".")
        self._thread.join(JOIN_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._waking, selectors.EVENT_READ)
        try:
            while not self._closing.is_set():
                try:
                    self._turn()
                except Exception as error:
                    self._on_trouble(error)
                    self._closing.wait(TURN_S)
        finally:
            self._end()

    def _end(self) -> None:
        for connection in list(self._open):
            self._drop(connection)
        self._selector.close()
        for each in (self._listener, self._waking, self._waker):
            each.close()

    def _turn(self) -> None:
        """Wait for what comes first, and do what can be done without waiting."""
        self._listen(self._may_take() > 0)
        for key, _ in self._selector.select(TURN_S):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Connection) and key.data in self._open:
                self._go_on(key.data)
        now = time.monotonic()
        for connection in [each for each in self._open if each.until <= now]:
            self._drop(connection)

    def _may_take(self) -> int:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._taken = second, 0
        return self._limits.per_second - self._taken

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._listening and not wanted:
            self._selector.unregister(self._listener)
        self._listening = wanted

    def _accept(self) -> None:
        for _ in range(min(32, self._may_take())):
            try:
                plain, _ = self._accepting()
            except BlockingIOError:
                return
            except ConnectionError:  # the client left before it was taken
                continue
            except OSError:  # such as no descriptor left: the client that has been here longest gives its own
                if self._open:
                    self._drop(next(iter(self._open)))
                self._taken = self._limits.per_second
                return
            self._taken += 1
            if len(self._open) >= self._limits.connections:
                self._drop(next(iter(self._open)))
            try:
                connection = Connection(plain, self._tls, time.monotonic() + self._limits.seconds)
            except GoneError:
                self.dropped += 1
                continue
            self._open[connection] = None
            self._selector.register(connection.socket, connection.events, connection)

    def _go_on(self, connection: Connection) -> None:
        """Let a connection do what it can do now."""
        before = connection.events
        try:
            if connection.stage != "being answered":
                self._hear(connection)
            if connection.stage == "being answered" and connection.send():
                connection.leave(time.monotonic() + self._limits.leaving_s)
        except GoneError:
            self._drop(connection)
            return
        except Exception as error:
            self._on_trouble(error)
            self._drop(connection)
            return
        if connection.events != before:
            self._selector.modify(connection.socket, connection.events, connection)

    def _hear(self, connection: Connection) -> None:
        received = connection.receive()
        if received is None:
            return
        head, ended, _ = received.replace(b"\r\n", b"\n").partition(b"\n\n")
        if ended and len(head) <= HEAD_BYTES:
            connection.answer(self._answered(head))
            return
        if not begins_like_one(received):
            answer = Answer(400, b"This is no HTTP request.\n")
        elif len(received) > HEAD_BYTES:
            answer = Answer(431, b"The request is too long.\n")
        else:
            return
        connection.answer(self._written(answer, "GET"))

    def _answered(self, head: bytes) -> list[bytes]:
        method = "GET"
        try:
            request = read_request(head)
            method = request.method
            answer = self._reply(request)
        except BadRequestError as error:
            answer = Answer(error.code, f"{error}\n".encode())
        except Exception as error:
            self._on_trouble(error)
            answer = Answer(500, b"The figures could not be gathered.\n")
        return self._written(answer, method)

    def _written(self, answer: Answer, method: str) -> list[bytes]:
        self.answers[answer.code] += 1
        fields = [
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
            *answer.fields,
        ]
        lines = [f"HTTP/1.1 {answer.code} {REASONS[answer.code]}", *(f"{name}: {value}" for name, value in fields)]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        return [head] if method == "HEAD" else [head, answer.body]

    def _drop(self, connection: Connection) -> None:
        """End a connection; it counts as dropped unless it had its answer."""
        if connection.stage != "leaving":
            self.dropped += 1
        self._open.pop(connection, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.close()
