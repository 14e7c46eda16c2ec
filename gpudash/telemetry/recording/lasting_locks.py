"""Locks on a recording that survive whatever else its process opens and closes.

SQLite's locks are POSIX locks: they belong to the process, and closing any descriptor of a file drops all of them
(sqlite.org/howtocorrupt.html, section 2.2). A file dialog that looks into the recording to find its icon is enough.
The next process to open it then takes itself for the first, and truncates the index of the log, which is mapped into
ours: a bus error. Locks of an open file description (fcntl(2)) belong to one descriptor, conflict with POSIX locks of
other processes in the same way, and end with that descriptor only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

SHARED_RANGE = (0x40000002, 510)
"""Offset and length of what SQLite locks in the file while it is connected (os.h, SHARED_FIRST and SHARED_SIZE)."""

CONNECTED_BYTE = (128, 1)
"""What it locks in the index of the log meanwhile, so that nobody truncates it (os_unix.c, UNIX_SHM_DMS)."""


class LastingLocks:
    """Shared locks beside those that SQLite holds while it is connected to a database with a log.

    Args:
        file: open descriptor of the database.
        index: path of the index of its log; SQLite has created it.

    Raises:
        OSError: if the index cannot be opened.
    """

    def __init__(self, file: int, index: Path) -> None:
        self._file = file
        self._index_path = index
        self._index = os.open(index, os.O_RDONLY | os.O_CLOEXEC)
        # A file system without such locks: as safe as SQLite's own.
        with contextlib.suppress(OSError):
            _lock(self._file, fcntl.F_RDLCK, SHARED_RANGE)
            _lock(self._index, fcntl.F_RDLCK, CONNECTED_BYTE)

    def release_file(self) -> None:
        """Let SQLite lock the file exclusively, as it must to merge and delete the log."""
        with contextlib.suppress(OSError):
            _lock(self._file, fcntl.F_UNLCK, SHARED_RANGE)

    def close(self) -> None:
        """End the lock of the index; call it when SQLite has closed the file."""
        # If it is still there, something else has the recording open. In this process that may be a reader, whose lock
        # closing our descriptor would drop: it stays open until the process ends.
        if not self._index_path.exists():
            os.close(self._index)


def _lock(descriptor: int, kind: int, part: tuple[int, int]) -> None:
    """Set or release a lock of the open file description, without waiting; systems other than Linux have none."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return
    start, length = part
    # struct flock of fcntl(2): type, whence, start, length, pid
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
