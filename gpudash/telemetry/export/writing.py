"""Writes a recording to another file, whole or not at all.

Contains the Parquet format; pyarrow is imported on use.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from gpudash.system.files import written_whole
from gpudash.telemetry.export import trace
from gpudash.telemetry.export.tables import Passing, measured_rows, write_csv, write_json
from gpudash.telemetry.recording.reading import ReadingRow, Recording
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import plain

DataFormat = Literal["csv", "json", "parquet", "trace"]
"""Formats for the recorded data; pictures and reports are drawn elsewhere."""

OnProgress = Callable[[int], None]
"""Callback with the number of rows written, every few thousand and at the end; an exception stops the export and
removes the partial file."""

PROGRESS_ROWS = 2000

T = TypeVar("T")


def export(
    recording: Recording, to: DataFormat, out: Path, force: bool = False, on_progress: OnProgress | None = None
) -> None:
    """Write ``recording`` to ``out``, whole or not at all.

    csv: one row for each reading (`CSV_COLUMNS`): session time in seconds, table, device, metric with its unit, value
    (empty for a gap), "ok" or the reason for a gap, and the PID in rows of a process. Loss, accuracy and throughput
    are in the table "run", measured rates in the table "transfer".
    json: one object with ``meta``, ``runs``, ``events`` and ``readings`` (each with ``time_s, table, device, values,
    states``); NaN and infinities are strings.
    parquet: see `write_parquet`. trace: see `trace.write`.

    Raises:
        RecordingError: if ``out`` exists without ``force``, is the recording itself, or cannot be written; or if a
            required package is missing.
    """
    if to not in get_args(DataFormat):
        raise ValueError(f"{to} is no format of data")
    counted = CountedRows(on_progress)
    with atomically(out, recording.path, force) as part:
        if to == "parquet":
            write_parquet(recording, part, counted.rows)
        else:
            write = {"csv": write_csv, "json": write_json, "trace": trace.write}[to]
            with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                write(recording, file, counted.rows)
        counted.report()


@contextmanager
def atomically(out: Path, source: Path | None = None, force: bool = False) -> Iterator[Path]:
    """A file beside ``out`` that replaces it when the block succeeds, and is deleted when it fails.

    Args:
        out: the final file.
        source: the file that is read meanwhile; never replaced.
        force: whether ``out`` may exist.

    Raises:
        RecordingError: in one sentence, if ``out`` cannot or must not be written.
    """
    try:
        _check(out, source, force)
        with written_whole(out) as part:
            yield part
    except OSError as error:
        raise RecordingError(f"{out} cannot be written ({error.strerror or error}); choose another place") from None


def _check(out: Path, source: Path | None, force: bool) -> None:
    if out.is_dir():
        raise RecordingError(f"{out} is a folder; name a file")
    if out.exists() and not out.is_file():
        raise RecordingError(f"{out} is a device or a pipe, which a file would replace; name a file")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise RecordingError(f"{out} is the recording itself; choose another name")
    if out.exists() and not force:
        raise RecordingError(f"{out} exists already; choose another name or add --force")
    if not out.parent.is_dir():
        raise RecordingError(f"{out} cannot be written (the folder {out.parent} does not exist); choose another place")


class CountedRows:
    """Passes rows on and reports their number from time to time."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._count = 0

    def rows(self, items: Iterable[T]) -> Iterator[T]:
        """``items``, counted as they are consumed."""
        for item in items:
            self._count += 1
            if self._count % PROGRESS_ROWS == 0:
                self.report()
            yield item

    def report(self) -> None:
        """Report the number so far."""
        if self._on_progress is not None:
            self._on_progress(self._count)


GROUP_ROWS = 100_000
"""Rows of a row group, which is in memory as a whole: some tens of MB."""

METADATA = {"format": b"gpudash.format", "meta": b"gpudash.meta", "runs": b"gpudash.runs"}
"""Keys of the file's metadata: the layout's version, then JSON."""

LAYOUT = b"1"


def write_parquet(recording: Recording, path: Path, passing: Passing) -> None:
    """Write the rows of the CSV table and then the events, in row groups.

    Columns: ``time_s``, ``table``, ``device``, ``metric``, ``value`` (a number as a double, null for a gap or text),
    ``integer`` (the same number exactly if it is whole, since bytes beyond 2^53 do not fit in a double), ``text`` (a
    value that is text), ``state`` and ``pid``. A row of the table "event" has the kind as its metric and the event as
    JSON in ``text``. The file's metadata holds meta and runs as JSON under `METADATA`.

    Raises:
        RecordingError: if pyarrow is missing.
        OSError: if the file cannot be written.
    """
    pyarrow = _pyarrow()
    from pyarrow import parquet

    schema = _schema(pyarrow, recording)
    try:
        with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for table in _tables(pyarrow, schema, recording, passing):
                writer.write_table(table)
    except pyarrow.ArrowException as error:
        raise OSError(f"pyarrow says: {error}") from None


def arrow_table(recording: Recording) -> Any:
    """The same as a ``pyarrow.Table``.

    Raises:
        RecordingError: if pyarrow is missing.
    """
    pyarrow = _pyarrow()
    schema = _schema(pyarrow, recording)
    tables = list(_tables(pyarrow, schema, recording, iter))
    if not tables:
        return schema.empty_table()
    # Each group has its own dictionary for the same strings.
    return pyarrow.concat_tables(tables).unify_dictionaries()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise RecordingError(
            'Parquet needs pyarrow, which is not installed; run: pip install "gpudash[parquet]"'
        ) from None
    return pyarrow


def _tables(pyarrow: Any, schema: Any, recording: Recording, passing: Passing) -> Iterator[Any]:
    """The rows in groups, so that a long recording is never in memory as Python objects."""
    rows = passing(_rows(recording))
    while group := list(islice(rows, GROUP_ROWS)):
        columns = zip(*group, strict=True)
        arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        yield pyarrow.Table.from_arrays(arrays, schema=schema)


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
    yield from map(_cells, measured_rows(recording))
    for event in recording.events():
        yield event.time_s, "event", None, event.kind, None, None, event.to_json(), "ok", None


def _cells(row: ReadingRow) -> tuple[Any, ...]:
    value = row.value
    number = None
    if isinstance(value, int | float):
        number = float(value)
    integer = None
    if isinstance(value, int):
        integer = value
    text = None
    if isinstance(value, str):
        text = value
    return row.time_s, row.table, row.device, row.metric, number, integer, text, row.state, row.pid
