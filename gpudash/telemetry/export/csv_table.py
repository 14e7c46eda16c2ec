"""A recording as one CSV table of readings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from gpudash.telemetry.export import measured
from gpudash.telemetry.recording.reading import ReadingRow, Recording

CSV_COLUMNS = ("time_s", "table", "device", "metric", "value", "state", "pid")

_QUOTED = frozenset(',"\r\n')
"""Characters that put a field into quotes (RFC 4180). Python's writer leaves a lone carriage return bare before 3.13,
and its reader then ends the row there."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
"""With one of these at its beginning a cell is a formula to programs that calculate with tables; an apostrophe is the
mark that it is none."""

_NUMBER = re.compile(r"[+-](?:[\d., ]*\d(?:e[+-]?\d+)?|inf|nan)(?: [\w%/·]+)*\Z")
"""A number with its sign, perhaps in words: "-3", "+4.00 MiB"."""

Passing = Callable[[Iterable[Any]], Iterator[Any]]
"""Passes rows on while it counts them."""


def write(recording: Recording, file: TextIO, passing: Passing) -> None:
    """Write the header and every reading."""
    file.write(f"{','.join(CSV_COLUMNS)}\n")
    file.writelines(f"{','.join(map(_field, _cells(row)))}\n" for row in passing(measured.rows(recording)))


def harmless(text: str) -> str:
    """``text`` as a cell that no program takes for a formula: names are not ours, and ``=HYPERLINK(…)`` is one.

    A text that begins as formulas do has an apostrophe before it, which such programs take for "this is text"; so has
    one that begins with an apostrophe, so that what was added can be told. Numbers stay numbers.
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.match(text) else text


def _cells(row: ReadingRow) -> tuple[object, ...]:
    return row.time_s, row.table, row.device, row.metric, row.value, row.state, row.pid


def _field(value: object) -> str:
    """A field; the text of a float is the shortest that reads back as the same."""
    text = "" if value is None else harmless(value) if isinstance(value, str) else str(value)
    return text if _QUOTED.isdisjoint(text) else '"' + text.replace('"', '""') + '"'
