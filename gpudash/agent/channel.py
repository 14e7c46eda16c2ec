"""The program's end of the socket. Nothing here waits for the dashboard, however slow, stopped or dead it is."""

from __future__ import annotations

import _socket
import _thread
import time

# Importing collections itself would delay every watched Python.
from _collections import deque  # type: ignore[import-not-found]  # of C, and in no stub

from .guest import identity
from .wire import PROTOCOL, Decoder, WireError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .wire import Message

MOST_WAITING_BYTES = 2 * 2**20
"""Largest size of unsent messages; beyond it the oldest readings are dropped."""

MOST_READ_BYTES = 2**16


class Channel:
    """A connection to the dashboard. Any thread may post; the program is never blocked.

    Args:
        path: path of the dashboard's socket.

    Raises:
        OSError: if nobody listens, or too many connections are waiting.
    """

    def __init__(self, path: str) -> None:
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(path)
            self._identity = identity(self._socket.fileno())
        except OSError:
            self._socket.close()
            raise
        self._waiting: deque[tuple[bytes, bool]] = deque()
        self._waiting_bytes = 0
        self._partial = b""
        self._sending = _thread.allocate_lock()
        self._decoder = Decoder()
        self.lost = 0
        self.alive = True

    def post(self, message: Message, *, keep: bool = False) -> None:
        """Send ``message`` as soon as the socket accepts it.

        Args:
            keep: whether it is more than a reading; readings are dropped first when too much is waiting.
        """
        if not self.alive:
            return
        try:
            data = encode(message)
        except (WireError, ValueError, TypeError, RecursionError):
            self.lost += 1
            return
        self._waiting.append((data, keep))
        self._waiting_bytes += len(data)
        self.flush()

    def flush(self) -> None:
        """Send what the socket accepts now; a thread that is already sending includes what was added."""
        while self.alive and (self._waiting or self._partial) and self._sending.acquire(False):
            try:
                if not self._send():
                    return
            finally:
                self._sending.release()

    def drain(self, seconds: float) -> None:
        """`flush` until everything is sent, but no longer than this."""
        self.flush()
        deadline = time.monotonic() + seconds
        while self.alive and (self._waiting or self._partial):
            left = deadline - time.monotonic()
            if left <= 0 or not self._is_ours():
                return
            import select

            select.select([], [self._socket], [], left)
            self.flush()

    def receive(self) -> list[Message]:
        """Messages that have arrived; with another protocol none, and the connection ends."""
        if not self.alive or not self._is_ours():
            return []
        data = self._read()
        if data is None:
            return []
        try:
            found = None
            if data:
                found = self._decoder.feed(data)
        except WireError:
            found = None
        strange = any(one["type"] == "welcome" and one.get("protocol") != PROTOCOL for one in found or ())
        if found is None or strange:
            self.close()
            return []
        return found

    def is_spoken_to(self) -> bool:
        """Whether anything has arrived, or the other end has closed; reads nothing."""
        if not self.alive or not self._is_ours():
            return True
        try:
            self._socket.recv(1, _socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        return True

    def close(self, *, forked: bool = False) -> None:
        """Close the connection and drop what is waiting; reads what has arrived, or the other end would see an error.

        Args:
            forked: whether this is a forked child: then the data are the parent's, which has not read them yet.
        """
        self.alive = False
        self._waiting.clear()
        self._partial = b""
        if identity(self._socket.fileno()) == self._identity:
            if not forked:
                self._read()
            self._socket.close()
        else:
            self._socket.detach()

    def _read(self) -> bytes | None:
        """The data that have arrived: b"" if the other end has closed, ``None`` if there are none."""
        try:
            found: bytes = self._socket.recv(MOST_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""
        return found

    def _send(self) -> bool:
        """Send one piece; returns whether there may be more. The lock is held."""
        if not self._partial:
            self._drop_old_readings()
            if not self._waiting:
                self._waiting_bytes = 0  # concurrent posts may have miscounted
                return False
            self._partial = self._waiting.popleft()[0]
            self._waiting_bytes -= len(self._partial)
        if not self._is_ours():
            return False
        try:
            # The program may have set SIGPIPE back to its deadly default.
            sent = self._socket.send(self._partial, _socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            self._drop_old_readings()
            return False
        except OSError:
            self.close()
            return False
        self._partial = self._partial[sent:]
        return True

    def _drop_old_readings(self) -> None:
        if self._waiting_bytes <= MOST_WAITING_BYTES:
            return
        kept: list[tuple[bytes, bool]] = []
        while self._waiting and self._waiting_bytes > MOST_WAITING_BYTES // 2:
            data, keep = self._waiting.popleft()
            if keep and sum(len(one) for one, _ in kept) + len(data) <= MOST_WAITING_BYTES // 4:
                kept.append((data, keep))
                continue
            self._waiting_bytes -= len(data)
            self.lost += 1
        self._waiting.extendleft(reversed(kept))

    def _is_ours(self) -> bool:
        """Whether the descriptor is still the socket: a program that closes all descriptors may have reused it."""
        if self.alive and identity(self._socket.fileno()) != self._identity:
            self.alive = False
            self._socket.detach()
        return self.alive
