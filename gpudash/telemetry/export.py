"""Writes a recording in formats other programs read."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TextIO

from gpudash.telemetry import schema
from gpudash.telemetry.reading import ReadingRow, Recording
from gpudash.telemetry.recorder import RecordingError
from gpudash.telemetry.records import RunStarted, StepFinished, Transfer, plain
from gpudash.telemetry.runs import RUN_METRICS

CSV_COLUMNS = ("time_s", "table", "device", "metric", "value", "state", "pid")


def export(recording: Recording, to: Literal["csv", "json"], out: Path, force: bool = False) -> None:
    """Write ``recording`` to ``out``, whole or not at all.

    csv: one row a reading (`CSV_COLUMNS`): session time in seconds, table, device, metric with its unit, value (empty
    for a gap), "ok" or why there is none, and the PID in the rows of a process. Loss, accuracy and throughput are the
    table "run", measured rates the table "transfer".
    json: one object with ``meta``, ``runs``, ``events`` and ``readings`` (each with ``time_s, table, device, values,
    states``); NaN and infinities are strings.

    Raises:
        RecordingError: when ``out`` exists and ``force`` is not given, or cannot be written.
    """
    if out.exists() and not force:
        raise RecordingError(f"{out} exists already; choose another name or add --force")
    if out.is_dir():
        raise RecordingError(f"{out} is a folder; name a file")
    write = {"csv": _write_csv, "json": _write_json}[to]
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            write(recording, file)
        temporary.replace(out)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordingError(f"{out} cannot be written ({reason}); choose another place") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _write_csv(recording: Recording, file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in schema.TABLES:
        writer.writerows(dataclasses.astuple(row) for row in recording.export_rows(table))
    writer.writerows(dataclasses.astuple(row) for row in _measured(recording))


def _measured(recording: Recording) -> Iterator[ReadingRow]:
    """What runs measured, as readings."""
    devices: dict[int | None, str] = {}
    for event in recording.events():
        if isinstance(event, RunStarted):
            devices[event.run_id] = event.device
        elif isinstance(event, StepFinished):
            device = devices.get(event.run_id)
            for name in RUN_METRICS:
                value = getattr(event, name)
                if value is not None:
                    yield ReadingRow(event.time_s, "run", device, name, value, "ok")
        elif isinstance(event, Transfer) and event.seconds > 0:
            name = f"{event.direction}_bytes_per_second"
            yield ReadingRow(
                event.time_s, "transfer", devices.get(event.run_id), name, event.bytes / event.seconds, "ok"
            )


def _write_json(recording: Recording, file: TextIO) -> None:
    """One document, written piece by piece: a long recording does not fit twice into memory."""
    file.write('{"meta": ')
    json.dump(dict(recording.meta), file)
    file.write(',\n"runs": ')
    json.dump([plain(dataclasses.asdict(run)) for run in recording.runs], file)
    file.write(',\n"events": ')
    _write_list((json.loads(event.to_json()) for event in recording.events()), file)
    file.write(',\n"readings": ')
    _write_list(_readings(recording), file)
    file.write("}\n")


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


def _write_list(items: Iterator[Any], file: TextIO) -> None:
    file.write("[")
    for number, item in enumerate(items):
        file.write(",\n" if number else "\n")
        json.dump(item, file, allow_nan=False)
    file.write("]")
