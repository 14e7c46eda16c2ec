"""Where functions of a running program lie in its memory, told without stopping it: by its maps, and the ELF files.

Formats: proc_pid_maps(5), elf(5). Programs of 64 bits, little-endian.
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
"""The first field of a symbol: where its name lies among the strings."""

_LITTLE_64 = b"\x7fELF\x02\x01"
_LOADED = 1
_DYNAMIC_SYMBOLS = 11
_FUNCTION = 2

COMPARED_BYTES = 64
"""Of a function, which have to be in memory as they are in its file."""


class NoAddressError(Exception):
    """A function is not found: the end of a sentence that begins with what follows from it."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A stretch of a program's memory.

    Attributes:
        begins, ends: addresses.
        offset: of its first byte in the file.
        path: of the file; "" where there is none.
    """

    begins: int
    ends: int
    offset: int
    path: str


def mappings(pid: int) -> list[Mapping]:
    """What a process has mapped, by address.

    Raises:
        OSError: when it may not be looked at.
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
    """Addresses of functions that a mapped file exports; what lies there is compared with the file.

    Args:
        path: of the file, as the maps have it.
        opened: where the file is read.
        mapped: what the process has mapped, where that is known already: reading it holds up a program that maps more.

    Raises:
        NoAddressError: when one is not there, or the file is no longer what was mapped.
        PermissionError: when the program's memory may not be read.
        OSError: when the file cannot be read, or the program is gone.
    """
    if mapped is None:
        mapped = mappings(pid)
    places = [one for one in mapped if one.path == path]
    with _mapped_file(opened) as data, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - no path of ours
        try:
            # Offsets in the file first, then where that part of the file is mapped: a library lies at another address
            # each time.
            offsets = [_offset(data, name) for name in names]
        except (struct.error, IndexError):
            raise NoAddressError(f"{path} cannot be read as a library") from None
        found = []
        for name, offset in zip(names, offsets, strict=True):
            place = next((one for one in places if 0 <= offset - one.offset < one.ends - one.begins), None)
            if place is None:
                raise NoAddressError(f"{path} is not mapped as a library is")
            address = place.begins + offset - place.offset
            # a library that was upgraded since it was mapped is another file under the same name
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
    """Place in the file of a function that it exports."""
    if data[: len(_LITTLE_64)] != _LITTLE_64:
        raise NoAddressError("it is no program of 64 bits")
    header = _HEADER.unpack_from(data)
    segments_at, sections_at, segments, sections = header[4], header[5], header[9], header[11]
    table = [_SECTION.unpack_from(data, sections_at + number * _SECTION.size) for number in range(sections)]
    for _, kind, _, _, begins, size, linked, *_ in table:
        # the table of exported symbols; the one of all symbols is often stripped
        if kind != _DYNAMIC_SYMBOLS:
            continue
        # `sh_link` of a symbol table names the section with its strings (elf(5)).
        strings = table[linked][4]
        strings_end = strings + table[linked][5]
        # a linker writes a name that ends another nowhere else
        for written in _found(data, name.encode() + b"\0", strings, strings_end):
            for symbol in _found(data, _NAMED.pack(written - strings), begins, begins + size):
                # the number was found in the midst of a symbol
                if (symbol - begins) % _SYMBOL.size:
                    continue
                _, info, _, section, value, _ = _SYMBOL.unpack_from(data, symbol)
                # section 0 is of a function that the library itself looks for elsewhere
                if not section or info & 0xF != _FUNCTION:
                    continue
                for number in range(segments):
                    one = _SEGMENT.unpack_from(data, segments_at + number * _SEGMENT.size)
                    # from the address that the library is linked for to the place in the file, by the segment
                    # that holds it
                    if one[0] == _LOADED and one[3] <= value < one[3] + one[5]:
                        return int(one[2] + value - one[3])
    raise NoAddressError(f"no {name} is found in it")


def _found(data: mmap.mmap, piece: bytes, begins: int, ends: int) -> Iterator[int]:
    """Where a piece lies within a part of a file: symbols are too many to be looked at one by one."""
    at = data.find(piece, begins, ends)
    while at >= 0:
        yield at
        at = data.find(piece, at + 1, ends)
