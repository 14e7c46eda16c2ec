"""What a frame of allocations as ribbons costs, in the real memory plot: a training's, each of its requests known.

``frame_ms`` is a frame whose range has moved, with a hundred thousand allocations of which all are in it, a twentieth,
or two hundred: the dearest of the three; ``more_ms`` is that over ``bare_ms``, the same plot without them. ``pan_ms``
is a frame with a million allocations, all of them in it. Medians of processor time, 1200×800. ``copy_ms`` is the
yardstick of the run: copying a picture of the plot's size from columns into rows, as each frame does.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from gpudash.memory.frames import Frame
from gpudash.memory.request_log import NEVER, RequestLog
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.plots.painting import dissolving as layer
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.units import GIB, MIB
from tests.benchmarks.frame import application

FEW, MANY = 100_000, 1_000_000
SPAN_S = 100.0
A_STEP = 200
LINES = 40
FRAMES = 12

CARD = "card"
CURVES = (
    CurveSpec(("gpu", "context_bytes", CARD), "context", "bytes", "context", stack=True),
    CurveSpec(("gpu", "allocated_bytes", CARD), "allocated", "bytes", "allocated", stack=True),
    CurveSpec(("gpu", "idle_bytes", CARD), "idle inside PyTorch", "bytes", "idle", stack=True),
)


def measure() -> dict[str, float]:
    """The figures that are held, and the times they come from."""
    app = application()
    store, view = Store(), TimeView(60.0)
    for number in range(1000):
        for curve, size in zip(CURVES, (GIB / 3, 5 * GIB, GIB), strict=True):
            store.append(curve.key, number * SPAN_S / 1000, size)
    store.end.newest_s = SPAN_S
    stack = PlotStack(store, view, DARK)
    stack.set_plots([PlotSpec("memory", "MEMORY", CURVES, "bytes")])
    stack.resize(1200, 800)
    stack.show()
    app.processEvents()
    # as wide a range as there is dissolves here, where the window shows its readings
    layer.BEGINS_AT = float("inf")
    layer.ENDS_AT = float("inf")

    def frames(share: float) -> float:
        found = []
        for number in range(FRAMES):
            begin = (1 - share) * SPAN_S * 0.5 + number * share * SPAN_S * 1e-3
            view.show(begin, begin + share * SPAN_S)
            app.processEvents()
            began = time.process_time()
            stack.refresh(force=True)
            stack.plots[0].canvas.viewport().repaint()
            found.append((time.process_time() - began) * 1e3)
        return statistics.median(found[2:])

    shares = (1.0, 0.05, 0.002)
    bare = [frames(share) for share in shares]
    stack.set_requests("memory", _training(FEW))
    few = [frames(share) for share in shares]
    assert stack.plots[0].canvas.ribbons.picture is not None
    stack.set_requests("memory", _training(MANY))
    pan = frames(1.0)
    stack.close()
    more = max(with_them - without for with_them, without in zip(few, bare, strict=True))
    pixels = np.ones((700, 900), np.uint32)
    copies = []
    for _round in range(20):
        began = time.process_time()
        pixels.T.copy()
        copies.append((time.process_time() - began) * 1e3)
    return {
        "bare_ms": max(bare),
        "frame_ms": max(few),
        "whole_ms": few[0],
        "twentieth_ms": few[1],
        "step_ms": few[2],
        "copy_ms": statistics.median(copies),
        "more_ms": max(0.0, more),
        "pan_ms": pan,
    }


def _training(count: int) -> RequestLog:
    """Weights that stay, then steps that free what they allocate in the other order."""
    random = np.random.default_rng(0)
    stays = 400
    steps = (count - stays) // A_STEP
    within = np.arange(A_STEP)
    began = stays + 2 * A_STEP * np.arange(steps)
    born = np.concatenate((np.arange(stays), (began[:, None] + within).ravel()))
    freed = np.concatenate((np.full(stays, NEVER), (began[:, None] + 2 * A_STEP - 1 - within).ravel()))
    size = random.integers(1, 160, len(born)) * (MIB // 4)
    events = stays + 2 * A_STEP * steps
    change = np.zeros(events + 1, np.int64)
    change[born + 1] = size
    ended = freed < events
    change[freed[ended] + 1] = -size[ended]
    log = RequestLog()
    log.replace(
        (np.linspace(0.0, SPAN_S, events), np.cumsum(change)),
        (born, freed, size, np.arange(len(born)) % LINES, np.zeros(len(born), np.int64)),
        [(Frame("/home/me/train.py", line + 1, "step"),) for line in range(LINES)],
        ("activations",),
    )
    return log
