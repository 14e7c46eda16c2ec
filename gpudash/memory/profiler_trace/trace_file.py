"""The events of a trace file, one after another: JSON that is never in memory as a whole.

torch.profiler writes an object whose ``traceEvents`` is a list of millions of small objects, compressed where the
file's name ends in ``.gz`` (Kineto, libkineto/src/output_json.cpp). Everything else in it is short.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gpudash.system.foreign_files import NotRegularError, open_regular
from gpudash.system.foreign_text import name_of
from gpudash.units import GIB, MIB

GZIP = b"\x1f\x8b"

CHUNK = MIB
"""Bytes that are read, and characters that are parsed, at a time."""

LONGEST_VALUE = 4 * MIB
"""Characters of an event, or of another value of the file; those of real events have a few hundred."""

LONGEST_WORD = len("-Infinity")
"""Characters of the longest value that the parser takes or refuses as a whole, an escape of a character included."""

KEPT_FACTS = frozenset(("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "traceName"))

RECORD_AGAIN = "export it again with prof.export_chrome_trace"

Progress = Callable[[int, int], None]


class TraceError(ValueError):
    """A file is no trace of torch.profiler that can be read; one sentence."""


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """What reading may take, in bytes.

    Attributes:
        file_bytes: a larger file is not opened.
        expanded_bytes: of a compressed file, once it is expanded.
        memory_bytes: of the process that reads.
    """

    file_bytes: int = 16 * GIB
    expanded_bytes: int = 16 * GIB
    memory_bytes: int = 4 * GIB


class TraceFile:
    """A trace that is read once, from its begin to its end.

    Args:
        path: of a regular file.
        limits: of its size.
        progress: called with bytes read and the file's size, at most once a `CHUNK`.

    Raises:
        TraceError: it is no regular file, empty or too large.
        OSError: it cannot be read.

    Attributes:
        facts: what the file says beside its events, as far as it has been read: `KEPT_FACTS`.
        cut_off: whether it ended before its end; known behind the last event.
    """

    def __init__(self, path: Path, limits: TraceLimits | None = None, progress: Progress | None = None) -> None:
        self.name = name_of(path)
        self.facts: dict[str, Any] = {}
        self.cut_off = False
        self._limits = limits or TraceLimits()
        self._progress = progress
        try:
            self._file = open_regular(path)
        except (NotRegularError, IsADirectoryError) as error:
            raise TraceError(f"{self.name} cannot be read: {error.strerror}.") from None
        self._size = os.fstat(self._file.fileno()).st_size
        if self._size == 0 or self._size > self._limits.file_bytes:
            self._file.close()
            if self._size == 0:
                raise TraceError(f"{self.name} is empty: {RECORD_AGAIN}.")
            raise TraceError(
                f"{self.name} has {self._size:,} bytes, more than the {self._limits.file_bytes:,} that are opened: "
                "profile fewer steps."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """The events, in the order of the file; entries of the list that are no objects are left out.

        Raises:
            TraceError: what the file holds is not what torch.profiler writes, or a value of it is too long or deep.
            OSError: it cannot be read.
        """
        text = _Text(self._characters(), self.name)
        try:
            if text.next() != "{":
                raise TraceError(f"{self.name} is no JSON object, as a trace is: {RECORD_AGAIN}.")
            yield from self._of_object(text)
        except _CutOffError:
            self.cut_off = True

    def _of_object(self, text: _Text) -> Iterator[dict[str, Any]]:
        text.skip("{")
        while text.next() != "}":
            key = text.value()
            text.skip(":")
            if key == "traceEvents":
                yield from self._of_list(text)
            else:
                value = text.value()
                if key in KEPT_FACTS:
                    self.facts[key] = value
            if text.next() == ",":
                text.skip(",")

    def _of_list(self, text: _Text) -> Iterator[dict[str, Any]]:
        text.skip("[")
        while text.next() != "]":
            event = text.value()
            if isinstance(event, dict):
                yield event
            if text.next() == ",":
                text.skip(",")
        text.skip("]")

    def _characters(self) -> Iterator[str]:
        """The text of the file in pieces, expanded where it is compressed; it ends where the file is cut off."""
        read: Callable[[int], bytes] = self._file.read
        if self._file.read(2) == GZIP:
            # Unlike `read` it returns what there is before it says that the end is missing.
            read = gzip.GzipFile(fileobj=self._file, mode="rb").read1
        self._file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        left, reported = self._limits.expanded_bytes, 0
        while chunk := self._expanded(read):
            left -= len(chunk)
            if left < 0:
                raise TraceError(
                    f"{self.name} expands to more than the {self._limits.expanded_bytes:,} bytes that are opened: "
                    "profile fewer steps."
                )
            done = self._file.tell()
            if self._progress is not None and done - reported >= CHUNK:
                reported = done
                self._progress(done, self._size)
            if piece := decoder.decode(chunk):
                yield piece

    def _expanded(self, read: Callable[[int], bytes]) -> bytes:
        try:
            return read(CHUNK)
        except EOFError:  # compressed data without its end
            return b""
        except (gzip.BadGzipFile, zlib.error):
            raise TraceError(f"{self.name} is damaged: copy it again.") from None


class _CutOffError(Exception):
    """The file ends in the middle of something."""


class _Text:
    """JSON of which only what is being parsed is in memory."""

    def __init__(self, pieces: Iterator[str], name: str) -> None:
        self._pieces = pieces
        self._name = name
        self._text = ""
        self._place = 0
        self._decode = json.JSONDecoder().raw_decode

    def next(self) -> str:
        """The next character that is no blank, which stays the next.

        Raises:
            _CutOffError: there is none.
        """
        while True:
            for place in range(self._place, len(self._text)):
                if not self._text[place].isspace():
                    self._place = place
                    return self._text[place]
            self._place = len(self._text)
            if not self._more():
                raise _CutOffError

    def skip(self, character: str) -> None:
        """Go behind a character that has to be the next."""
        found = self.next()
        if found != character:
            raise TraceError(f"{self._name} is no valid JSON ({found!r} where {character!r} belongs): {RECORD_AGAIN}.")
        self._place += 1

    def value(self) -> Any:
        """The value that begins here."""
        self.next()
        while True:
            try:
                found, end = self._decode(self._text, self._place)
            except RecursionError:
                raise TraceError(f"{self._name} holds values within values without end; it is no trace.") from None
            except ValueError as error:
                if not self._is_unfinished(error) or len(self._text) - self._place > LONGEST_VALUE:
                    raise TraceError(f"{self._name} is no valid JSON ({_reason(error)}): {RECORD_AGAIN}.") from None
                if not self._more():
                    raise _CutOffError from None
                continue
            # Digits at the end of what was read may go on in the next piece.
            if end == len(self._text) and self._more():
                continue
            self._place = end
            return found

    def _is_unfinished(self, error: ValueError) -> bool:
        """Whether the parser stopped at the end of what was read, or within a text that has no end yet."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.msg.startswith("Unterminated") or error.pos >= len(self._text) - LONGEST_WORD

    def _more(self) -> bool:
        """Read on, and let go of what lies behind; whether there was more."""
        piece = next(self._pieces, "")
        self._text = self._text[self._place :] + piece
        self._place = 0
        return bool(piece)


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "a number of thousands of digits"
