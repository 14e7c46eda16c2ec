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
    for base in (_PACKAGE / "_resources", _PACKAGE.parent / "resources"):
        path = base.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"gpudash's own file {'/'.join(parts)} is missing; reinstall gpudash")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place when the block ends well and goes when it does not.

    Whoever reads ``path`` meanwhile finds what was there before. A link stays one. Nothing is forced to the disk: a
    machine that loses its power may lose what was written last.

    Raises:
        OSError: when it cannot be written; what was there before is left.
    """
    target = Path(os.path.realpath(path))
    # not the whole name: with it, the longest that the file system takes would be too long
    part = target.with_name(f".{target.name[:40]}.{os.getpid()}-{threading.get_ident()}.part")
    part.unlink(missing_ok=True)
    try:
        yield part
        part.replace(target)
    finally:
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
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # a file system without locks: then leftovers stay
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it with all that is in it. Never raises."""
        shutil.rmtree(self.path, ignore_errors=True)
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove the folders whose gpudash is gone."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            if folder.stat().st_uid != os.getuid() or folder.is_symlink():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
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
