"""A recording as one Parquet table. Needs pyarrow, which is imported when it is used."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from gpudash.telemetry.export import measured
from gpudash.telemetry.export.csv_table import Passing
from gpudash.telemetry.reading import ReadingRow, Recording
from gpudash.telemetry.recorder import RecordingError
from gpudash.telemetry.records import plain

GROUP_ROWS = 100_000
"""Rows of a row group, which are in memory at one time: some tens of MB."""

METADATA = {"format": b"gpudash.format", "meta": b"gpudash.meta", "runs": b"gpudash.runs"}
"""Keys of the file's metadata: the layout's version, then JSON."""

LAYOUT = b"1"


def write(recording: Recording, path: Path, passing: Passing) -> None:
    """Write the rows of the CSV table and behind them the events, in row groups.

    Columns: ``time_s``, ``table``, ``device``, ``metric``, ``value`` (a number as a double, null for a gap and for
    text), ``integer`` (the same number exactly, where it is whole: bytes beyond 2^53 do not fit into a double),
    ``text`` (a value that is text), ``state`` and ``pid``. A row of the table "event" has the kind as its metric and
    the event as JSON in ``text``. The file's metadata holds meta and runs as JSON under `METADATA`.

    Raises:
        RecordingError: when pyarrow is missing.
        OSError: when the file cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise RecordingError(
            'Parquet needs pyarrow, which is not installed; run: pip install "gpudash[parquet]"'
        ) from None
    schema = _schema(pyarrow, recording)
    try:
        with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            rows = passing(_rows(recording))
            while group := list(islice(rows, GROUP_ROWS)):
                columns = zip(*group, strict=True)
                arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
    except pyarrow.ArrowException as error:
        raise OSError(f"pyarrow says: {error}") from None


def _schema(pyarrow: Any, recording: Recording) -> Any:
    name = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    metadata = {
        METADATA["format"]: LAYOUT,
        METADATA["meta"]: json.dumps(dict(recording.meta)),
        METADATA["runs"]: json.dumps([plain(dataclasses.asdict(run)) for run in recording.runs]),
    }
    return pyarrow.schema(
        [
            pyarrow.field("time_s", pyarrow.float64(), nullable=False),
            pyarrow.field("table", name, nullable=False),
            pyarrow.field("device", name),
            pyarrow.field("metric", name, nullable=False),
            pyarrow.field("value", pyarrow.float64()),
            pyarrow.field("integer", pyarrow.int64()),
            pyarrow.field("text", pyarrow.string()),
            pyarrow.field("state", name, nullable=False),
            pyarrow.field("pid", pyarrow.int64()),
        ],
        metadata,
    )


def _rows(recording: Recording) -> Iterator[tuple[Any, ...]]:
    yield from map(_cells, measured.rows(recording))
    for event in recording.events():
        yield event.time_s, "event", None, event.kind, None, None, event.to_json(), "ok", None


def _cells(row: ReadingRow) -> tuple[Any, ...]:
    value = row.value
    number = float(value) if isinstance(value, int | float) else None
    integer = value if isinstance(value, int) else None
    text = value if isinstance(value, str) else None
    return row.time_s, row.table, row.device, row.metric, number, integer, text, row.state, row.pid
