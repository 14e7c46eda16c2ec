"""CPU of the live view, as a whole process, beside the naive view's: both draw 12 curves at 10 Hz."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QEventLoop, QTimer

from tests.benchmarks.frame import _application, _gpudash, _naive

SECONDS = 5.0
RATE_HZ = 10.0
HISTORY = 10_000


def measure() -> dict[str, float]:
    """Share of a core each view takes, and their ratio."""
    ours = _share(lambda: _gpudash(HISTORY, 60.0))
    naive = _share(lambda: _naive(HISTORY))
    return {"ours_core": ours, "naive_core": naive, "over_naive": ours / naive}


def _share(make: Callable[[], tuple[Callable[[int], None], Callable[[], None]]]) -> float:
    _application()
    frame, close = make()
    count = iter(range(10**9))
    timer = QTimer()
    timer.timeout.connect(lambda: frame(next(count)))
    timer.start(round(1000 / RATE_HZ))
    began_wall, began_cpu = time.perf_counter(), time.process_time()
    loop = QEventLoop()
    QTimer.singleShot(round(SECONDS * 1000), loop.quit)
    loop.exec()
    share = (time.process_time() - began_cpu) / (time.perf_counter() - began_wall)
    timer.stop()
    close()
    return share
