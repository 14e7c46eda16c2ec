"""A store with known data, and a stack of plots over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from pytestqt.qtbot import QtBot

from gpudash.telemetry.plots import CurveSpec, LineSpec, PlotSpec
from gpudash.telemetry.records import Sample, StepFinished
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.theme import apply_theme
from gpudash.units import GIB
from tests.unit.clock import Clock

GPU = "GPU-1"

MEMORY = PlotSpec(
    "memory",
    "MEMORY cuda:0",
    (
        CurveSpec(("gpu", "other_bytes", GPU), "other processes", "bytes", "other", stack=True),
        CurveSpec(("gpu", "free_bytes", GPU), "free", "bytes", "free", stack=True, faint=True),
    ),
    "bytes",
    lines=(LineSpec("capacity", "capacity", key=("gpu", "total_bytes", GPU)),),
)
UTILISATION = PlotSpec(
    "utilisation",
    "UTILISATION",
    (
        CurveSpec(("gpu", "gpu_utilisation", GPU), "GPU", "ratio", "gpu"),
        CurveSpec(("host", "cpu_utilisation", None), "CPU", "ratio", "cpu", style="dash"),
    ),
    "ratio",
)
LOSS = PlotSpec(
    "loss",
    "LOSS · ACCURACY",
    (
        CurveSpec(("run", "loss", None), "loss", "nats", "loss", smoothed=True),
        CurveSpec(("run", "accuracy", None), "accuracy", "ratio", "accuracy", style="dash", axis="right"),
    ),
    "nats",
    may_log=True,
)


class Feed:
    """Puts one tick of known values into a store: GPU memory t · 100 MiB, utilisation and loss from the tick."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.time_s = 0.0

    def ticks(self, count: int, *, lost: bool = False, period_s: float = 0.1) -> None:
        for _ in range(count):
            t = self.time_s
            used = round(t * 0.1 * GIB)
            gpu = {"used_bytes": used, "free_bytes": 8 * GIB - used, "gpu_utilisation": 0.5}
            values = dict.fromkeys(gpu) if lost else gpu
            self.store.apply(Sample(t, "gpu", GPU, {**values, "process_bytes": 0, "total_bytes": 8 * GIB}))
            self.store.apply(Sample(t, "host", None, {"cpu_utilisation": 0.25}))
            self.store.apply(
                StepFinished(time_s=t, step=1, steps=2, seconds=0.1, loss=4.0 / (1 + t), accuracy=min(1.0, t / 20))
            )
            self.time_s = round(t + period_s, 9)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def feed(store: Store) -> Feed:
    return Feed(store)


@pytest.fixture
def view() -> TimeView:
    return TimeView(10.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stack(qtbot: QtBot, qapp: object, store: Store, view: TimeView, clock: Clock) -> Iterator[PlotStack]:
    apply_theme(qapp, "dark")
    stack = PlotStack(store, view, DARK, clock=clock)
    stack.set_plots([MEMORY, UTILISATION, LOSS])
    stack.resize(900, 560)
    stack.show()
    qtbot.waitExposed(stack)
    yield stack
    stack.close()
    stack.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@pytest.fixture
def drawn(stack: PlotStack, feed: Feed, qtbot: QtBot) -> PlotStack:
    """A stack over 20 s of data, drawn."""
    feed.ticks(201)
    refresh(stack)
    return stack


def refresh(stack: PlotStack) -> None:
    """Draw until layout has settled."""
    from PySide6.QtWidgets import QApplication

    for _ in range(3):
        stack.refresh(force=True)
        QApplication.processEvents()
