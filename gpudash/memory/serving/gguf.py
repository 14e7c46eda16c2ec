"""Reads metadata and tensors from the header of a GGUF file, within a memory limit whatever the file claims.

The format is that of ggml's ``docs/gguf.md``; the sizes of types are those of ``ggml.c`` (``type_traits``).
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudash.system.foreign_files import open_regular

MOST_HEADER = 64 * 2**20
"""The most bytes that are read. Vocabulary and merges of the largest tokenizers take about 15 MB."""

MOST_KEPT = 4096
"""The most items kept of an array: one for each layer. The tokenizer's longer arrays are skipped."""

MOST_PARTS = 256
"""The most files a model may be split into."""

MOST_SIDE = 2**40

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""Numbers in a block and its bytes, by ggml's number of the type."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        name: such as "blk.0.attn_q.weight".
        numbers: how many numbers it has.
        bytes: its stored size.
    """

    name: str
    numbers: int
    bytes: int


@dataclass(frozen=True)
class Gguf:
    """A model as described by its GGUF files.

    Attributes:
        metadata: by key, without arrays of more than `MOST_KEPT` items.
        tensors: of all files.
    """

    metadata: dict[str, Any]
    tensors: tuple[StoredTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture") or "")


def read_gguf(path: Path) -> Gguf:
    """Read the model of a file, including the other files it is split into.

    Raises:
        ValueError: in one sentence, if it is not a GGUF file or a part is missing.
        OSError: it cannot be read.
    """
    first = _read(path)
    parts = first.metadata.get("split.count")
    if not isinstance(parts, int) or parts <= 1:
        return first
    named = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", path.name)
    if named is None or parts > MOST_PARTS:
        raise ValueError(f"{path} is one of {parts} parts, but its name does not say which.")
    files = [path.with_name(f"{named[1]}{place:05}{named[2]}") for place in range(1, parts + 1)]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise ValueError(f"{path} is one of {parts} parts, and {missing.name} is not there.")
    read = list(map(_read, files))
    return Gguf(read[0].metadata, tuple(tensor for part in read for tensor in part.tensors))


def _read(path: Path) -> Gguf:
    with open_regular(path) as opened:
        data = opened.read(MOST_HEADER)
    try:
        return _Header(data).model()
    except (struct.error, IndexError):
        raise ValueError(f"{path}: the header of the GGUF file is cut off.") from None
    except ValueError as error:
        raise ValueError(f"{path} is no GGUF file that can be read: {error}.") from None


class _Header:
    """Reads a header from its first byte; raises `struct.error` or `IndexError` at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def model(self) -> Gguf:
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not known here")
        tensors = self._count()
        entries = self._count()
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._text()
            value = self._value(self._number("I"))
            if value is not None:
                metadata[key] = value
        return Gguf(metadata, tuple(self._tensor() for _ in range(tensors)))

    def _number(self, kind: str) -> Any:
        found = struct.unpack_from(f"<{kind}", self._data, self._at)[0]
        self._at += struct.calcsize(f"<{kind}")
        return found

    def _count(self) -> int:
        """Read the number of items that follow, each of at least one byte."""
        count = int(self._number("Q"))
        self._fits(count)
        return count

    def _fits(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise IndexError(size)

    def _text(self) -> str:
        size = self._count()
        text = self._data[self._at : self._at + size]
        self._at += size
        return text.decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        if kind == STRING:
            return self._text()
        if kind != ARRAY:
            raise ValueError(f"a value is of the type {kind}, which there is not")
        of = self._number("I")
        count = self._count()
        if of == STRING:
            for _ in range(count):
                size = self._count()
                self._at += size
            return None
        if of not in SCALARS:
            raise ValueError(f"an array is of the type {of}, which there is not")
        size = count * struct.calcsize(f"<{SCALARS[of]}")
        self._fits(size)
        begin = self._at
        self._at += size
        if count > MOST_KEPT:
            return None
        return list(struct.unpack_from(f"<{count}{SCALARS[of]}", self._data, begin))

    def _tensor(self) -> StoredTensor:
        name = self._text()
        dimensions = self._number("I")
        if dimensions > 8:
            raise ValueError(f"a tensor has {dimensions} dimensions")
        sides = [int(self._number("Q")) for _ in range(dimensions)]
        kind = self._number("I")
        self._number("Q")
        numbers = math.prod(sides)
        if numbers > MOST_SIDE:
            raise ValueError(f"a tensor has {numbers:,} numbers")
        if kind not in TYPES:
            raise ValueError(f"a tensor is of the type {kind}, which is not known here")
        block, size = TYPES[kind]
        return StoredTensor(name, numbers, math.ceil(numbers / block) * size)
