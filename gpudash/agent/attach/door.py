"""The way into a program that is to be attached to later: a socket that one thread waits at, and nothing else.

Whoever opens it is not watched until somebody comes. It has no file: its name is the process's number, in Linux's
abstract names (unix(7)), and each end makes sure of the other by what the system tells of it.
"""

from __future__ import annotations

import _socket
import _thread
import os
import sys
import time

from ..guest import identity, leave_signals_to_the_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "\0gpudash-door-{pid}"

MOST_BYTES = 2**20
"""Of what is let in."""

PATIENCE_S = 1.0
"""Longest wait for the thread to end before the program forks."""

SPEAKING_S = 0.5
"""Longest that one who has come is listened to."""

_door: Door | None = None


def open_door() -> bool:
    """Let the same user's gpudash attach to this process; false where that cannot be. A forked child has no door."""
    global _door
    if _door is not None or not hasattr(os, "register_at_fork"):
        return _door is not None
    try:
        _door = Door()
    except OSError:
        return False
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
    return True


def _before_fork() -> None:
    if _door is not None:
        _door.leave()


def _after_fork_in_parent() -> None:
    if _door is not None:
        _door.wait()


def _after_fork_in_child() -> None:
    if _door is not None:
        _door.abandon()


class Door:
    """Waits for those who come.

    Raises:
        OSError: when there is no such socket to be had.
    """

    def __init__(self) -> None:
        self._name = NAME.format(pid=os.getpid()).encode()
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self._socket.bind(self._name)
            self._socket.listen(4)
        except OSError:
            self._socket.close()
            raise
        self._identity = identity(self._socket.fileno())
        self._ended = _thread.allocate_lock()
        self._waits = self._leaving = False
        self._thread = 0
        self.wait()

    def wait(self) -> None:
        """Have a thread wait."""
        if self._waits or identity(self._socket.fileno()) != self._identity:
            return
        self._leaving, self._ended = False, _thread.allocate_lock()
        self._ended.acquire()
        try:
            self._waits = True
            _thread.start_new_thread(self._answer, (self._ended,))
        except RuntimeError:
            # none can be started any more: the interpreter is ending
            self._waits = False

    def leave(self) -> None:
        """Have the thread end, and wait for that: a program that forks is to have its own threads only."""
        if not self._waits:
            return
        self._leaving = True
        knocking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            knocking.setblocking(False)
            knocking.connect(self._name)
            if not self._ended.acquire(True, PATIENCE_S):
                return
        except OSError:
            # too many have come, or the program has closed the socket
            return
        finally:
            knocking.close()
        # Python lets go of a thread a little before the system does
        deadline = time.monotonic() + PATIENCE_S
        while os.path.exists(f"/proc/self/task/{self._thread}") and time.monotonic() < deadline:
            time.sleep(0.0001)

    def abandon(self) -> None:
        """In a child: it is the parent's door."""
        self._waits = False
        if identity(self._socket.fileno()) == self._identity:
            self._socket.close()
        else:
            self._socket.detach()
        self._identity = None

    def _answer(self, ended: Any) -> None:
        try:
            leave_signals_to_the_program()
            self._thread = _thread.get_native_id()
            while not self._leaving and identity(self._socket.fileno()) == self._identity:
                descriptor, _address = self._socket._accept()  # type: ignore[attr-defined]  # typeshed has it in the subclass only
                coming = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, fileno=descriptor)
                try:
                    self._take(coming)
                finally:
                    coming.close()
        except Exception:
            # such as that the program has closed the socket
            return
        finally:
            self._waits = False
            ended.release()

    def _take(self, coming: Any) -> None:
        pid, user = peer_of(coming)
        if pid == os.getpid() or user != os.geteuid():
            return
        try:
            coming.settimeout(SPEAKING_S)
            text = b""
            while piece := coming.recv(65536):
                text += piece
                if len(text) > MOST_BYTES:
                    return
            exec(text, {})
            coming.send(b"in", _socket.MSG_NOSIGNAL)
        except Exception:
            # whatever somebody else has sent is no concern of the program's
            return


def peer_of(connection: Any) -> tuple[int, int]:
    """Process and user at the other end: the first two of ``struct ucred`` of Linux (unix(7))."""
    found: bytes = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    parts = [int.from_bytes(found[at : at + 4], sys.byteorder, signed=True) for at in (0, 4)]
    return parts[0], parts[1]
