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
    """The path of a file in ``resources/``: next to the package in a checkout, inside it in a wheel.

    Raises:
        FileNotFoundError: if the installation lacks the file; names it.
    """
    # A wheel has the files inside the package, a checkout next to it.
    for base in (_PACKAGE / "_resources", _PACKAGE.parent / "resources"):
        path = base.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"gpudash's own file {'/'.join(parts)} is missing; reinstall gpudash")


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700; an existing folder keeps its mode.

    Raises:
        OSError: if it cannot be created, or something else has its name.
    """
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    # From the outermost on, each with its own mode: mkdir(parents=True) only sets the mode of the last.
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def written_whole(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary file beside ``path`` that replaces it when the block succeeds, and is deleted when it fails.

    Meanwhile, readers of ``path`` find the previous content. A symlink is kept. Nothing is synced to disk: after a
    power failure, the last content may be lost.

    Args:
        private: whether to create it with mode 0600; otherwise the umask decides.

    Raises:
        OSError: if it cannot be written; the previous content stays.
    """
    # Replace the target of a symlink, not the symlink.
    target = Path(os.path.realpath(path))
    # Not the whole name: with it, the longest names that the file system accepts would be too long.
    part = target.with_name(f".{target.name[:40]}.{os.getpid()}-{threading.get_ident()}.part")
    # A temporary file of this name can only be a leftover of this thread.
    part.unlink(missing_ok=True)
    try:
        if private:
            # Created before it is written, so that its mode is right from the first byte.
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield part
        # A rename within a file system: no reader sees half a file.
        part.replace(target)
    finally:
        # After a rename it is gone, and after an error it must not stay.
        with suppress(OSError):
            part.unlink()


def text_of(path: Path) -> str:
    """Text of a kernel file (/proc, /sys), with invalid bytes replaced; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class KeptFile:
    """A file in /proc or /sys that is kept open: the kernel writes its text anew for each `read`.

    Raises:
        OSError: if it cannot be opened, or what it describes has gone.
    """

    __slots__ = ("_descriptor", "_size")

    def __init__(self, path: Path | str, size: int = 16384) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = size

    def read(self) -> bytes:
        # pread at 0 needs no seek, and makes the kernel write the text anew.
        return os.pread(self._descriptor, self._size, 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PrivateFolder:
    """A new folder of mode 0700, deleted by `remove`, or by the next gpudash if this one is killed.

    Args:
        parent: parent folder; created if missing.
        prefix: prefix of its name, by which leftovers are recognised.

    Raises:
        OSError: if it cannot be created.

    Attributes:
        path: the folder.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        make_private_folder(parent)
        _sweep(parent, prefix)
        made = None
        # Repeat if another gpudash has deleted the new folder before its lock was held.
        while made is None:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            made = _locked(self.path)
        self._lock = made

    def remove(self) -> None:
        """Delete it with its content. Never raises."""
        # Delete it while the lock is held, so that no other process starts to.
        shutil.rmtree(self.path, ignore_errors=True)
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """Lock a new folder.

    Returns:
        A descriptor of its lock; ``None`` if another gpudash has deleted the folder, which looks like a leftover until
        its lock is held.
    """
    try:
        # The kernel releases the descriptor's lock when the process ends, however it ends.
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        return lock  # a file system without locks: leftovers stay there
    # It may have been deleted before it was locked, and then has no name any more.
    if os.fstat(lock).st_nlink:
        return lock
    os.close(lock)
    return None


def _sweep(parent: Path, prefix: str) -> None:
    """Delete the folders of gpudash processes that have ended."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            # In a shared /tmp, a folder of this prefix may be another user's, or a planted symlink.
            if folder.stat().st_uid != os.getuid() or folder.is_symlink():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                # If its lock is free, its gpudash has ended.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def runtime_folder() -> Path:
    """Folder for sockets: the user's runtime folder, else the one for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime)
    return Path(tempfile.gettempdir())
