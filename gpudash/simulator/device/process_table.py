"""Records how much of a simulated card each process holds, as a driver does for a real one.

The processes of a program share their simulated cards as they would share a GPU: what one holds, another cannot
allocate. The table is in memory that all of them map. It has no name in any file system: an environment variable holds
the path of a descriptor, so any process started by another one finds it, however it was started.

A process writes only its own entries. The kernel owns the lock and releases it if the holder dies, so no process waits
long for it. Memory of a killed process is free again, because an entry counts only while its process lives.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

VARIABLE = "GPUDASH_SIMULATED_CARDS"
"""Environment variable with the path of this program's table."""

MOST_ENTRIES = 4096
"""Pairs of a process and a card; what further ones hold is not visible to others."""

LOCK_S = 0.5
"""Longest wait in seconds for the lock, which is held for microseconds unless its holder was stopped."""

RETRY_S = 0.0005

_MAGIC = b"simcards"
_HEADER = struct.Struct("<8sQ")
"""Magic number, and how many entries were ever used."""

_ENTRY = struct.Struct("<QQQQQQ")
"""Process ID, its start time, index of the card, capacity of the card, bytes of the context, bytes reserved."""

_PROCESS = struct.Struct("<Q")
_HELD = struct.Struct("<QQ")
_HELD_OFFSET = _ENTRY.size - _HELD.size

_SIZE = _HEADER.size + MOST_ENTRIES * _ENTRY.size


class Holding(NamedTuple):
    """What one process holds of a card, in bytes."""

    context: int
    reserved: int


class Entry:
    """The entry of one process and one card in a table. Only its own process writes to it.

    Args:
        table: the table.
        offset: of the entry, in bytes.
    """

    def __init__(self, table: ProcessTable, offset: int) -> None:
        self._table = table
        self._offset = offset

    def write(self, held: Holding) -> None:
        """Record what the process holds now."""
        _HELD.pack_into(self._table.memory, self._offset + _HELD_OFFSET, *held)

    def clear(self) -> None:
        """Free the entry."""
        _clear(self._table.memory, self._offset)


class ProcessTable:
    """The processes of a program and what they hold of its simulated cards. Thread-safe.

    Args:
        descriptor: of a file made by `create`. It stays open as long as the table exists.

    Raises:
        OSError: the file cannot be mapped or is not such a table.

    Attributes:
        memory: the mapped file.
    """

    def __init__(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size != _SIZE or about.st_uid != os.geteuid():
            raise OSError(errno.EINVAL, "it is no table of simulated cards")
        # only after the size was checked: touching mapped memory beyond the end of a file kills the process
        self.memory = mmap.mmap(descriptor, _SIZE)
        if _HEADER.unpack_from(self.memory)[0] != _MAGIC:
            raise OSError(errno.EINVAL, "it is no table of simulated cards")
        self._descriptor = descriptor
        # a descriptor's number may be reused for another file; this detects it
        self._identity = about.st_dev, about.st_ino
        self._thread_lock = threading.Lock()
        weakref.finalize(self, _close, descriptor, self._identity)
        call_in_children(self._forked)

    @classmethod
    def create(cls) -> ProcessTable:
        """Create an empty table.

        Raises:
            OSError: the system has no such memory.
        """
        if not hasattr(os, "memfd_create") or _started(os.getpid()) is None:
            raise OSError(errno.ENOSYS, "this system has no files in memory")
        descriptor = _file_in_memory()
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)
            # otherwise shortening the file would kill every process that maps it
            fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SHRINK)
            os.pwrite(descriptor, _HEADER.pack(_MAGIC, 0), 0)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: str) -> ProcessTable:
        """Open the table of another process by its `path`.

        Raises:
            OSError: it is gone or is not such a table.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def path(self) -> str:
        """Where other processes of this user find the table while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep other processes from allocating meanwhile; false if the lock was not free within `LOCK_S`."""
        deadline = time.monotonic() + LOCK_S
        # lockf applies to the whole process: its threads need a lock of their own
        mine = self._thread_lock.acquire(timeout=LOCK_S)
        locked = mine and self._lock_file(deadline)
        try:
            yield locked
        finally:
            if locked and self._is_open():
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)
            if mine:
                self._thread_lock.release()

    def enter(self, index: int, capacity: int) -> Entry | None:
        """Create an entry for this process and a card, with nothing held; ``None`` if the table is full.

        Locks the table meanwhile.
        """
        pid = os.getpid()
        started = _started(pid)
        if started is None:
            return None
        # first, so that entries of processes that have ended can be reused
        self._drop_dead()
        used = self._used()
        offset = self._place(pid, started, index, capacity, used)
        # unused entries come last, so that readers scan no more of the table than necessary
        if offset is None and used < MOST_ENTRIES:
            offset = _HEADER.size + used * _ENTRY.size
            _HEADER.pack_into(self.memory, 0, _MAGIC, used + 1)
        if offset is None:
            return None
        # the process ID is written last: until then the entry does not count
        _ENTRY.pack_into(self.memory, offset, 0, started, index, capacity, 0, 0)
        _PROCESS.pack_into(self.memory, offset, pid)
        return Entry(self, offset)

    def held_by_others(self, index: int, capacity: int, *, living: bool) -> dict[int, Holding]:
        """What each other process holds of a card, by process ID.

        Args:
            index, capacity: of the card. A process with a different card at this index does not share it.
            living: whether to check that each process lives, which takes microseconds; otherwise some may be dead.
        """
        found: dict[int, Holding] = {}
        mine = os.getpid()
        for _offset, (pid, started, of, size, context, reserved) in self._entries():
            if (of, size) != (index, capacity) or pid == mine or not context + reserved:
                continue
            # a process ID that was reused has another start time
            if not living or _started(pid) == started:
                found[pid] = Holding(context, reserved)
        return found

    def _drop_dead(self) -> None:
        living: dict[int, int | None] = {}
        for offset, (pid, started, *_rest) in self._entries():
            if pid not in living:
                living[pid] = _started(pid)
            if living[pid] != started:
                _clear(self.memory, offset)

    def _place(self, pid: int, started: int, index: int, capacity: int, used: int) -> int | None:
        """A free entry, or the one of the program that this one replaced (exec)."""
        free = None
        for number in range(used):
            offset = _HEADER.size + number * _ENTRY.size
            found = _ENTRY.unpack_from(self.memory, offset)
            if found[:4] == (pid, started, index, capacity):
                return offset
            if not found[0] and free is None:
                free = offset
        return free

    def _used(self) -> int:
        return min(MOST_ENTRIES, int(_HEADER.unpack_from(self.memory)[1]))

    def _entries(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Offset and contents of every entry of a process."""
        for number in range(self._used()):
            offset = _HEADER.size + number * _ENTRY.size
            found = _ENTRY.unpack_from(self.memory, offset)
            if found[0]:
                yield offset, found

    def _lock_file(self, deadline: float) -> bool:
        # checked each time: a program may close all descriptors between two attempts
        while self._is_open():
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                return True
            except (BlockingIOError, PermissionError):
                if time.monotonic() > deadline:
                    return False
                time.sleep(RETRY_S)
            except OSError:
                return False
        return False

    def _is_open(self) -> bool:
        """Whether the descriptor is ours: a program may close all descriptors and then reuse their numbers."""
        return _is_file(self._descriptor, self._identity)

    def _forked(self) -> None:
        self._thread_lock = threading.Lock()  # another thread of the parent may have held the old one
        if self is _program:
            os.environ[VARIABLE] = self.path  # the parent's path ends with the parent


