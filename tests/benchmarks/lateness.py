"""How late the window's timers are while training runs, beside the same plots fed without a workload.

The training is where the window's Start puts it, in a process of its own. Figures that begin with ``inside_`` are of
one in the window's process, as with the preference switched off.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from dataclasses import dataclass

from PySide6.QtCore import QEventLoop, Qt, QTimer

from gpudash.session import Session
from gpudash.specs import TrainingSpec
from gpudash.system.settings import Settings
from gpudash.telemetry.records import RunEnd, RunStarted, StepFinished
from gpudash.ui.app import application, build_window
from gpudash.ui.widgets.theme import apply_colours
from gpudash.ui.window.main_window import MainWindow

SECONDS = 6.0
SETTLE_S = 3.0
"""Time for what happens once: plots that appear."""

SETTLED_STEP = 3
"""The step until which a training settles: with its first one torch imports its compiler."""

LONGEST_S = 120.0

STEP_S = 0.07
TICK_S = 0.017
"""No divisor of the 64 ms between two frames of Qt's coarse timer: ticks of 16 ms meet frames at the same few places
while the window is idle, where it is luck whether a frame delays one of them, and at all places while it is busy."""

ENDING_S = 10.0


def measure() -> dict[str, float]:
    """p99 and maximum lateness in ms of a timer, plots alone and training, and the ratios of the p99s."""
    app = application()
    session = Session(Settings(), recording=None)
    session.start()
    window = build_window(session, apply_colours(app, "dark"), lambda _choice: None)
    window.resize(1440, 900)
    window.show()
    app.processEvents()
    gc.freeze()  # as the window does after its first paint
    session.load_torch(session.settings.isolate)
    while not session.wait_ready(0.05):
        app.processEvents()
    try:
        alone = _plots_alone(session, window)
        training = _training(session, window, isolate=session.settings.isolate)
        inside = _training(session, window, isolate=False)
    finally:
        window.leave()
    for found in (training, inside):
        if found.plots != alone.plots:
            raise RuntimeError(f"The plots are not the same: {alone.plots} alone, {found.plots} while training.")
    return {
        "idle_p99_ms": alone.p99_ms,
        "training_p99_ms": training.p99_ms,
        "training_max_ms": training.max_ms,
        "starting_max_ms": training.starting_max_ms,
        "p99_over_idle": training.p99_ms / alone.p99_ms,
        "inside_p99_ms": inside.p99_ms,
        "inside_max_ms": inside.max_ms,
        "inside_starting_max_ms": inside.starting_max_ms,
        "inside_over_idle": inside.p99_ms / alone.p99_ms,
    }


@dataclass(frozen=True)
class Found:
    """Lateness in milliseconds, and the plots that were drawn meanwhile."""

    p99_ms: float
    max_ms: float
    starting_max_ms: float
    plots: tuple[str, ...]


def _plots_alone(session: Session, window: MainWindow) -> Found:
    """The plots of a training, fed at its pace by hand."""
    spec = TrainingSpec()
    session.emit(
        RunStarted(time_s=session.clock(), workload=spec.name, device="cpu", spec=spec.model_dump(mode="json"))
    )
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
    found = _settled(session, window)
    timer.stop()
    session.emit(RunEnd(time_s=session.clock(), status="completed", seconds=SECONDS, steps=next(steps)))
    return found


def _training(session: Session, window: MainWindow, *, isolate: bool) -> Found:
    session.start_run(TrainingSpec(steps=100_000), "cpu", isolate=isolate)
    found = _settled(session, window)
    session.stop_run()
    session.runs.wait(ENDING_S)
    return found


def _settled(session: Session, window: MainWindow) -> Found:
    """Lateness from some steps after the beginning on.

    Raises:
        RuntimeError: there are no such steps.
    """
    began_s = time.monotonic()
    starting = _lateness(SETTLE_S)
    while not _is_settled(session):
        if time.monotonic() - began_s > LONGEST_S:
            raise RuntimeError(f"The run has made no {SETTLED_STEP} steps in {LONGEST_S:.0f} s.")
        starting += _lateness(SETTLE_S)
    measured = _lateness(SECONDS)
    plots = tuple(plot.spec.id for plot in window.workspace.dashboard.plots.plots)
    return Found(_p99(measured), max(measured), max(starting), plots)


def _is_settled(session: Session) -> bool:
    run = session.store.run
    return run is not None and run.running and run.step >= SETTLED_STEP


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
