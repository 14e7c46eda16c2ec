"""CPU of the live view, as a whole process, beside the naive view's: both draw 12 curves at 10 Hz."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QEventLoop, QTimer

from tests.benchmarks.frame import _gpudash, _naive, application

SECONDS = 5.0
RATE_HZ = 10.0
HISTORY = 10_000


def measure() -> dict[str, float]:
    """Share of a core each view takes at the rate, and their ratio; and how many frames a second it got to draw."""
    ours, ours_hz = _share(lambda: _gpudash(HISTORY, 60.0))
    naive, naive_hz = _share(lambda: _naive(HISTORY))
    return {
        "ours_core": ours,
        "naive_core": naive,
        "ours_hz": ours_hz,
        "naive_hz": naive_hz,
        "over_naive": ours / naive,
    }


def _share(make: Callable[[], tuple[Callable[[int], None], Callable[[], None]]]) -> tuple[float, float]:
    """CPU of a frame times the rate, and the rate that was reached.

    Not the CPU of a second: a view that takes longer for a frame than there is time, as the naive one does on a busy
    machine, leaves frames out, and would seem the cheaper for it.
    """
    application()
    frame, close = make()
    drawn = 0

    def draw() -> None:
        nonlocal drawn
        frame(drawn)
        drawn += 1

    timer = QTimer()
    timer.timeout.connect(draw)
    timer.start(round(1000 / RATE_HZ))
    began_wall, began_cpu = time.perf_counter(), time.process_time()
    loop = QEventLoop()
    QTimer.singleShot(round(SECONDS * 1000), loop.quit)
    loop.exec()
    cpu_s, wall_s = time.process_time() - began_cpu, time.perf_counter() - began_wall
    timer.stop()
    close()
    return cpu_s / drawn * RATE_HZ, drawn / wall_s
