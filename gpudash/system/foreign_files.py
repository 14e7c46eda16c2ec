"""The one place where a file that is not gpudash's own is opened: a file that the user named, one that a watched
program named, one in the user's folders. Such a path can be a FIFO without a writer, a link to /dev/zero, or a
file of any size.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


COPIED_AT_ONCE = 2**20
"""Bytes copied at a time."""


class NotRegularError(OSError):
    """The path is neither a regular file nor a folder. ``strerror`` says what it is."""


class TooLargeError(OSError):
    """A file exceeds the limit. ``strerror`` has the limit."""


READS_WITHIN = "GPUDASH_READS_WITHIN"
"""Environment variable with folders, as real paths separated by ":"; paths inside them must not lead out of them. Set
for a process that reads for somebody who may only name files in these folders."""


def reads_within() -> tuple[str, ...]:
    """The folders in `READS_WITHIN`; empty if this process may read whatever its user can."""
    return tuple(filter(None, os.environ.get(READS_WITHIN, "").split(os.pathsep)))


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading. It never waits, as opening a FIFO would for a writer, and
    it opens no device, since opening alone can have an effect.

    Raises:
        FileNotFoundError, IsADirectoryError, NotRegularError, OSError: it cannot be read, is no regular file, or leads
            out of the folders of `READS_WITHIN`. The ``strerror`` of each fits behind "X cannot be read: ".
        ValueError: the name has a null character.
    """
    # Check before opening: opening a device can have an effect.
    require_regular(path)
    # O_NONBLOCK: if it has become a FIFO since, opening would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor).st_mode, path)  # what has the name may have changed since
        _check_place(descriptor, path)
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def require_regular(path: Path | str) -> None:
    """For a file that a library such as SQLite opens by name: refuse what `open_regular` would refuse.

    Raises:
        FileNotFoundError, IsADirectoryError, NotRegularError, OSError: as in `open_regular`.
        ValueError: if the name contains a null character.
    """
    _check(os.stat(path).st_mode, path)  # noqa: PTH116 - a path may be text here


def read_regular(path: Path | str, most: int) -> bytes:
    """The content of a regular file.

    Args:
        path: the file.
        most: limit on its size in bytes.

    Raises:
        TooLargeError: if it is larger.
        FileNotFoundError, IsADirectoryError, NotRegularError, OSError, ValueError: as in `open_regular`.
    """
    with open_regular(path) as file:
        # One more byte than allowed shows that it is too large, whatever size the file system reports.
        data = file.read(most + 1) or b""  # None: a file of the kernel that has nothing to say now
    if len(data) > most:
        raise TooLargeError(errno.EFBIG, f"it has more than the {most:,} bytes that are read", str(path))
    return data


def read_regular_text(path: Path | str, most: int) -> str:
    """The content of a regular file as UTF-8.

    Raises:
        ValueError: if it is not UTF-8.
        TooLargeError, FileNotFoundError, IsADirectoryError, NotRegularError, OSError: as in `read_regular`.
    """
    return read_regular(path, most).decode("utf-8")


def copy_regular(path: Path | str, target: Path) -> None:
    """Copy the content of a regular file to ``target``, which is created or replaced.

    Raises:
        FileNotFoundError, IsADirectoryError, NotRegularError, OSError, ValueError: as in `open_regular`, and if
            ``target`` cannot be written.
    """
    with open_regular(path) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, COPIED_AT_ONCE)


def _check(mode: int, path: Path | str) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise NotRegularError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def _check_place(descriptor: int, path: Path | str) -> None:
    """Refuse a file that was named inside one of the folders in `READS_WITHIN` but is outside of all of them.

    Checks the open file: a symlink that replaced a file, or one of its parent folders, after the first check has been
    followed by then.
    """
    folders = reads_within()
    if not any(Path(path).absolute().is_relative_to(folder) for folder in folders):
        return
    found = Path(f"/proc/self/fd/{descriptor}").readlink()
    if not any(map(found.is_relative_to, folders)):
        raise OSError(errno.EACCES, "it leads out of the folder that may be read", str(path))


LARGEST_SOURCE = 4 * 2**20
"""Largest file from which lines are shown, in bytes."""

MOST_SOURCES_BYTES = 32 * 2**20
"""Largest total size of cached files."""

_ENTRY_BYTES = 1_000
"""Overhead counted for each cached file, so that empty ones count too."""

LONGEST_LINE = 2_000
"""Longest line that is shown, in characters."""

_Stamp = tuple[int, int, int]
"""Identity of a file's content: inode, modification time in ns, size."""


class _Sources:
    """Cache of source files. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[_Stamp, bytes]] = {}
        self._bytes = 0  # bytes read since the cache was cleared

    def content(self, file: str) -> bytes:
        """The content of a file, read again after a change; b"" if it cannot be read."""
        try:
            found = os.stat(file)  # noqa: PTH116 - asked for each line that is drawn
            stamp = found.st_ino, found.st_mtime_ns, found.st_size
            # Read outside the lock; two threads may read the same file, and the later result stays.
            with self._lock:
                kept = self._kept.get(file)
            if kept is not None and kept[0] == stamp:
                return kept[1]
            data = read_regular(file, LARGEST_SOURCE)
        except (OSError, ValueError):
            return b""
        with self._lock:
            self._bytes += len(data) + _ENTRY_BYTES
            # Clear everything: this is rare, and needs no order of use.
            if self._bytes > MOST_SOURCES_BYTES:
                self._kept.clear()
                self._bytes = len(data) + _ENTRY_BYTES
            self._kept[file] = stamp, data
        return data


_sources = _Sources()


def source_line(file: str, line: int) -> str:
    """A line of the program's source without trailing blanks; "" if the file cannot be read.

    The paths in a snapshot are untrusted, and its lines end up in reports that are passed on: only Python files are
    read.

    Args:
        file: absolute path, from the program or a snapshot.
        line: line number, from 1.
    """
    if not file.startswith("/") or not file.endswith(".py") or not 0 < line <= LARGEST_SOURCE:
        return ""
    # Not decoded as a whole: an invalid byte, or a huge file, must not cost more than this line.
    lines = _sources.content(file).split(b"\n", line)
    if line > len(lines):
        return ""
    return lines[line - 1][: 4 * LONGEST_LINE].decode("utf-8", "replace").rstrip()[:LONGEST_LINE]
