"""A small kernel file that is read many times a second."""

from __future__ import annotations

import os
from pathlib import Path


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
