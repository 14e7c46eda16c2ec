"""One client: its socket, what it has sent, and what it is still to be sent. Nothing here ever waits."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from typing import Literal

HEAD_BYTES = 8192
"""Longest head of a request; a longer one is refused."""

PIECE = 4096

DISCARDED_BYTES = 64 * 1024
"""Bytes that a client may send after its request before it is cut off."""

Stage = Literal["shaking hands", "asking", "being answered", "leaving"]


class GoneError(Exception):
    """The client went away, or cannot be spoken to."""


class Connection:
    """A client's connection.

    Args:
        plain: the accepted socket.
        tls: with what it is encrypted; ``None`` where it is not.
        until: time at which it is cut off.

    Attributes:
        stage: how far it has come.
        until: time at which it is cut off.
        events: what its socket is waited for.
    """

    def __init__(self, plain: socket.socket, tls: ssl.SSLContext | None, until: float) -> None:
        plain.setblocking(False)
        self.stage: Stage = "asking" if tls is None else "shaking hands"
        self.until = until
        self.events = EVENT_READ
        self._received = bytearray()
        self._left = memoryview(b"")
        self._discarded = 0
        try:
            self.socket: socket.socket = (
                plain if tls is None else tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            )
        except (OSError, ValueError):
            plain.close()
            raise GoneError from None

    def receive(self) -> bytes | None:
        """Take in what the client has sent: the bytes of its head so far, or ``None`` while nothing is asked for.

        Raises:
            GoneError: when it went away.
        """
        if self.stage == "shaking hands" and not self._shake_hands():
            return None
        if self.stage == "leaving":
            self._discard()
            return None
        while len(self._received) <= HEAD_BYTES:
            piece = self._read()
            if piece is None:
                break
            if not piece:
                raise GoneError
            self._received += piece
            if b"\n\r\n" in self._received or b"\n\n" in self._received:
                break
        self.events = EVENT_READ
        return bytes(self._received)

    def answer(self, data: list[bytes]) -> None:
        """Begin to send ``data``."""
        self.stage = "being answered"
        self._received.clear()
        self._left = memoryview(b"".join(data))
        self.events = EVENT_WRITE

    def send(self) -> bool:
        """Send what can be sent; whether that was all.

        Raises:
            GoneError: when it went away.
        """
        while self._left:
            try:
                self._left = self._left[self.socket.send(self._left[:65536]) :]
            except (ssl.SSLWantWriteError, BlockingIOError):
                self.events = EVENT_WRITE
                return False
            except ssl.SSLWantReadError:
                self.events = EVENT_READ
                return False
            except OSError:
                raise GoneError from None
        return True

    def leave(self, until: float) -> None:
        """Say that nothing more comes, and hear the client out until ``until``: a connection that is closed with
        bytes unread takes back the answer on its way."""
        self.stage, self.until, self.events = "leaving", until, EVENT_READ
        with suppress(OSError, ValueError):
            if isinstance(self.socket, ssl.SSLSocket):
                self.socket.unwrap()  # says farewell, and raises as the client has not yet
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self.socket.close()

    def _shake_hands(self) -> bool:
        assert isinstance(self.socket, ssl.SSLSocket)
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.events = EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self.events = EVENT_WRITE
            return False
        except (OSError, ValueError):
            raise GoneError from None
        self.stage, self.events = "asking", EVENT_READ
        return True

    def _read(self) -> bytes | None:
        """A piece, ``b""`` at the end, ``None`` when there is nothing yet."""
        try:
            return self.socket.recv(PIECE)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return None
        except (OSError, ValueError):
            raise GoneError from None

    def _discard(self) -> None:
        for _ in range(DISCARDED_BYTES // PIECE):
            piece = self._read()
            if piece is None:
                return
            self._discarded += len(piece)
            if not piece or self._discarded > DISCARDED_BYTES:
                raise GoneError
