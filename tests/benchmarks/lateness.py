"""How late the window's timers are while training runs, beside the same plots fed without a workload."""

from __future__ import annotations

import itertools
import statistics
import time

from PySide6.QtCore import QEventLoop, Qt, QTimer

from gpudash.session import Session
from gpudash.specs import TrainingSpec
from gpudash.system.settings import Settings
from gpudash.telemetry.records import StepFinished
from gpudash.ui.app import application, build_window
from gpudash.ui.widgets.theme import apply_colours

SECONDS = 6.0
SETTLE_S = 3.0
"""Time for what happens once: plots that appear, modules that torch imports with the first step."""

STEP_S = 0.07
TICK_S = 0.016


def measure() -> dict[str, float]:
    """p99 and maximum lateness in ms of a 16 ms timer, plots alone and training, and the ratio of the p99s."""
    app = application()
    session = Session(Settings(), recording=None)
    session.start()
    window = build_window(session, apply_colours(app, "dark"), lambda _choice: None)
    window.resize(1440, 900)
    window.show()
    session.load_torch()
    while not session.wait_ready(0.05):
        app.processEvents()
    try:
        idle = _plots_alone(session)
        session.start_run(TrainingSpec(steps=100_000), "cpu")
        starting = _lateness(SETTLE_S)
        training = _lateness(SECONDS)
        session.stop_run()
        session.runs.wait(10)
    finally:
        window.leave()
    return {
        "idle_p99_ms": _p99(idle),
        "training_p99_ms": _p99(training),
        "training_max_ms": max(training),
        "starting_max_ms": max(starting),
        "p99_over_idle": _p99(training) / _p99(idle),
    }


def _plots_alone(session: Session) -> list[float]:
    """The plots of a training, fed at its pace by hand."""
    steps = itertools.count(1)

    def feed() -> None:
        step = next(steps)
        now = session.clock()
        session.emit(
            StepFinished(time_s=now, step=step, steps=10_000, seconds=STEP_S, loss=3.0, accuracy=0.3, throughput=1e4)
        )

    timer = QTimer()
    timer.timeout.connect(feed)
    timer.start(round(STEP_S * 1000))
    _lateness(SETTLE_S)
    found = _lateness(SECONDS)
    timer.stop()
    return found


def _lateness(seconds: float) -> list[float]:
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
    loop = QEventLoop()  # quitting the application instead would close the window
    QTimer.singleShot(round(seconds * 1000), loop.quit)
    loop.exec()
    timer.stop()
    return found[5:] or [seconds * 1e3]  # hardly a tick came: it was late all the time


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
