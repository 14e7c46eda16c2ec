"""The bytes of a pickle, some of them at a time."""

from __future__ import annotations

import struct

from gpudash.memory.snapshot.model import SnapshotError
from gpudash.memory.snapshot.source import Source
from gpudash.units import MIB

CHUNK = MIB
AHEAD = 16
"""No opcode that is obeyed without asking for its bytes has more."""


class ByteReader:
    """A window on the bytes; behind the file's end follow zeros, which no pickle goes on with.

    Attributes:
        data: the window.
        place: of the next byte in it.
        refill_at: from here on the window has to be moved before an opcode is looked at.
    """

    def __init__(self, source: Source, longest: int) -> None:
        self._name, self._stream, self._longest = source.name, source.stream, longest
        self._before = 0
        self._ended = False
        self.data = b""
        self.place = self.refill_at = 0
        self._end = 0

    @property
    def position(self) -> int:
        """Of the next byte in the file."""
        return self._before + self.place

    @property
    def at_end(self) -> bool:
        """Whether all bytes of the file have been taken."""
        return self._ended and self.place >= self._end

    def check_end(self) -> None:
        """See to it that no byte was taken that the file does not have.

        Raises:
            EOFError: one was.
        """
        if self._ended and self.place > self._end:
            raise EOFError

    def refill(self, wanted: int = CHUNK) -> None:
        """Move the window on.

        Raises:
            EOFError: there is nothing more.
        """
        rest = self.data[self.place : self._end]
        if self._ended and not rest:
            raise EOFError
        more = b"" if self._ended else self._stream.read(max(CHUNK, wanted))
        self._ended = self._ended or not more
        self._before += self.place
        whole = rest + more
        self._end, self.place = len(whole), 0
        self.data = whole + bytes(AHEAD) if self._ended else whole
        self.refill_at = self._end if self._ended else max(1, self._end - AHEAD)

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            EOFError: there are not as many.
            SnapshotError: it is more than a text may have.
        """
        if count > self._longest:
            raise SnapshotError(
                f"{self._name} is not a memory snapshot: it holds a text of {count:,} bytes, longer than any name."
            )
        while self.place + count > self._end:
            if self._ended:
                raise EOFError
            self.refill(count)
        found = self.data[self.place : self.place + count]
        self.place += count
        return found

    def line(self) -> bytes:
        """The bytes up to the next line feed, without it.

        Raises:
            EOFError: there is none.
            SnapshotError: it is further than a text may reach.
        """
        while (found := self.data.find(b"\n", self.place, self._end)) < 0:
            if self._ended:
                raise EOFError
            if self._end - self.place > self._longest:
                raise SnapshotError(f"{self._name} is not a memory snapshot: it holds a line without end.")
            self.refill()
        line = self.data[self.place : found]
        self.place = found + 1
        return line


def names_of(reader: ByteReader) -> tuple[str, str]:
    """Module and name of a global, each on a line of its own."""
    return reader.line().decode(errors="replace"), reader.line().decode(errors="replace")


def signed(data: bytes) -> int:
    """The integer that the bytes are."""
    return int.from_bytes(data, "little", signed=True)


def float_at(data: bytes) -> float:
    """The number that eight bytes are."""
    number: float = struct.unpack(">d", data)[0]
    return number
