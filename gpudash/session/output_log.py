"""What a watched program prints, as lines for people: the newest ones, bounded."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

Stream = Literal["stdout", "stderr"]

MOST_LINES = 20_000
"""Lines that are kept; the oldest go."""

MOST_BYTES = 16 * 2**20
"""Of the lines kept, together."""

LONGEST_LINE = 4096
"""Bytes of a line that are kept; the rest of it is left out."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Control sequences of terminals (ECMA-48): colours, cursor movements, titles."""

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class OutputLine(NamedTuple):
    """One line that was printed, without its end."""

    stream: Stream
    text: str


class OutputLog:
    """Lines of the newest program, numbered since the session began. Any thread may add and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[OutputLine] = deque()
        self._bytes = 0
        self._first = 0
        self._begin = 0
        self._unread = 0

    def begin(self) -> None:
        """Another program begins: the lines of the one before go."""
        with self._lock:
            self._first += len(self._lines)
            self._begin, self._unread, self._bytes = self._first, 0, 0
            self._lines.clear()

    def add(self, lines: Sequence[OutputLine]) -> None:
        """Take in lines that were printed."""
        with self._lock:
            self._lines.extend(lines)
            self._bytes += sum(len(line.text) for line in lines)
            while len(self._lines) > MOST_LINES or self._bytes > MOST_BYTES:
                self._bytes -= len(self._lines.popleft().text)
                self._first += 1

    def leave_out(self, count: int) -> None:
        """Lines were printed that nobody could read in time."""
        with self._lock:
            self._unread += count

    def since(self, number: int) -> tuple[tuple[OutputLine, ...], int, int]:
        """Lines from ``number`` on.

        Returns:
            The lines that are still kept, the number to ask for next, and how many are missing before the first of
            them: those that had to go since ``number``.
        """
        with self._lock:
            start = max(number, self._first)
            kept = tuple(self._lines[place] for place in range(start - self._first, len(self._lines)))
            return kept, self._first + len(self._lines), max(0, self._first - max(number, self._begin))

    def newest(self, count: int) -> tuple[OutputLine, ...]:
        """The last ``count`` lines that are kept."""
        with self._lock:
            whole = len(self._lines)
            return tuple(self._lines[place] for place in range(max(0, whole - count), whole))

    @property
    def left_out(self) -> int:
        """Lines of this program that are not kept any more, or never were."""
        with self._lock:
            return self._first - self._begin + self._unread


class LineCutter:
    """Cuts what one stream brings into lines as a terminal shows them: what a carriage return overwrites goes."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._begun = b""

    def feed(self, data: bytes) -> list[OutputLine]:
        """The lines that are whole now."""
        *whole, begun = (self._begun + data).split(b"\n")
        if b"\r" in begun:
            last = begun.rstrip(b"\r").rpartition(b"\r")[2]
            begun = last + b"\r" if begun.endswith(b"\r") else last
        self._begun = begun[:LONGEST_LINE]
        return [OutputLine(self._stream, shown(line)) for line in whole]

    def end(self) -> list[OutputLine]:
        """What was begun when the stream ended."""
        begun, self._begun = self._begun, b""
        return [OutputLine(self._stream, shown(begun))] if begun.strip(b"\r") else []


def shown(line: bytes) -> str:
    """A line as people read it: no control sequences, no control characters, of a bounded length."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2][:LONGEST_LINE].decode("utf-8", "replace")
    if text.isprintable():
        return text
    return _UNSEEN.sub("", _ESCAPES.sub("", text))
