"""Addresses of functions in a running program, found without stopping it: by its memory maps and the ELF files.

Formats: proc_pid_maps(5), elf(5). Supports 64-bit little-endian programs.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpudash.system.foreign_files import open_regular

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NAMED = struct.Struct("<I")
"""The first field of a symbol: the offset of its name among the strings."""

_LITTLE_64 = b"\x7fELF\x02\x01"
_LOADED = 1
_DYNAMIC_SYMBOLS = 11
_FUNCTION = 2

COMPARED_BYTES = 64
"""How many bytes of a function must be the same in memory and in its file."""


class NoAddressError(Exception):
    """A function was not found: the end of a sentence that begins with the consequence."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapped region of a program's memory.

    Attributes:
        begins, ends: addresses.
        offset: offset in the file of its first byte.
        path: path of the file; "" if there is none.
    """

    begins: int
    ends: int
    offset: int
    path: str


def mappings(pid: int) -> list[Mapping]:
    """The memory maps of a process, by address.

    Raises:
        OSError: if they may not be read.
    """
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - no path of ours
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            first, _, last = fields[0].partition("-")
            path = ""
            if len(fields) > 5:
                path = fields[5]
            found.append(Mapping(int(first, 16), int(last, 16), int(fields[2], 16), path))
    return found


def addresses(
    pid: int, path: str, names: tuple[str, ...], opened: Path, mapped: list[Mapping] | None = None
) -> list[int]:
    """Addresses of functions exported by a mapped file, after comparing the memory there with the file.

    Args:
        path: path of the file in the memory maps.
        opened: path from which to read the file.
        mapped: the memory maps, if known already: reading them blocks a program that maps more memory.

    Raises:
        NoAddressError: if a function is missing, or the file has changed since it was mapped.
        PermissionError: if the program's memory may not be read.
        OSError: if the file cannot be read, or the program has ended.
    """
    if mapped is None:
        mapped = mappings(pid)
    places = [one for one in mapped if one.path == path]
    with _mapped_file(opened) as data, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - no path of ours
        try:
            # First offsets in the file, then where that part of it is mapped: a library's address varies.
            offsets = [_offset(data, name) for name in names]
        except (struct.error, IndexError):
            raise NoAddressError(f"{path} cannot be read as a library") from None
        found = []
        for name, offset in zip(names, offsets, strict=True):
            place = next((one for one in places if 0 <= offset - one.offset < one.ends - one.begins), None)
            if place is None:
                raise NoAddressError(f"{path} is not mapped as a library is")
            address = place.begins + offset - place.offset
            # A library upgraded since it was mapped is a different file of the same name.
            if os.pread(memory.fileno(), COMPARED_BYTES, address) != data[offset : offset + COMPARED_BYTES]:
                raise NoAddressError(f"the {name} in its memory is not the one of {path}, which was replaced since")
            found.append(address)
    return found


@contextmanager
def _mapped_file(path: Path) -> Iterator[mmap.mmap]:
    with open_regular(path) as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise NoAddressError(f"{path} is empty") from None
        with data:
            yield data


def _offset(data: mmap.mmap, name: str) -> int:
    """Offset in the file of an exported function."""
    if data[: len(_LITTLE_64)] != _LITTLE_64:
        raise NoAddressError("it is no program of 64 bits")
    header = _HEADER.unpack_from(data)
    segments_at, sections_at, segments, sections = header[4], header[5], header[9], header[11]
    table = [_SECTION.unpack_from(data, sections_at + number * _SECTION.size) for number in range(sections)]
    for _, kind, _, _, begins, size, linked, *_ in table:
        # The table of exported symbols; the table of all symbols is often stripped.
        if kind != _DYNAMIC_SYMBOLS:
            continue
        # `sh_link` of a symbol table is the section with its strings (elf(5)).
        strings = table[linked][4]
        strings_end = strings + table[linked][5]
        # A name that is the end of another one is only stored there.
        for written in _found(data, name.encode() + b"\0", strings, strings_end):
            for symbol in _found(data, _NAMED.pack(written - strings), begins, begins + size):
                # The match was not at the start of a symbol.
                if (symbol - begins) % _SYMBOL.size:
                    continue
                _, info, _, section, value, _ = _SYMBOL.unpack_from(data, symbol)
                # Section 0 means that the library imports the function.
                if not section or info & 0xF != _FUNCTION:
                    continue
                for number in range(segments):
                    one = _SEGMENT.unpack_from(data, segments_at + number * _SEGMENT.size)
                    # From the address that the library is linked for to the offset in the file, by the segment that
                    # contains it.
                    if one[0] == _LOADED and one[3] <= value < one[3] + one[5]:
                        return int(one[2] + value - one[3])
    raise NoAddressError(f"no {name} is found in it")


def _found(data: mmap.mmap, piece: bytes, begins: int, ends: int) -> Iterator[int]:
    """Positions of a byte string in part of a file: there are too many symbols to check one by one."""
    at = data.find(piece, begins, ends)
    while at >= 0:
        yield at
        at = data.find(piece, at + 1, ends)
