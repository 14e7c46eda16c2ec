"""What runs measured, in the form of readings."""

from __future__ import annotations

from collections.abc import Iterator

from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.reading import ReadingRow, Recording
from gpudash.telemetry.records import RunStarted, StepFinished, Transfer
from gpudash.telemetry.runs import RUN_METRICS


def rows(recording: Recording) -> Iterator[ReadingRow]:
    """Every reading, one metric a row, table after table; behind them what the runs measured."""
    for table in schema.TABLES:
        yield from recording.export_rows(table)
    yield from _of_runs(recording)


def _of_runs(recording: Recording) -> Iterator[ReadingRow]:
    """Loss, accuracy and throughput as the table "run", rates of copies as the table "transfer"."""
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
            rate = event.bytes / event.seconds
            yield ReadingRow(event.time_s, "transfer", devices.get(event.run_id), name, rate, "ok")
