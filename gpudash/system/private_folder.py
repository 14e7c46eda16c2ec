"""Folders that belong to one running gpudash and its user alone; what a killed one has left is swept away."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_LOCK = "lock"


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
