"""Plots the memory of one device over the time of a profiler trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpudash.drawing.axes import value_ticks
from gpudash.drawing.scene import (
    Floats,
    Item,
    PlotScene,
    SceneArea,
    SceneAxis,
    SceneCurve,
    SceneDot,
    SceneFrame,
    SceneNote,
)
from gpudash.memory.profiler_trace.operators import TracedMemory
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.scenes import ItemStyle
from gpudash.units import format_bytes

MARGINS = SceneFrame(left=64, right=12, top=10, bottom=20)
"""Margins around the plot."""

HEADROOM = 1.15
"""Top of the axis as a multiple of the highest value."""

TICK_PX = 90.0
"""Distance in logical pixels between labels of the horizontal axis."""

LINE_PX = 36.0
"""Distance in logical pixels between labels of the vertical axis."""

FILL_ALPHA = 0.62

RIGHT_HALF = 0.5
"""Beyond this share of the horizontal axis the peak's label is to its left."""

MILLISECONDS_UP_TO_S = 2.0


def memory_scene(
    memory: TracedMemory, seconds: float, frame: SceneFrame, scale: Callable[[float], float] = float
) -> PlotScene:
    """The plot of a device's memory.

    Args:
        memory: the device's memory over time.
        seconds: the length of the trace.
        frame: size and margins in logical pixels.
        scale: scales lengths in pixels to the text size.
    """
    times = np.array(memory.times_s)
    end = max(seconds, float(times[-1]), 1e-6)
    allocated, reserved = np.array(memory.allocated), np.array(memory.reserved)
    highest = HEADROOM * max(float(allocated.max()), float(reserved.max()), 1.0)
    x = _stair_times(times, end)
    items: list[Item] = [SceneArea(x, np.repeat(allocated, 2), "allocated")]
    if reserved.any():
        items.append(SceneCurve(x, np.repeat(reserved, 2), "reserved"))
    peak = float(memory.peak_bytes)
    items.append(SceneDot(memory.peak_s, peak, "peak", scale(4)))
    text = f"peak {format_bytes(memory.peak_bytes)}"
    if memory.peak_s > RIGHT_HALF * end:
        items.append(SceneNote(memory.peak_s, peak, text, anchor="end", right=-scale(8), down=-scale(3)))
    else:
        items.append(SceneNote(memory.peak_s, peak, text, right=scale(8), down=-scale(3)))
    height = frame.height - frame.top - frame.bottom
    found = value_ticks("bytes", 0.0, highest, max(2, int(height / scale(LINE_PX))))
    width = frame.width - frame.left - frame.right
    across = SceneAxis(0.0, end, _time_marks(end, max(2, int(width / scale(TICK_PX)))))
    return PlotScene(
        f"memory of {memory.device}, {text}", across, SceneAxis(0.0, highest, found.named_marks), items, frame=frame
    )


def _stair_times(times: Floats, end: float) -> Floats:
    """Times of a step curve: each value holds until the next, the last one until the end."""
    return np.append(np.repeat(times, 2)[1:], end)


def _time_marks(end: float, count: int) -> list[tuple[float, str]]:
    """Marks in seconds, or in milliseconds for a short trace; the last one has the unit."""
    unit_s, name = 1.0, "s"
    if end < MILLISECONDS_UP_TO_S:
        unit_s, name = 1e-3, "ms"
    found = value_ticks("number", 0.0, end / unit_s, count, unit_name=name)
    return [(value * unit_s, text) for value, text in found.named_marks]


def styles(palette: Palette) -> Mapping[str, ItemStyle]:
    return {
        "allocated": ItemStyle(palette.curves["allocated"], 1.5, fill=FILL_ALPHA),
        "reserved": ItemStyle(palette.curves["allocated"], 1.5, (3, 2)),
        "peak": ItemStyle(palette.warn, 1.5),
    }
