"""The bytes of a snapshot file: decompressed if necessary, counted and limited, with progress. Also checks of values,
whose errors say what is there instead.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from gpudash.memory.snapshot.history.model import SnapshotError
from gpudash.system.foreign_files import NotRegularError, open_regular
from gpudash.system.foreign_text import name_of
from gpudash.units import GIB, MIB

LARGEST = 2**63 - 1

_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control terminals or reverse text, and lone surrogates."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits on reading, in bytes.

    Attributes:
        file_bytes: size of the file.
        expanded_bytes: size of a compressed file after expansion.
        memory_bytes: memory for the result; a file that needs more is read in part.
        text_bytes: longest string; names in real files have a few hundred at most.
    """

    file_bytes: int = 64 * GIB
    expanded_bytes: int = 64 * GIB
    memory_bytes: int = 2 * GIB
    text_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        for name in ("file_bytes", "expanded_bytes", "memory_bytes", "text_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


GZIP = b"\x1f\x8b"
BUFFER = 256 * 1024
REPORTED_EVERY = MIB

Progress = Callable[[int, int], None]

FOREIGN = (
    (b"PK\x03\x04", "is an archive, as torch.save and zip write them, and no memory snapshot"),
    (b"SQLite format 3\x00", "is a database (a gpudash recording or a profile of Nsight Systems), no memory snapshot"),
    (b"\x7fELF", "is a program, no memory snapshot"),
    (b"\x93NUMPY", "is an array of NumPy, no memory snapshot"),
    (b"\x89HDF", "is an HDF5 file, no memory snapshot"),
    (b"memray", "is a recording of memray, which knows the host's memory; no memory snapshot of torch"),
    (b"BZh", "is compressed with bzip2: expand it first"),
    (b"\xfd7zXZ", "is compressed with xz: expand it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd: expand it first"),
)
"""Beginnings of files that are mistaken for snapshots, and the messages for them."""


class Source:
    """A file that is read sequentially.

    Args:
        path: path of a regular file.
        limits: size limits.
        progress: callback with the bytes read and the file's size, at most once for each MiB.

    Raises:
        SnapshotError: if it is not a regular file, is empty or too large, or has a known other format.
        OSError: if it cannot be read.

    Attributes:
        stream: the expanded bytes.
        size: size of the file in bytes.
        is_compressed: whether the file is compressed.
        begin: first bytes, expanded.
    """

    def __init__(self, path: Path, limits: ReadLimits, progress: Progress | None = None) -> None:
        self.name = name_of(path)
        try:
            self._file = open_regular(path)
        except (NotRegularError, IsADirectoryError) as error:
            raise SnapshotError(
                f"{self.name} cannot be read: {error.strerror}. Choose the file of a memory snapshot."
            ) from None
        self._progress = progress
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._check_size(limits)
            self.is_compressed = self._file.read(2) == GZIP
            self._file.seek(0)
            counted = _Counted(self.name, self._file, self.size, self.is_compressed, limits, progress)
            self.stream = io.BufferedReader(counted, BUFFER)
            self.begin = self.stream.peek(64)[:64]
            self._check_begin()
        except BaseException:
            self._file.close()
            raise

    def _check_size(self, limits: ReadLimits) -> None:
        if self.size == 0:
            raise SnapshotError(f"{self.name} is empty: record the snapshot again.")
        if self.size > limits.file_bytes:
            raise SnapshotError(
                f"{self.name} has {self.size:,} bytes, more than the {limits.file_bytes:,} that are opened: "
                "record a shorter trace."
            )

    def _check_begin(self) -> None:
        if not self.begin:
            raise SnapshotError(f"{self.name} is empty once it is expanded: record the snapshot again.")
        for begin, text in FOREIGN:
            if self.begin.startswith(begin):
                raise SnapshotError(f"{self.name} {text}.")
        if self.begin.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html", b"<svg", b"<?xml")):
            raise SnapshotError(f"{self.name} is a page for a browser: open the pickle that it was made from.")

    def finished(self) -> None:
        """Declare that no more of the file will be read."""
        if self._progress is not None:
            self._progress(self.size, self.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stream.close()
        self._file.close()


class _Counted(io.RawIOBase):
    """Reads and expands, counting both."""

    def __init__(
        self, name: str, file: BinaryIO, size: int, is_compressed: bool, limits: ReadLimits, progress: Progress | None
    ) -> None:
        self._name, self._file, self._size, self._progress = name, file, size, progress
        if is_compressed:
            self._expanding: Any = gzip.GzipFile(fileobj=file, mode="rb")
        else:
            self._expanding = None
        self._left = limits.expanded_bytes
        self._limit = limits.expanded_bytes
        self._reported = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill part of the buffer."""
        plain = self._expanding is None
        found = self._file.readinto(buffer) if plain else self._expand(buffer)  # type: ignore[attr-defined]
        if self._progress is not None:
            done = self._file.tell()
            if done - self._reported >= REPORTED_EVERY:
                self._reported = done
                self._progress(done, self._size)
        return int(found)

    def _expand(self, buffer: Any) -> int:
        try:
            data = self._expanding.read(len(buffer))
        except EOFError as error:
            raise SnapshotError(f"{self._name} is cut off: copy it again.") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise SnapshotError(f"{self._name} is damaged: copy it again.") from error
        self._left -= len(data)
        if self._left < 0:
            raise SnapshotError(
                f"{self._name} expands to more than the {self._limit:,} bytes that are opened: record a shorter trace."
            )
        buffer[: len(data)] = data
        return len(data)


class ShapeError(ValueError):
    """A value is not valid in a memory snapshot: names its position and what it is instead, without a full stop."""


def shown(value: object) -> str:
    """A short description of a value, however large or deeply nested it is."""
    if isinstance(value, str):
        if len(value) <= 40:
            return repr(value[:40])
        return f"{value[:40]!r}..."
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length():,} bits"
    if value is None or isinstance(value, int | float):
        return repr(value)
    name = type(value).__name__
    if name[0] in "aeiou":
        return f"an {name}"
    return f"a {name}"


def readable(text: str) -> str:
    """A string of a file, with a replacement character for anything unprintable or misleading."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSHOWN.sub("\ufffd", text)


def as_list(value: object, where: str) -> list[Any] | tuple[Any, ...]:
    """The value, which must be a list or a tuple."""
    if not isinstance(value, list | tuple):
        raise ShapeError(f"{where} is {shown(value)}, not a list")
    return value


def as_dict(value: object, where: str) -> dict[str, Any]:
    """The value, which must be a dictionary."""
    if not isinstance(value, dict):
        raise ShapeError(f"{where} is {shown(value)}, not a dictionary")
    return value


def integer(raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """An integer of at most 64 bits; the default if it is missing."""
    value = raw.get(key)
    if value is None:
        value = default
    if type(value) is not int:
        raise ShapeError(f"`{key}` of {where} is {shown(value)}, not an integer")
    if abs(value) > LARGEST:
        raise ShapeError(f"`{key}` of {where} is {shown(value)}, more than 64 bits hold")
    return value


def count(raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """A non-negative integer: a size, an address, a time."""
    value = integer(raw, key, where, default)
    if value < 0:
        raise ShapeError(f"`{key}` of {where} is negative")
    return value


def text(raw: Mapping[str, Any], key: str, where: str) -> str:
    """A string."""
    value = raw.get(key)
    if not isinstance(value, str):
        raise ShapeError(f"`{key}` of {where} is {shown(value)}, not a text")
    return value


def pool_id(value: object, where: str) -> tuple[int, ...]:
    """The identity of a pool: integers, two in every known file."""
    if not isinstance(value, list | tuple) or not 0 < len(value) <= 8 or {*map(type, value)} != {int}:
        raise ShapeError(f"the pool of {where} is {shown(value)}, not two integers")
    if any(abs(part) > LARGEST for part in value):
        raise ShapeError(f"the pool of {where} holds a number of more than 64 bits")
    return tuple(value)
