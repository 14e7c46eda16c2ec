"""The attach socket of a program that may be attached to later: one thread waits on it, and nothing else happens.

The process is not watched until a client connects. The socket has no file: its name is the PID, in Linux's abstract
namespace (unix(7)). Any process on the same network can connect to such a name, even from a container with another
user namespace or file system, so both ends check each other. Access is granted to what may debug the program
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
"""Largest code that is accepted."""

PATIENCE_S = 1.0
"""Longest wait for the thread to end before the program forks."""

SPEAKING_S = 0.5
"""Longest wait for each piece of a client's data."""

ENTERED = b"in"

REFUSED = b"no"
"""Answer to a process of the same user that is refused."""

CREDENTIALS_BYTES = 12
"""Size of Linux's ``struct ucred`` (unix(7)): PID, user and group."""

NAMESPACES = ("user", "mnt", "pid")
"""Namespaces that must be the same at both ends."""

_attach_socket: AttachSocket | None = None


def open_attach_socket() -> bool:
    """Allow the same user's gpudash to attach to this process; false if that is impossible. Forked children have no
    socket."""
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
    """Waits for clients.

    Raises:
        OSError: if the socket cannot be created.
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
        """Start a thread that waits."""
        if self._waits or identity(self._socket.fileno()) != self._identity:
            return
        self._leaving, self._ended = False, _thread.allocate_lock()
        self._ended.acquire()
        try:
            self._waits = True
            _thread.start_new_thread(self._answer, (self._ended,))
        except RuntimeError:
            # No thread can be started any more: the interpreter is shutting down.
            self._waits = False

    def leave(self) -> None:
        """End the thread and wait for it: a program that forks should only have its own threads."""
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
            # Too many clients are waiting, or the program has closed the socket.
            return
        finally:
            connecting.close()
        # Python reports the end of a thread slightly before the system does.
        deadline = time.monotonic() + PATIENCE_S
        while os.path.exists(f"/proc/self/task/{self._thread}") and time.monotonic() < deadline:
            time.sleep(0.0001)

    def abandon(self) -> None:
        """In a forked child: the socket belongs to the parent."""
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
            # For example, the program has closed the socket.
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
            # Invalid data from others must not affect the program.
            return


def _received(coming: Any, pid: int) -> bytes | None:
    """A client's data; ``None`` if it has no access, or is not the process that connected.

    A process may connect, send and end, and its PID be reused before we read /proc. The client therefore sends a
    descriptor of its own /proc folder with the text, and the kernel adds the sender's PID to each piece
    (SCM_CREDENTIALS in unix(7)). If that folder is still the one for this PID, then the PID belonged to the process
    read here when the text was sent.
    """
    folders: list[int] = []
    try:
        folders.append(os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY))
        if not _may_enter(folders[0]):
            return None
        coming.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        text = b""
        while True:
            piece, senders = _piece(coming, folders)
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


def _piece(coming: Any, folders: list[int]) -> tuple[bytes, list[int]]:
    """A piece of a client's data and who sent it; descriptors that came with it are added to ``folders``."""
    space = _socket.CMSG_SPACE(CREDENTIALS_BYTES) + _socket.CMSG_SPACE(4)
    piece, ancillary, _flags, _address = coming.recvmsg(65536, space)
    senders = []
    for _level, kind, data in ancillary:
        if kind == _socket.SCM_RIGHTS:
            folders += _numbers(data)
        elif kind == _socket.SCM_CREDENTIALS:
            senders.append(_numbers(data)[0])
    return piece, senders


def _may_enter(folder: int) -> bool:
    """Whether a process shares our namespaces and has all our capabilities; false if that cannot be read.

    Args:
        folder: descriptor of its folder in /proc.
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
    """PID and user of the other end at the time when it connected or listened."""
    pid, user, _group = _numbers(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, CREDENTIALS_BYTES))
    return pid, user


def _numbers(data: bytes) -> list[int]:
    """The elements of an array of C's ``int``, without `struct`, which the program may not have imported."""
    return [int.from_bytes(data[at : at + 4], sys.byteorder, signed=True) for at in range(0, len(data), 4)]
