"""A recording as one CSV table of readings, or as one JSON document."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from gpudash.system.foreign_text import harmless
from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.reading import ReadingRow, Recording
from gpudash.telemetry.records import RunStarted, StepFinished, Transfer, plain

CSV_COLUMNS = ("time_s", "table", "device", "metric", "value", "state", "pid")

Passing = Callable[[Iterable[Any]], Iterator[Any]]
"""Passes rows on while counting them."""


def write_csv(recording: Recording, file: TextIO, passing: Passing) -> None:
    """Write the recording as one CSV table: the header and every reading."""
    # It writes the shortest text of a float that reads back as the same number.
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows(map(_cells, passing(measured_rows(recording))))


def _cells(row: ReadingRow) -> list[object]:
    cells = (row.time_s, row.table, row.device, row.metric, row.value, row.state, row.pid)
    return [harmless(cell) if isinstance(cell, str) else cell for cell in cells]


def measured_rows(recording: Recording) -> Iterator[ReadingRow]:
    """Every reading, one metric a row, table by table; then the measurements of the runs."""
    for table in schema.TABLES:
        yield from recording.export_rows(table)
    yield from _of_runs(recording)


def _of_runs(recording: Recording) -> Iterator[ReadingRow]:
    """Losses, accuracy and throughput as the table "run", copy rates as the table "transfer"."""
    devices: dict[int | None, str] = {}
    for event in recording.events():
        if isinstance(event, RunStarted):
            devices[event.run_id] = event.device
        elif isinstance(event, StepFinished):
            device = devices.get(event.run_id)
            for name, value in event.metrics():
                yield ReadingRow(event.time_s, "run", device, name, value, "ok")
        elif isinstance(event, Transfer) and event.seconds > 0:
            name = f"{event.direction}_bytes_per_second"
            rate = event.bytes / event.seconds
            yield ReadingRow(event.time_s, "transfer", devices.get(event.run_id), name, rate, "ok")


def write_json(recording: Recording, file: TextIO, passing: Passing) -> None:
    """Write the recording as one JSON document, piece by piece, since a long recording may not fit in memory twice."""
    file.write('{"meta": ')
    json.dump(dict(recording.meta), file)
    file.write(',\n"runs": ')
    json.dump([plain(dataclasses.asdict(run)) for run in recording.runs], file, allow_nan=False)
    file.write(',\n"events": ')
    write_list(passing(json.loads(event.to_json()) for event in recording.events()), file)
    file.write(',\n"readings": ')
    write_list(passing(_readings(recording)), file)
    file.write("}\n")


def write_list(items: Iterable[Any], file: TextIO) -> None:
    """Write a JSON list, one item a line."""
    file.write("[")
    for number, item in enumerate(items):
        file.write(",\n" if number else "\n")
        json.dump(item, file, allow_nan=False)
    file.write("]")


def _readings(recording: Recording) -> Iterator[dict[str, Any]]:
    for table in schema.TABLES:
        for sample in recording.samples(table):
            yield {
                "time_s": sample.time_s,
                "table": table,
                "device": sample.device,
                "values": plain(sample.values),
                "states": {name: state.value for name, state in sample.states.items()},
            }
