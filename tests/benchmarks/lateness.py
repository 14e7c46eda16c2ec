"""How late the window's timers are while training runs, beside the same window with nothing running."""

from __future__ import annotations

import statistics
import time

from PySide6.QtCore import Qt, QTimer

from gpudash.session import Session
from gpudash.settings import Settings
from gpudash.specs import TrainingSpec
from gpudash.ui.app import application
from gpudash.ui.main_window import MainWindow
from gpudash.ui.theme import apply_theme

SECONDS = 6.0
TICK_S = 0.016


def measure() -> dict[str, float]:
    """p99 and maximum lateness in ms of a 16 ms timer, idle and training, and the ratio of the p99s."""
    app = application()
    session = Session(Settings(), recording=None)
    session.start()
    window = MainWindow(session, apply_theme(app, "dark"), lambda _choice: None)
    window.resize(1440, 900)
    window.show()
    session.load_torch()
    while not session.wait_ready(0.05):
        app.processEvents()
    try:
        idle = _lateness()
        session.start_run(TrainingSpec(steps=100_000), "cpu")
        training = _lateness()
        session.stop_run()
        session.wait_run(10)
    finally:
        window.close()
    return {
        "idle_p99_ms": _p99(idle),
        "training_p99_ms": _p99(training),
        "training_max_ms": max(training),
        "p99_over_idle": _p99(training) / _p99(idle),
    }


def _lateness() -> list[float]:
    app = application()
    found: list[float] = []
    due = [time.perf_counter() + TICK_S]

    def tick() -> None:
        now = time.perf_counter()
        found.append(max(0.0, now - due[0]) * 1e3)
        due[0] = now + TICK_S

    timer = QTimer()
    timer.setTimerType(Qt.TimerType.PreciseTimer)
    timer.timeout.connect(tick)
    timer.start(round(TICK_S * 1000))
    QTimer.singleShot(round(SECONDS * 1000), app.quit)
    app.exec()
    timer.stop()
    return found[5:]


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
