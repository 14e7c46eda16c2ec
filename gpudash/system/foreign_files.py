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
"""Bytes that copying a file reads at a time."""


class NotRegularError(OSError):
    """What has this name is neither a regular file nor a folder. Its ``strerror`` says what it is."""


class TooLargeError(OSError):
    """A file has more bytes than are read. Its ``strerror`` says how many are."""


READS_WITHIN = "GPUDASH_READS_WITHIN"
"""Variable of the environment: the folders, by their real paths with ":" between them, that nothing named in them leads
out of. A process that reads for somebody who may name files of these alone is given it."""


def reads_within() -> tuple[str, ...]:
    """The folders of `READS_WITHIN`; none where this process may read whatever its user can."""
    return tuple(folder for folder in os.environ.get(READS_WITHIN, "").split(os.pathsep) if folder)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading. It never waits, as opening a FIFO would for a writer, and
    it opens no device, since opening alone can have an effect.

    Raises:
        FileNotFoundError, IsADirectoryError, NotRegularError, OSError: it cannot be read, is no regular file, or leads
            out of the folders of `READS_WITHIN`. The ``strerror`` of each fits behind "X cannot be read: ".
        ValueError: the name has a null character.
    """
    # Asked before it is opened: opening a device can have an effect.
    require_regular(path)
    # O_NONBLOCK: what has become a FIFO since would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor).st_mode, path)  # what has the name may have changed since
        _check_place(descriptor, path)
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def require_regular(path: Path | str) -> None:
    """For a file that a library opens by its name, such as SQLite: refuse what `open_regular` would refuse.

    Raises:
        FileNotFoundError, IsADirectoryError, NotRegularError, OSError: as `open_regular`.
        ValueError: the name has a null character.
    """
    _check(os.stat(path).st_mode, path)  # noqa: PTH116 - a path may be text here


def read_regular(path: Path | str, most: int) -> bytes:
    """The content of a regular file.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        TooLargeError: it has more.
        FileNotFoundError, IsADirectoryError, NotRegularError, OSError, ValueError: as `open_regular`.
    """
    with open_regular(path) as file:
        # One byte more than is allowed tells that there are more, whatever the size that the file system states.
        data = file.read(most + 1) or b""  # None: a file of the kernel that has nothing to say now
    if len(data) > most:
        raise TooLargeError(errno.EFBIG, f"it has more than the {most:,} bytes that are read", str(path))
    return data


def read_regular_text(path: Path | str, most: int) -> str:
    """The content of a regular file as UTF-8.

    Raises:
        ValueError: it is not UTF-8.
        TooLargeError, FileNotFoundError, IsADirectoryError, NotRegularError, OSError: as `read_regular`.
    """
    return read_regular(path, most).decode("utf-8")


def copy_regular(path: Path | str, target: Path) -> None:
    """Copy the content of a regular file to ``target``, which is made or replaced.

    Raises:
        FileNotFoundError, IsADirectoryError, NotRegularError, OSError, ValueError: as `open_regular`, and where
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
    """Refuse a file that was named in one of the folders of `READS_WITHIN` and lies in none of them.

    Asked of what has been opened: a link that replaced a file, or a folder above it, after its name was looked at is
    followed by then.
    """
    folders = reads_within()
    if not any(Path(path).absolute().is_relative_to(folder) for folder in folders):
        return
    found = Path(f"/proc/self/fd/{descriptor}").readlink()
    if not any(found.is_relative_to(folder) for folder in folders):
        raise OSError(errno.EACCES, "it leads out of the folder that may be read", str(path))


LARGEST_SOURCE = 4 * 2**20
"""Bytes of the largest file of which lines are shown."""

MOST_SOURCES_BYTES = 32 * 2**20
"""Bytes of files that are kept to be asked for other lines."""

_ENTRY_BYTES = 1_000
"""Counted for each file that is kept beside its content, so that empty ones count too."""

LONGEST_LINE = 2_000
"""Characters of a line that are shown."""

_Stamp = tuple[int, int, int]
"""Identity of a file's content: inode, time of the last change in ns, bytes."""


class _Sources:
    """Source files that were asked for a line. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[_Stamp, bytes]] = {}
        self._bytes = 0  # what was read since everything was dropped

    def content(self, file: str) -> bytes:
        """The content of a file, read again once it has changed; nothing where it cannot be read."""
        try:
            found = os.stat(file)  # noqa: PTH116 - asked for each line that is drawn
            stamp = found.st_ino, found.st_mtime_ns, found.st_size
            # Reading the file happens outside the lock; two threads may read the same one, and the later result
            # stays.
            with self._lock:
                kept = self._kept.get(file)
            if kept is not None and kept[0] == stamp:
                return kept[1]
            data = read_regular(file, LARGEST_SOURCE)
        except (OSError, ValueError):
            return b""
        with self._lock:
            self._bytes += len(data) + _ENTRY_BYTES
            # Everything at once: a rare event that needs no order of use.
            if self._bytes > MOST_SOURCES_BYTES:
                self._kept.clear()
                self._bytes = len(data) + _ENTRY_BYTES
            self._kept[file] = stamp, data
        return data


_sources = _Sources()


def source_line(file: str, line: int) -> str:
    """The text of a line of the program, without the blanks behind it; "" when its file cannot be read.

    The names in a snapshot are its author's choice, and its lines end up in reports that are passed on: so only Python
    files are read.

    Args:
        file: absolute path, as the program or a snapshot names it.
        line: its number, from 1 on.
    """
    if not file.startswith("/") or not file.endswith(".py") or not 0 < line <= LARGEST_SOURCE:
        return ""
    # Not decoded as a whole: one odd byte, or a huge file, must not cost more than the line.
    lines = _sources.content(file).split(b"\n", line)
    if line > len(lines):
        return ""
    return lines[line - 1][: 4 * LONGEST_LINE].decode("utf-8", "replace").rstrip()[:LONGEST_LINE]
