"""A recording as one CSV table of readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from gpudash.telemetry.export import measured
from gpudash.telemetry.recording.reading import ReadingRow, Recording

CSV_COLUMNS = ("time_s", "table", "device", "metric", "value", "state", "pid")

_QUOTED = frozenset(',"\r\n')
"""Characters that put a field into quotes (RFC 4180). Python's writer leaves a lone carriage return bare before 3.13,
and its reader then ends the row there."""

Passing = Callable[[Iterable[Any]], Iterator[Any]]
"""Passes rows on while it counts them."""


def write(recording: Recording, file: TextIO, passing: Passing) -> None:
    """Write the header and every reading."""
    file.write(f"{','.join(CSV_COLUMNS)}\n")
    file.writelines(f"{','.join(map(_field, _cells(row)))}\n" for row in passing(measured.rows(recording)))


def _cells(row: ReadingRow) -> tuple[object, ...]:
    return row.time_s, row.table, row.device, row.metric, row.value, row.state, row.pid


def _field(value: object) -> str:
    """A field; the text of a float is the shortest that reads back as the same."""
    text = "" if value is None else str(value)
    return text if _QUOTED.isdisjoint(text) else '"' + text.replace('"', '""') + '"'
