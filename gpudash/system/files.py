"""Files: those of the program itself, those written whole or not at all, those of the kernel; and folders that belong
to one running gpudash and its user alone, of which what a killed one has left is swept away.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]

_LOCK = "lock"


def resource(*parts: str) -> Path:
    """The path of a file under ``resources/``: beside the package in a checkout, inside it in a wheel.

    Raises:
        FileNotFoundError: naming the file, when an installation lacks it.
    """
    # A wheel has the files inside the package, a checkout beside it.
    for base in (_PACKAGE / "_resources", _PACKAGE.parent / "resources"):
        path = base.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"gpudash's own file {'/'.join(parts)} is missing; reinstall gpudash")


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700; one that is there keeps its mode.

    Raises:
        OSError: when it cannot be made, or something else has its name.
    """
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    # From the outermost on, each with its own mode: mkdir(parents=True) gives the mode to the last alone.
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def written_whole(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place when the block ends well and goes when it does not.

    Readers of ``path`` meanwhile find what was there before. A link stays one. Nothing is forced to the disk: a
    machine that loses its power may lose what was written last.

    Args:
        private: make it with mode 0600, for the user alone; otherwise its mode is by the umask.

    Raises:
        OSError: when it cannot be written; what was there before is left.
    """
    # The target of a link is replaced, not the link.
    target = Path(os.path.realpath(path))
    # not the whole name: with it, the longest that the file system takes would be too long
    part = target.with_name(f".{target.name[:40]}.{os.getpid()}-{threading.get_ident()}.part")
    # A part of this name can only be a leftover of this very thread.
    part.unlink(missing_ok=True)
    try:
        if private:
            # Made before it is written: its mode is right from the first byte.
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield part
        # One rename on one file system: no reader sees half a file.
        part.replace(target)
    finally:
        # After a rename there is none, and after an error it must not stay.
        with suppress(OSError):
            part.unlink()


def text_of(path: Path) -> str:
    """What a file of the kernel (/proc, /sys) holds as text, odd bytes replaced; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class KeptFile:
    """A file under /proc or /sys, opened once: each `read` makes the kernel write it anew.

    Raises:
        OSError: when it cannot be opened, or what it describes is gone.
    """

    __slots__ = ("_descriptor", "_size")

    def __init__(self, path: Path | str, size: int = 16384) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = size

    def read(self) -> bytes:
        # pread at 0 needs no seek, and the kernel makes the text anew for it.
        return os.pread(self._descriptor, self._size, 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PrivateFolder:
    """A new folder of mode 0700, removed by `remove`, or by the next gpudash when this one is killed.

    Args:
        parent: where; made when it is not there.
        prefix: of its name, by which leftovers are known.

    Raises:
        OSError: when it cannot be made.

    Attributes:
        path: the folder.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        make_private_folder(parent)
        _sweep(parent, prefix)
        made = None
        # Again, where another gpudash has swept the new folder away before its lock was held.
        while made is None:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            made = _locked(self.path)
        self._lock = made

    def remove(self) -> None:
        """Remove it with all that is in it. Never raises."""
        # Removed while the lock is held: no other process begins to sweep it.
        shutil.rmtree(self.path, ignore_errors=True)
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """Lock a new folder.

    Returns:
        A descriptor of its lock; ``None`` when another gpudash has swept the folder away: it takes a new folder for a
        leftover as long as its lock is free.
    """
    try:
        # With the lock held by a descriptor, the kernel releases it when the process ends, however it ends.
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        return lock  # a file system without locks: nothing is swept there
    # it may have been swept before it was locked, and then has no name any more
    if os.fstat(lock).st_nlink:
        return lock
    os.close(lock)
    return None


def _sweep(parent: Path, prefix: str) -> None:
    """Remove the folders whose gpudash is gone."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            # In a shared /tmp a folder of the same prefix may be another user's, or a link planted there.
            if folder.stat().st_uid != os.getuid() or folder.is_symlink():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                # A lock that can be had is one whose gpudash is gone.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def runtime_folder() -> Path:
    """Where sockets are put: the user's own runtime folder, else the one for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime)
    return Path(tempfile.gettempdir())
