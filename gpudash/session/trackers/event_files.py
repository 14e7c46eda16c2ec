"""Event files of TensorBoard: their scalars, and the files and folders that are some.

A file is a row of records: the length in 8 bytes, a checksum of it, the data, a checksum of that (TFRecord,
tensorflow/core/lib/io/record_writer.h). A file may be hostile, of any size, and still being written: no memory is taken
because a length says so, what is longer than a scalar can be is passed over without being read, and a wrong checksum
ends it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpudash.system.foreign_files import open_regular

VERSION = b"brain.Event:"
"""What the first record of every event file holds."""

FILE_MARK = ".tfevents."
"""What the name of every event file holds."""

LONGEST_SCALAR = 65_536
"""Bytes of a record that is read; one with a scalar has about 60."""

MOST_ENTRIES = 20_000
"""Names that are looked at in a folder, with all below it."""

MOST_FILES = 500
MOST_SCALARS = 2_000_000

LARGEST_STEP = 2**53

LONGEST_TAG = 200
"""Characters of a scalar's name that are kept."""

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_TO_MASK = 0xA282EAD8
"""Added to a checksum that is rotated by 15 bits (tensorflow/core/lib/hash/crc32c.h, Mask)."""


class EventFileError(ValueError):
    """What was named has no scalars of TensorBoard that can be read; one sentence, without a full stop."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value at a step, written at ``wall_s`` seconds since 1970."""

    tag: str
    step: int
    wall_s: float
    value: float


def find_event_files(place: Path) -> list[Path]:
    """The event files at ``place``: itself, or those in it and below it, by name.

    Raises:
        OSError: a folder cannot be read.
    """
    if not place.is_dir():
        return [place]
    found: list[Path] = []
    seen = 0
    for folder, folders, names in os.walk(place):
        folders.sort()
        seen += len(folders) + len(names)
        found += [Path(folder) / name for name in sorted(names) if FILE_MARK in name]
        if seen > MOST_ENTRIES or len(found) >= MOST_FILES:
            break
    return found[:MOST_FILES]


class EventReader:
    """Reads the scalars of event files.

    Raises:
        EventFileError: the package that knows their format is missing.

    Attributes:
        notices: what could not be read, a sentence each.
    """

    def __init__(self) -> None:
        try:
            from tensorboardX.crc32c import crc32c
            from tensorboardX.proto.event_pb2 import Event
        except ImportError:
            raise EventFileError(
                "TensorBoard's event files need tensorboardX, which is not installed; run: "
                'pip install "gpudash[trackers]"'
            ) from None
        self.notices: list[str] = []
        self._crc: Callable[[bytes], int] = crc32c
        self._event: Any = Event
        self._left = MOST_SCALARS

    def scalars(self, path: Path) -> Iterator[Scalar]:
        """The scalars of a file, as far as it is whole.

        Raises:
            OSError: it cannot be read.
        """
        with open_regular(path) as file:
            for data in self._records(file, path.name):
                yield from self._of(data)
                if self._left <= 0:
                    self.notices.append(f"Only the first {MOST_SCALARS:,} scalars are shown")
                    return

    def _records(self, file: BinaryIO, name: str) -> Iterator[bytes]:
        size = os.fstat(file.fileno()).st_size
        count = 0
        while header := file.read(_HEADER.size):
            if len(header) < _HEADER.size:
                return  # one that is being written ends so
            length, checksum = _HEADER.unpack(header)
            if checksum != self._masked(header[:8]):
                self.notices.append(f"{name} is damaged behind {count} records; what came before is shown")
                return
            end = file.tell() + length + _CHECKSUM.size
            if end > size:
                return
            if length > LONGEST_SCALAR:
                file.seek(end)
                continue
            data = file.read(length)
            found = file.read(_CHECKSUM.size)
            if len(found) < _CHECKSUM.size:
                return
            if _CHECKSUM.unpack(found)[0] != self._masked(data):
                self.notices.append(f"{name} is damaged behind {count} records; what came before is shown")
                return
            count += 1
            yield data

    def _masked(self, data: bytes) -> int:
        found = self._crc(data)
        return ((found >> 15 | found << 17) + _TO_MASK) & 0xFFFFFFFF

    def _of(self, data: bytes) -> Iterator[Scalar]:
        from google.protobuf.message import DecodeError

        try:
            event = self._event.FromString(data)
        except DecodeError:
            return
        if not event.HasField("summary") or not 0 <= event.step <= LARGEST_STEP:
            return
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                self._left -= 1
                yield Scalar(str(value.tag)[:LONGEST_TAG], int(event.step), float(event.wall_time), number)


def _number(value: Any) -> float | None:
    """The number of a summary's value: written as such, or by newer writers as a tensor of one; else ``None``."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor"):
        return None
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val):
        if len(numbers) == 1:
            return float(numbers[0])
    content = tensor.tensor_content
    # DT_FLOAT and DT_DOUBLE of tensorflow/core/framework/types.proto
    for kind, form in ((1, "<f"), (2, "<d")):
        if tensor.dtype == kind and len(content) == struct.calcsize(form):
            return float(struct.unpack(form, content)[0])
    return None
