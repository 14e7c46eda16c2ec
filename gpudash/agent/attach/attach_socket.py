"""The way into a program that is to be attached to later: a socket that one thread waits at, and nothing else.

Its process is not watched until a client connects. It has no file: its name is the process's number, in Linux's
abstract names (unix(7)). Every process that shares the network can connect to such a name, also one in a container of
another user namespace or file system, so each end checks the other. What may enter is what may debug the program
(ptrace(2), "Ptrace access mode checking"): a process of the same user, in the same user, mount and PID namespaces,
with the same root folder and all of the program's capabilities.
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
"""Longest wait for each piece of what a process sends that has come."""

ENTERED = b"in"

REFUSED = b"no"
"""Answered to a process of the same user that may not enter."""

CREDENTIALS_BYTES = 12
"""Of ``struct ucred`` of Linux (unix(7)): process, user and group."""

NAMESPACES = ("user", "mnt", "pid")
"""Those that have to be the same at both ends."""

_attach_socket: AttachSocket | None = None


def open_attach_socket() -> bool:
    """Let the same user's gpudash attach to this process; false where that cannot be. A forked child has no door."""
    global _attach_socket
    if _attach_socket is not None or not hasattr(os, "register_at_fork"):
        return _attach_socket is not None
    try:
        _attach_socket = AttachSocket()
    except OSError:
        return False
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
    return True


def _before_fork() -> None:
    if _attach_socket is not None:
        _attach_socket.leave()


def _after_fork_in_parent() -> None:
    if _attach_socket is not None:
        _attach_socket.wait()


def _after_fork_in_child() -> None:
    if _attach_socket is not None:
        _attach_socket.abandon()


class AttachSocket:
    """Waits for those who come.

    Raises:
        OSError: when such a socket cannot be made.
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
        connecting = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            connecting.connect(self._name)
            if not self._ended.acquire(True, PATIENCE_S):
                return
        except OSError:
            # too many have come, or the program has closed the socket
            return
        finally:
            connecting.close()
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
        try:
            pid, user = peer_of(coming)
            if pid == os.getpid() or user != os.geteuid():
                return
            coming.settimeout(SPEAKING_S)
            text = _received(coming, pid)
            if text is None:
                coming.send(REFUSED, _socket.MSG_NOSIGNAL)
                return
            exec(text, {})
            coming.send(ENTERED, _socket.MSG_NOSIGNAL)
        except Exception:
            # whatever somebody else has sent is no concern of the program's
            return


def _received(coming: Any, pid: int) -> bytes | None:
    """What a process sends; ``None`` where it may not enter, or is not the one that has connected.

    A process may connect, send and end, and its number be given to another one before the door reads /proc. So it
    sends a descriptor of its own folder there along with the text, and the kernel adds the sender's number to each
    piece (SCM_CREDENTIALS of unix(7)). That folder is still the one found by that number: so the number belonged to
    the process that is read here when the text was sent.
    """
    folders: list[int] = []
    try:
        folders.append(os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY))
        if not _may_enter(folders[0]):
            return None
        coming.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        text, space = b"", _socket.CMSG_SPACE(CREDENTIALS_BYTES) + _socket.CMSG_SPACE(4)
        while True:
            piece, ancillary, _flags, _address = coming.recvmsg(65536, space)
            senders = []
            for _level, kind, data in ancillary:
                if kind == _socket.SCM_RIGHTS:
                    folders += _numbers(data)
                elif kind == _socket.SCM_CREDENTIALS:
                    senders.append(_numbers(data)[0])
            if not piece:
                break
            text += piece
            if senders != [pid] or len(text) > MOST_BYTES:
                return None
        if len(folders) != 2 or not os.path.samestat(*map(os.fstat, folders)):
            return None
        if _may_enter(folders[0]):
            return text
        return None
    except OSError:
        return None
    finally:
        for folder in folders:
            os.close(folder)


def _may_enter(folder: int) -> bool:
    """Whether a process is in our namespaces and may do all that we may; false where that cannot be read.

    Args:
        folder: a descriptor of its folder in /proc.
    """
    own = -1
    try:
        own = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
        for name in NAMESPACES:
            if os.readlink(f"ns/{name}", dir_fd=folder) != os.readlink(f"ns/{name}", dir_fd=own):
                return False
        if not os.path.samestat(os.stat("root", dir_fd=folder), os.stat("root", dir_fd=own)):
            return False
        needed = _capabilities(own, b"CapPrm")
        return needed & ~_capabilities(folder, b"CapEff") == 0
    except (OSError, ValueError):
        return False
    finally:
        if own >= 0:
            os.close(own)


def _capabilities(folder: int, field: bytes) -> int:
    """A set of capabilities(7) in ``status`` of /proc, as bits."""
    descriptor = os.open("status", os.O_RDONLY, dir_fd=folder)
    try:
        text = os.read(descriptor, 65536)
    finally:
        os.close(descriptor)
    return int(text.partition(field + b":")[2].split(None, 1)[0], 16)


def peer_of(connection: Any) -> tuple[int, int]:
    """Process and user at the other end, as they were when it connected or listened."""
    pid, user, _group = _numbers(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, CREDENTIALS_BYTES))
    return pid, user


def _numbers(data: bytes) -> list[int]:
    """Of an array of C's ``int``. Python's `struct` is a module that the program may not have imported."""
    return [int.from_bytes(data[at : at + 4], sys.byteorder, signed=True) for at in range(0, len(data), 4)]
