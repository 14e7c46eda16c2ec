"""A recording of ten million rows, as a session of a day and a half at 20 readings a second would have written it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.recorder import PageWriter
from gpudash.telemetry.records import Note, RunStarted, StepFinished
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store

TICK_S = 0.05
GPU = "GPU-0"
ROWS_A_TICK = 4
TICKS_A_PAGE = 1024
MOST_DIGEST_STEPS = 1024

_FACTS = {"nvml_index": 0, "uuid": GPU, "pci_bus_id": "41:00.0", "product": "NVIDIA X", "total_bytes": 24 * 2**30}


def make(path: Path, rows: int) -> None:
    """Write ``rows`` rows, rounded to whole pages, through the real schema and the real writer of summaries."""
    pages = rows // ROWS_A_TICK // TICKS_A_PAGE
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        for statement in schema.statements():
            connection.execute(statement)
        meta = {"format_version": schema.FORMAT_VERSION, "status": "closed"}
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("INSERT INTO run VALUES (1, 'training', '{}', 'running', 0.0, NULL)")
        started = RunStarted(time_s=0.0, run_id=1, workload="training", device="cuda:0", spec={})
        names = {"gpus": [_FACTS], "torch_names": {"cuda:0": GPU}}
        for event in (Note(time_s=0.0, topic="gpus", text="", details=names), started):
            row = (event.time_s, event.run_id, event.kind, event.to_json())
            connection.execute("INSERT INTO event VALUES (?, ?, ?, ?)", row)
        writer, run = PageWriter(Store()), RunView.of(started)
        for step in range(1, MOST_DIGEST_STEPS):
            run.apply(StepFinished(time_s=step * TICK_S, run_id=1, step=step, steps=10**7, seconds=TICK_S, loss=1.0))
        text = run.digest()
        for page in range(pages):
            connection.execute("BEGIN")
            _page(connection, writer, page, text)
            connection.execute("COMMIT")


def _page(connection: sqlite3.Connection, writer: PageWriter, page: int, text: str) -> None:
    ticks = np.arange(page * TICKS_A_PAGE, (page + 1) * TICKS_A_PAGE)
    times = ticks * TICK_S
    wave = ((1 + np.sin(times / 700)) * 4e9 + (ticks * 7919 % 4099) * 1e5).astype(np.int64)
    loss = 4.0 / np.sqrt(1 + times) + (ticks % 97) / 1000
    columns = {
        "host": {"total_bytes": wave * 0 + 64 * 2**30, "used_bytes": wave * 2, "process_bytes": wave},
        "gpu": {"used_bytes": wave + 10**9, "total_bytes": wave * 0 + 24 * 2**30, "process_bytes": wave + 10**8},
        "allocator": {"allocated_bytes": wave // 2, "reserved_bytes": wave},
    }
    devices = {"host": None, "gpu": GPU, "allocator": "cuda:0"}
    samples = {}
    for table, there in columns.items():
        lists = {name: values.tolist() for name, values in there.items()}
        names = ", ".join(("time_s", "device", *lists))
        insert = f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * (len(lists) + 2))})"
        device = devices[table]
        connection.executemany(insert, zip(times.tolist(), [device] * len(ticks), *lists.values(), strict=True))
        for name, values in there.items():
            samples[table, name, device] = times, values.astype(float)
    connection.executemany("INSERT INTO event VALUES (?, 1, 'StepFinished', ?)", _steps(ticks, times, loss))
    samples["run", "loss", None] = times, loss
    bands = {
        "allocated": wave // 2,
        "idle": wave - wave // 2,
        "context": wave * 0 + 10**8,
        "other": wave * 0 + 9 * 10**8,
    }
    samples.update({("gpu", f"{name}_bytes", GPU): (times, band.astype(float)) for name, band in bands.items()})
    samples["host", "others_bytes", None] = times, wave.astype(float)
    done = (page + 1) * TICKS_A_PAGE
    rows = dict.fromkeys(schema.TABLES, 0) | dict.fromkeys(columns, done) | {"event": done + 2}
    writer.write(connection, float(times[-1]), rows, samples)
    writer.write_digest(connection, done + 2, 1, text)


def _steps(ticks: np.ndarray, times: np.ndarray, loss: np.ndarray) -> Iterator[tuple[float, str]]:
    for tick, time_s, value in zip(ticks.tolist(), times.tolist(), loss.tolist(), strict=True):
        fields = {"kind": "StepFinished", "time_s": time_s, "run_id": 1, "step": tick + 1, "steps": 10**7}
        yield time_s, json.dumps({**fields, "seconds": TICK_S, "loss": value})
