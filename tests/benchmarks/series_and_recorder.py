"""Cost of keeping a reading: in memory, and on disk; and what a kill costs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Sample
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import Store

ROWS = 50_000
WINDOWS = 200
COLUMNS = 800
TICK_S = 0.05
GPU_ROW = {metric.name: 12_345_678 for metric in METRICS["gpu"]}

KILLED = """
import sys
from pathlib import Path
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Sample
recorder = Recorder(Path(sys.argv[1]), meta={})
number = 0
while True:
    for _ in range(10):
        recorder.add(Sample(number * 0.05, "host", None, {"used_bytes": number}))
        number += 1
    recorder.commit()
    print(number, flush=True)
"""


def series() -> dict[str, float]:
    """`append_us` a sample; `window_us` at a million samples, live, and over that at ten thousand."""
    figures: dict[str, float] = {}
    for name, count in (("ten_thousand", 10_000), ("million", 1_000_000)):
        kept = Series()
        began = time.perf_counter()
        for i in range(count):
            kept.append(i * TICK_S, float(i % 97))
        figures["append_us"] = (time.perf_counter() - began) / count * 1e6
        began = time.perf_counter()
        for i in range(count, count + WINDOWS):
            kept.append(i * TICK_S, 1.0)
            kept.window(0.0, i * TICK_S, COLUMNS)
        figures[f"window_us_{name}"] = (time.perf_counter() - began) / WINDOWS * 1e6
    figures["window_million_over_ten_thousand"] = figures["window_us_million"] / figures["window_us_ten_thousand"]
    return figures


def recorder() -> dict[str, float]:
    """`row_us` a row of a GPU with a commit a second; `over_bare` times a bare insert; `lost_rows` by ``kill -9``.

    `summarised_us` is a row with its part of the summaries, and its way into the store, which they are made of.
    """
    with tempfile.TemporaryDirectory() as folder:
        written = Recorder(Path(folder) / "rows.gpudash", meta={})
        began = time.perf_counter()
        for i in range(ROWS):
            written.add(Sample(i * TICK_S, "gpu", "GPU-1", GPU_ROW))
            if i % 20 == 19:
                written.commit()
        row_us = (time.perf_counter() - began) / ROWS * 1e6
        written.close()
        summarised_us = _summarised_row_us(Path(folder) / "summarised.gpudash")
        bare_us = _bare_row_us(Path(folder) / "bare.db")
        return {
            "row_us": row_us,
            "over_bare": row_us / bare_us,
            "summarised_us": summarised_us,
            "lost_rows": _lost_rows(Path(folder) / "killed.gpudash"),
        }


def measure() -> dict[str, float]:
    """All figures of this module."""
    return {**series(), **recorder()}


def _summarised_row_us(path: Path) -> float:
    """The same rows with their summaries, as a session writes them; the store that both need is counted."""
    written, store = Recorder(path, meta={}), Store()
    written.summarise(store)
    began = time.perf_counter()
    for i in range(ROWS):
        sample = Sample(i * TICK_S, "gpu", "GPU-1", GPU_ROW)
        store.apply(sample)
        written.add(sample)
        if i % 20 == 19:
            written.commit()
    row_us = (time.perf_counter() - began) / ROWS * 1e6
    written.close()
    return row_us


def _bare_row_us(path: Path) -> float:
    """The same rows through sqlite3 alone, committed as often."""
    values = list(GPU_ROW.values())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"CREATE TABLE gpu (time_s REAL, device TEXT, {', '.join(GPU_ROW)})")
        insert = f"INSERT INTO gpu VALUES (?, ?, {', '.join('?' * len(values))})"
        began = time.perf_counter()
        for first in range(0, ROWS, 20):
            connection.execute("BEGIN")
            for i in range(first, first + 20):
                connection.execute(insert, [i * TICK_S, "GPU-1", *values])
            connection.execute("COMMIT")
        return (time.perf_counter() - began) / ROWS * 1e6


def _lost_rows(path: Path) -> float:
    """Rows that a child said it had committed before it was killed, and that are not in the file."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= 2000:
                break
        child.kill()
        told = int((child.stdout.read().split() or [line])[-1])
    with open_recording(path) as recording:
        there = sum(1 for _ in recording.samples("host"))
    return float(max(told - there, 0))
