"""TensorBoard event files: their scalars, and finding such files in folders.

A file is a sequence of records: the length in 8 bytes, its checksum, the data, its checksum (TFRecord,
tensorflow/core/lib/io/record_writer.h). A file may be hostile, of any size, and still being written: a stated length
alone allocates no memory, records longer than a scalar can be are skipped without being read, and a wrong checksum
ends the file.
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
"""Contained in the first record of every event file."""

FILE_MARK = ".tfevents."
"""Contained in the name of every event file."""

LONGEST_SCALAR = 65_536
"""Bytes of a record that is read; a scalar takes about 60."""

MOST_ENTRIES = 20_000
"""How many names are checked in a folder, including its subfolders."""

MOST_FILES = 500
MOST_SCALARS = 2_000_000

LARGEST_STEP = 2**53

LONGEST_TAG = 200
"""How many characters of a scalar's name are kept."""

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_TO_MASK = 0xA282EAD8
"""Added to a checksum after rotating it by 15 bits (tensorflow/core/lib/hash/crc32c.h, Mask)."""


class EventFileError(ValueError):
    """The given path has no readable TensorBoard scalars; one sentence, without a full stop."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value at a step, written at ``wall_s`` seconds since 1970."""

    tag: str
    step: int
    wall_s: float
    value: float


def find_event_files(place: Path) -> list[Path]:
    """The event files at ``place``: the file itself, or those in the folder and its subfolders, by name.

    Raises:
        OSError: when a folder cannot be read.
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
        EventFileError: when the package for their format is missing.

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
        """The scalars of a file, up to the first damage.

        Raises:
            OSError: when the file cannot be read.
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
                return  # a file that is being written ends like this
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
    """The number in a summary: stored directly, or by newer writers as a tensor of one element; else ``None``."""
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
