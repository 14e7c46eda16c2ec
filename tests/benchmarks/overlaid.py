"""What a frame costs with six recorded runs of a million readings each laid over the live memory plot.

``over_fifty_thousand`` is that over the same with fifty thousand readings each, the yardstick of the run; of two views,
all of the runs and a twentieth of them, the dearer. ``over_bare`` is it over the plot without them, ``laying_ms`` what
the thread takes that lays them over. Medians of processor time, 1200×800.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gpudash.session.recordings.comparing.overlaid_runs import OverlaidRuns
from gpudash.telemetry.comparing.curves import ComparedRun, Curve
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.records import RunStarted
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.units import GIB
from tests.benchmarks.frame import application

RUNS = 6
FEW, MANY = 50_000, 1_000_000
"""Of the fewer, too, a twentieth has a reading for each column of pixels."""
SPAN_S = 1000.0
FRAMES = 16
SHARES = (1.0, 0.05)
LONGEST_S = 60.0

LIVE = CurveSpec(("gpu", "used_bytes", "card"), "used", "bytes", "gpu")


def measure() -> dict[str, float]:
    """The figures that are held, and the times they come from."""
    _laid, bare = _frames(0)
    _laid, few = _frames(FEW)
    laying_ms, many = _frames(MANY)
    return {
        "bare_ms": max(bare),
        "few_ms": max(few),
        "many_ms": max(many),
        "laying_ms": laying_ms,
        "over_bare": max(many) / max(bare),
        "over_fifty_thousand": max(with_many / with_few for with_many, with_few in zip(many, few, strict=True)),
    }


def _frames(samples: int) -> tuple[float, Sequence[float]]:
    """Milliseconds of laying six runs of so many readings over, and of a frame of each of `SHARES`."""
    app = application()
    store, view = Store(), TimeView(60.0)
    for number in range(FEW):
        store.append(LIVE.key, number * SPAN_S / FEW, GIB * (1 + number % 7 / 10))
    store.end.newest_s = SPAN_S
    runs = {str(Path(f"/runs/{number}")): _run(number, samples) for number in range(RUNS if samples else 0)}
    overlaid = OverlaidRuns(store, lambda place, _cancelled: runs[place])
    began = time.process_time()
    overlaid.choose([Path(place) for place in runs], 0.0)
    if overlaid._thread is not None:
        overlaid._thread.join(LONGEST_S)
    laying_ms = (time.process_time() - began) * 1e3
    stack = PlotStack(store, view, DARK)
    with store.lock:
        plots = overlaid.on([PlotSpec("memory", "MEMORY", (LIVE,), "bytes")])
    assert len(plots[0].curves) == 1 + len(runs)
    stack.set_plots(plots)
    stack.resize(1200, 800)
    stack.show()
    app.processEvents()

    def frame(begin: float, share: float) -> Callable[[], float]:
        def one() -> float:
            view.show(begin, begin + share * SPAN_S)
            app.processEvents()
            start = time.process_time()
            stack.refresh(force=True)
            stack.plots[0].canvas.viewport().repaint()
            return (time.process_time() - start) * 1e3

        return one

    found = []
    for share in SHARES:
        moved = [frame((1 - share) * SPAN_S * 0.5 + number * share * SPAN_S * 1e-3, share) for number in range(FRAMES)]
        found.append(statistics.median([one() for one in moved][4:]))
    stack.close()
    assert overlaid.close()
    return laying_ms, found


def _run(number: int, samples: int) -> ComparedRun:
    """A run of its own noise on a wave."""
    t = np.linspace(0.0, SPAN_S, samples)
    values = GIB * (1 + number / 4 + 0.3 * np.sin(t / 30) + np.random.default_rng(number).uniform(-0.1, 0.1, samples))
    begun = RunStarted(time_s=0.0, run_id=number, workload="training", device="cuda:0", spec={})
    return ComparedRun(f"run {number}", f"{number}.gpudash", RunView.of(begun), memory={"allocated": Curve(t, values)})
