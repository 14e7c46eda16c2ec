"""Which process holds how much of a simulated card, as a driver would know it of a real one.

The processes of one program share their simulated cards, as they would share a GPU: what one holds, another cannot
have. The table lies in memory that all of them map. It has no name in any file system: an environment variable says by
whose descriptor it is found, so that a process that is started by another one finds it too, whatever started it.

A process writes only its own entries. The lock is the kernel's, which frees it when its holder dies, and none waits
long for it. What a killed process held is free again: an entry counts only while its process lives.
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
"""Environment variable with the path at which the table of this program is found."""

MOST_ENTRIES = 4096
"""Pairs of a process and a card; what holds memory beyond that is not known to others."""

LOCK_S = 0.5
"""Longest wait for the lock, which is held for microseconds: its holder has been stopped, and may be for long."""

RETRY_S = 0.0005

_MAGIC = b"simcards"
_HEADER = struct.Struct("<8sQ")
"""Magic, and how many entries have ever been used."""

_ENTRY = struct.Struct("<QQQQQQ")
"""Process, its start, index of the card, capacity of the card, bytes of the context, bytes reserved."""

_PROCESS = struct.Struct("<Q")
_HELD = struct.Struct("<QQ")
_HELD_OFFSET = _ENTRY.size - _HELD.size

_SIZE = _HEADER.size + MOST_ENTRIES * _ENTRY.size


class Holding(NamedTuple):
    """What one process has of a card, in bytes."""

    context: int
    reserved: int


class Entry:
    """The place of one process and one card in a table. Only its own process writes into it.

    Args:
        table: the table.
        offset: of the place, in bytes.
    """

    def __init__(self, table: ProcessTable, offset: int) -> None:
        self._table = table
        self._offset = offset

    def write(self, held: Holding) -> None:
        """Say what the process holds now."""
        _HELD.pack_into(self._table.memory, self._offset + _HELD_OFFSET, *held)

    def clear(self) -> None:
        """Give the place back."""
        _clear(self._table.memory, self._offset)


class ProcessTable:
    """The processes of one program and what they hold of its simulated cards. Any thread may call anything.

    Args:
        descriptor: of a file that `create` has made. It stays open as long as the table is there.

    Raises:
        OSError: when the file cannot be mapped, or is no such table.

    Attributes:
        memory: the mapped file.
    """

    def __init__(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size != _SIZE or about.st_uid != os.geteuid():
            raise OSError(errno.EINVAL, "it is no table of simulated cards")
        # only after the size is known to be right: to touch mapped memory behind the end of a file ends the
        # process
        self.memory = mmap.mmap(descriptor, _SIZE)
        if _HEADER.unpack_from(self.memory)[0] != _MAGIC:
            raise OSError(errno.EINVAL, "it is no table of simulated cards")
        self._descriptor = descriptor
        # the number of a descriptor may be given to another file; this says whether it was
        self._identity = about.st_dev, about.st_ino
        self._thread_lock = threading.Lock()
        weakref.finalize(self, _close, descriptor, self._identity)
        call_in_children(self._forked)

    @classmethod
    def create(cls) -> ProcessTable:
        """A new, empty table.

        Raises:
            OSError: when the system has no such memory.
        """
        if not hasattr(os, "memfd_create") or _started(os.getpid()) is None:
            raise OSError(errno.ENOSYS, "this system has no files in memory")
        descriptor = _file_in_memory()
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)
            # else whoever shortened it would end every process that has it mapped
            fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SHRINK)
            os.pwrite(descriptor, _HEADER.pack(_MAGIC, 0), 0)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: str) -> ProcessTable:
        """The table that another process has, by its `path`.

        Raises:
            OSError: when it is gone, or no such table.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def path(self) -> str:
        """Where other processes of this user find the table while this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep other processes from taking memory meanwhile; false where the lock was not free within `LOCK_S`."""
        deadline = time.monotonic() + LOCK_S
        # lockf is of the whole process: threads of one need a lock of their own
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
        """A place for this process and a card, with nothing held; ``None`` where the table is full.

        The table is locked meanwhile.
        """
        pid = os.getpid()
        started = _started(pid)
        if started is None:
            return None
        # first, so that the places of processes that have ended can be taken
        self._drop_dead()
        used = self._used()
        offset = self._place(pid, started, index, capacity, used)
        # places that were never used come last: readers look at no more of the table than they have to
        if offset is None and used < MOST_ENTRIES:
            offset = _HEADER.size + used * _ENTRY.size
            _HEADER.pack_into(self.memory, 0, _MAGIC, used + 1)
        if offset is None:
            return None
        # the process comes last: until then nobody counts the entry
        _ENTRY.pack_into(self.memory, offset, 0, started, index, capacity, 0, 0)
        _PROCESS.pack_into(self.memory, offset, pid)
        return Entry(self, offset)

    def held_by_others(self, index: int, capacity: int, *, living: bool) -> dict[int, Holding]:
        """What each other process holds of a card, by process number.

        Args:
            index, capacity: of the card. A process that was given another card under this index has that one alone.
            living: whether each process is looked for, which costs microseconds; else some may be dead.
        """
        found: dict[int, Holding] = {}
        mine = os.getpid()
        for _offset, (pid, started, of, size, context, reserved) in self._entries():
            if (of, size) != (index, capacity) or pid == mine or not context + reserved:
                continue
            # a number that was given to another process would not have its start
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
        """A free place, or the one that a program which this one has replaced (exec) had."""
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
        # asked again each time: a program may close all descriptors between two tries
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
        """Whether the descriptor is ours: a program may close all it finds, and then have files of these numbers."""
        return _is_file(self._descriptor, self._identity)

    def _forked(self) -> None:
        self._thread_lock = threading.Lock()  # another thread of the parent may have held it
        if self is _program:
            os.environ[VARIABLE] = self.path  # the parent's ends with the parent


_ADD_SEALS, _SEAL_SHRINK = getattr(fcntl, "F_ADD_SEALS", 1033), getattr(fcntl, "F_SEAL_SHRINK", 2)
"""Of memfd_create(2); Python knows them from 3.8 on where its C library does."""

_NOEXEC_SEAL = 8


def _file_in_memory() -> int:
    """An unnamed file that cannot be executed; kernels from 6.3 on want that flag to be given."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("gpudash-cards", flags | _NOEXEC_SEAL)
    except OSError:
        return os.memfd_create("gpudash-cards", flags)


_program: ProcessTable | None = None


def table_of_program() -> ProcessTable | None:
    """The table of this program: the one that the environment names, else a new one, which the environment names then.

    Returns:
        ``None`` where there can be none, so that every process has cards of its own.
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
    # what this process starts finds it here, also when the process that made the table has ended
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
    """When a process started, in clock ticks since the machine did; ``None`` once it has ended.

    Numbers of processes are used again, this is not. One that has ended and was not waited for holds no memory
    (field 3, 22 of /proc/pid/stat: proc(5)).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def _clear(memory: mmap.mmap, offset: int) -> None:
    # the process first: from then on nobody counts the rest
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
    """Call a method in every forked child, as long as its object is there."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    os.register_at_fork(after_in_child=call)