_ADD_SEALS, _SEAL_SHRINK = getattr(fcntl, "F_ADD_SEALS", 1033), getattr(fcntl, "F_SEAL_SHRINK", 2)
"""Of memfd_create(2); Python defines them from 3.8 on if its C library does."""

_NOEXEC_SEAL = 8


def _file_in_memory() -> int:
    """An unnamed file that cannot be executed; kernels from 6.3 on expect that flag."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("gpudash-cards", flags | _NOEXEC_SEAL)
    except OSError:
        return os.memfd_create("gpudash-cards", flags)


_program: ProcessTable | None = None


def table_of_program() -> ProcessTable | None:
    """The table of this program: the one named in the environment, or a new one that is then named there.

    Returns:
        ``None`` if there can be none, so that every process has cards of its own.
    """
    global _program
    if _program is not None:
        return _program
    if not sys.platform.startswith("linux"):
        return None
    path = os.environ.get(VARIABLE)
    try:
        _program = _opened(path) or ProcessTable.create()
    except OSError:
        return None
    # processes that this one starts find it here, even after the creator of the table has ended
    os.environ[VARIABLE] = _program.path
    return _program


def _opened(path: str | None) -> ProcessTable | None:
    if not path:
        return None
    try:
        return ProcessTable.open(path)
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; ``None`` once it has ended.

    Process IDs are reused, start times are not. A zombie holds no memory (field 3, 22 of /proc/pid/stat: proc(5)).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def _clear(memory: mmap.mmap, offset: int) -> None:
    # the process ID first: from then on the rest does not count
    _PROCESS.pack_into(memory, offset, 0)
    _HELD.pack_into(memory, offset + _HELD_OFFSET, 0, 0)


def _is_file(descriptor: int, identity: tuple[int, int]) -> bool:
    try:
        about = os.fstat(descriptor)
    except OSError:
        return False
    return (about.st_dev, about.st_ino) == identity


def _close(descriptor: int, identity: tuple[int, int]) -> None:
    if _is_file(descriptor, identity):
        os.close(descriptor)


def call_in_children(method: Callable[[], None]) -> None:
    """Call a method in every forked child, as long as its object exists."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    os.register_at_fork(after_in_child=call)
