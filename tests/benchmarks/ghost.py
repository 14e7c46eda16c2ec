"""What a frame of a predicted run costs: a hundred thousand requests in nine ribbons, in the real memory plot.

``new_ms`` is the frame that shows an answer which has just come, thinned and painted; ``moving_ms`` one on the way from
the shape before to that; ``frame_ms`` each one behind it, and ``bare_ms`` the same plot with as many bands of readings
in its place. Medians of processor time, 1200×800. What the thread does that receives an answer is done before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from gpudash.drawing.ghost import Ghost
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.plots.prediction.ghost import GhostView
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.units import GIB, MIB
from tests.benchmarks.frame import application

REQUESTS = 100_000
NAMES = ("context", "weights", "optimizer state", "gradients", "inputs", "activations", "workspace", "temporary")


def measure() -> dict[str, float]:
    """The figures that are held, and the times they come from."""
    app = application()
    store, view = Store(), TimeView(60.0)
    stack = PlotStack(store, view, DARK)
    curves = [CurveSpec(("gpu", name, "card"), name, "bytes", name, stack=True) for name in NAMES]
    stack.set_plots([PlotSpec("memory", "MEMORY", tuple(curves), "bytes")])
    stack.resize(1200, 800)
    stack.show()
    app.processEvents()
    moment = 0.0

    def frame() -> float:
        nonlocal moment
        moment += 0.1
        with store.lock:
            for curve in curves:
                store.append(curve.key, moment, GIB * (1 + moment % 0.7))
            store.end.newest_s = moment
            store.version += 1
        app.processEvents()
        began = time.process_time()
        stack.refresh()
        stack.plots[0].canvas.viewport().repaint()
        return (time.process_time() - began) * 1e3

    bare = _median(frame)
    new, later = [], []
    moving = []
    for number in range(12):
        stack.set_ghost("memory", GhostView(_ghost(number), "peak 9.00 GiB", verdict="fits", steps=300))
        new.append(frame())
        motion = stack.plots[0].canvas.ghost.motion
        if motion.moving:
            app.processEvents()
            motion.setCurrentTime(motion.duration() // 2)
            began = time.process_time()
            stack.plots[0].canvas.viewport().repaint()
            moving.append((time.process_time() - began) * 1e3)
            motion.settle()
            frame()
        later += [frame() for _ in range(4)]
    stack.close()
    frame_ms = statistics.median(later[8:])
    times = {
        "bare_ms": bare,
        "new_ms": statistics.median(new[2:]),
        "moving_ms": statistics.median(moving),
        "frame_ms": frame_ms,
    }
    return {**times, "more_ms": max(0.0, frame_ms - bare)}


def _median(frame: Callable[[], float]) -> float:
    return statistics.median([frame() for _ in range(30)][5:])


def _ghost(seed: int) -> Ghost:
    """Ribbons that change with each request, as those of a step of so many do."""
    rough = np.random.default_rng(seed)
    ribbons = {name: rough.integers(0, 64, REQUESTS) * float(MIB) for name in NAMES}
    ribbons["activations"] += np.interp(np.arange(REQUESTS), [0, REQUESTS / 2, REQUESTS], [0, 8 * GIB, 0])
    marks = [(step * 300, step, "forward") for step in range(REQUESTS // 300)]
    ghost = Ghost.of(ribbons, marks, capacity=16 * GIB, limit=6 * GIB)
    ghost.prepare()
    return ghost
