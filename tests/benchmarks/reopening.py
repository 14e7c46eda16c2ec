"""A recording of ten million rows: how soon it is seen, what that takes, and how it pans; beside SQLite's own scan."""

from __future__ import annotations

import os
import resource
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path

from PySide6.QtWidgets import QApplication

from gpudash.session import Replay
from gpudash.telemetry.recording.schema import FORMAT_VERSION
from gpudash.ui.app import application, build_window
from gpudash.ui.widgets.theme import apply_colours
from gpudash.ui.window.main_window import MainWindow
from tests.benchmarks.ten_million import TICK_S, make

ROWS = 10_000_000
FRAMES = 60
PATIENCE_S = 20.0
SIZE = (1280, 800)


def measure() -> dict[str, float]:
    """Seconds to the first picture, MiB of the whole process, milliseconds of a panning frame and of a seek.

    `over_scan` is the CPU until the first picture, of all threads, over that which SQLite takes to count and sum one
    column of each table: neither grows with what else the machine does between the two.
    """
    path = recording()
    app = application()
    palette = apply_colours(app, "dark")
    began, began_cpu = time.perf_counter(), time.process_time()
    replay = Replay(path)
    read = time.perf_counter() - began
    window = build_window(replay, palette, lambda _choice: None)
    window.resize(*SIZE)
    window.show()
    window.workspace.refresh()  # makes the plots that can be shown whole
    window.workspace.dashboard.plots.show_all()
    window.workspace.refresh()
    app.processEvents()
    window.grab()
    seen, seen_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    low, high = replay.extent_s
    pans = [_pan(window, low, high, (high - low) / part) for part in (1, 20, 400)]
    sharpened = replay.settle(PATIENCE_S)
    seeks = [_seek(window, replay, low + (high - low) * (i * 37 % 100) / 100) for i in range(FRAMES)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert sharpened
    window.close()
    replay.close()
    return {
        "read_s": read,
        "picture_s": seen,
        "over_scan": seen_cpu / _scan_cpu_s(path),
        "peak_mib": peak,
        "pan_ms": max(statistics.median(pan) for pan in pans),
        "pan_worst_ms": max(max(pan) for pan in pans),
        "seek_ms": statistics.median(seeks),
        "seek_worst_ms": max(seeks),
    }


def recording() -> Path:
    """The recording, made where it is not there yet."""
    folder = Path(os.environ.get("GPUDASH_HOME", "build/bench"))
    path = folder / f"{ROWS}_rows_of_format_{FORMAT_VERSION}.gpudash"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        make(unfinished, ROWS)
        unfinished.replace(path)
    return path


def _pan(window: MainWindow, low: float, high: float, span: float) -> list[float]:
    """Milliseconds of every frame while a window of ``span`` seconds moves by a hundredth of itself."""
    found = []
    left = low + (high - low - span) / 2
    for frame in range(FRAMES):
        at = left + span * frame / 100
        began = time.perf_counter()
        window.workspace.dashboard.view.show(at, at + max(span, TICK_S))
        window.workspace.refresh()
        QApplication.processEvents()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def _seek(window: MainWindow, replay: Replay, time_s: float) -> float:
    began = time.perf_counter()
    replay.seek(time_s)
    window.workspace.refresh()
    QApplication.processEvents()
    return (time.perf_counter() - began) * 1e3


def _scan_cpu_s(path: Path) -> float:
    with closing(sqlite3.connect(path)) as connection:
        began = time.process_time()
        for table, column in (("host", "used_bytes"), ("gpu", "used_bytes"), ("allocator", "reserved_bytes")):
            connection.execute(f"SELECT count(*), sum({column}) FROM {table}").fetchone()
        connection.execute("SELECT count(*), sum(time_s) FROM event").fetchone()
        return time.process_time() - began
