"""Two runs of a program beside one another, as it was and with a change: the memory of each, on the same axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PySide6.QtWidgets import QFrame, QWidget

from gpudash.drawing.axes import time_ticks, value_ticks
from gpudash.drawing.scene import (
    Item,
    PlotScene,
    SceneArea,
    SceneAxis,
    SceneCurve,
    SceneDot,
    SceneFrame,
    SceneLevel,
    SceneNote,
)
from gpudash.telemetry.runs import RunView, Status
from gpudash.telemetry.store import Store
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.scenes import ItemStyle, SceneWidget
from gpudash.ui.widgets.labels import set_role
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_bytes, format_count

Floats = NDArray[np.float64]

MARGINS = SceneFrame(left=56, right=8, top=8, bottom=20)
"""Around a plot."""

HEADROOM = 1.12
"""What the axis reaches to, as a multiple of the highest value."""

FILL_ALPHA = 0.62

BEFORE_NAMED = 0.8
"""Part of the axis across up to which a run that ended has its name behind its end."""

EARLY = 0.4
"""Part of the axis across up to which a run that ended leaves the right side free."""

TICK_PX = 80.0
"""Logical pixels between numbers of steps."""

LINES: Mapping[Status, str] = {"finished": "finished", "out_of_memory": "refused"}
"""Kinds of the line of what is reserved, by how the run ended."""

LEAST_S = 1.0

MOST_TICKS = 5

ROLES: Mapping[Status, str] = {"finished": "good-small", "out_of_memory": "bad-small"}
"""How a peak looks by how its run ended, where that is not as other figures."""

_COLUMNS = 800
"""Of pixels for which readings are taken."""


def _nothing() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True)
class MemoryCourse:
    """The memory of one run.

    Attributes:
        times: seconds since its start.
        steps: how many it had made by then, with parts of them; empty where it told of none.
        reserved, allocated: bytes at these times, NaN where nothing was read.
        seconds: that it took, or has until now.
        status: how it ended, or that it has not.
    """

    times: Floats = field(default_factory=_nothing)
    reserved: Floats = field(default_factory=_nothing)
    allocated: Floats = field(default_factory=_nothing)
    steps: Floats = field(default_factory=_nothing)
    seconds: float = 0.0
    status: Status = "running"

    @property
    def step_count(self) -> int:
        """Steps until the newest reading, 0 where none were told."""
        if len(self.steps):
            return int(np.ceil(self.steps[-1]))
        return 0

    @property
    def highest(self) -> float:
        """Bytes of the highest reading, 0.0 without any."""
        finite = self.reserved[np.isfinite(self.reserved)]
        if len(finite):
            return float(finite.max())
        return 0.0


def course_of(store: Store, run: RunView, allocator: str) -> MemoryCourse:
    """The memory of a run in a store, which is locked.

    Args:
        store: where its readings are.
        run: the run.
        allocator: what its device is called in readings.
    """
    if run.ended_s is None:
        end_s = store.newest_s
    else:
        end_s = run.ended_s
    end_s = max(end_s, run.began_s + 1e-3)
    found = []
    for metric in ("reserved_bytes", "allocated_bytes"):
        window = store.window(("allocator", metric, allocator), run.began_s, end_s, _COLUMNS)
        if window is None:
            return MemoryCourse(seconds=end_s - run.began_s)
        times, values = window
        # a reading on either side belongs to another run
        inside = (times >= run.began_s) & (times <= end_s)
        found.append((times[inside] - run.began_s, values[inside]))
    (times, reserved), (other_times, allocated) = found
    if len(times):
        if len(other_times):
            allocated = np.interp(times, other_times, allocated)
        else:
            allocated = np.full(len(times), np.nan)
    return MemoryCourse(times, reserved, allocated, _steps_at(run, times), end_s - run.began_s, run.status)


def _steps_at(run: RunView, times: Floats) -> Floats:
    """Steps that a run had made by these seconds of it; what it did before its first step began is part of none."""
    ended_s, steps = run.step_times.known()
    if len(steps) < 2 or not len(times):
        return _nothing()
    ended_s = ended_s - run.began_s
    # the first step took about as long as the next ones
    first_s = ended_s[0] - (ended_s[-1] - ended_s[0]) / (steps[-1] - steps[0]) * steps[0]
    known_s = np.concatenate(([max(0.0, first_s)], ended_s))
    found: Floats = np.interp(times, known_s, np.concatenate(([0.0], steps)))
    return found


class ComparisonPanel(QFrame):
    """The plots, with what each came to above them."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.before = SceneWidget(palette, styles, MARGINS)
        self.after = SceneWidget(palette, styles, MARGINS)
        self._before_head = _Head("AS IT IS")
        self._after_head = _Head("WITH THE CHANGE")
        panels = []
        for head, plot in ((self._before_head, self.before), (self._after_head, self.after)):
            panel = QFrame()
            panel.setProperty("role", "panel")
            in_column(head, (plot, 1), parent=panel, margins=(10, 6, 10, 6), spacing=4)
            panels.append((panel, 1))
        in_row(*panels, parent=self, margins=(0, 0, 0, 0), spacing=8)

    def show_courses(self, before: MemoryCourse, after: MemoryCourse, room: int, runs: tuple[RunView, RunView]) -> None:
        """Draw both on axes that hold both.

        Args:
            before, after: the memory of the runs.
            room: bytes that PyTorch could have of the card.
            runs: the runs, in the same order.
        """
        axes = ComparisonAxes.of((before, after), room)
        for plot, course, other in ((self.before, before, None), (self.after, after, before)):
            text = f"peak {format_bytes(course.highest)} of {format_bytes(room)}"
            plot.show_scene("Memory of the run", text, partial(course_scene, course, other, room, axes))
        for head, run in zip((self._before_head, self._after_head), runs, strict=True):
            head.show_run(run)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        for plot in (self.before, self.after):
            plot.set_palette(palette)


class _Head(QWidget):
    def __init__(self, title: str) -> None:
        super().__init__()
        self._steps = PlainLabel(role="legend")
        self._peak = PlainLabel(role="figure-small")
        in_row(
            PlainLabel(title, role="title"), self._steps, 1, self._peak, parent=self, margins=(0, 0, 0, 0), spacing=8
        )

    def show_run(self, run: RunView) -> None:
        steps = f"{format_count(run.step)} step{'' if run.step == 1 else 's'}"
        text = {
            "running": f"{steps} so far",
            "finished": f"finished after {steps}",
            "out_of_memory": f"out of memory after {steps}",
            "cancelled": f"stopped after {steps}",
            "failed": f"failed after {steps}",
        }
        self._steps.setText(text[run.status])
        peak = run.peak_reserved_bytes
        self._peak.setText(f"peak {format_bytes(peak)}" if peak else "")  # 0 while it starts
        set_role(self._peak, ROLES.get(run.status, "figure-small"))


@dataclass(frozen=True)
class ComparisonAxes:
    """What both plots reach to.

    Attributes:
        highest: bytes.
        end: steps, or seconds.
        in_steps: which of them.
    """

    highest: float = 1.0
    end: float = LEAST_S
    in_steps: bool = False

    @classmethod
    def of(cls, courses: Sequence[MemoryCourse], room: int) -> ComparisonAxes:
        """Axes that hold all of these; in steps where every run has told of its own."""
        highest = HEADROOM * max(float(room), *(course.highest for course in courses))
        if all(course.step_count for course in courses):
            return cls(highest, float(max(course.step_count for course in courses)), in_steps=True)
        return cls(highest, max(LEAST_S, *(course.seconds for course in courses)))

    def across(self, course: MemoryCourse) -> Floats:
        """Where the readings of a run lie."""
        if self.in_steps:
            return course.steps
        return course.times

    def ticks(self, width_px: float) -> tuple[tuple[float, str], ...]:
        """Of the axis across, the last one with what it counts."""
        if not self.in_steps:
            return time_ticks(0.0, self.end, width_px, relative=False).marks
        count = max(2, min(MOST_TICKS, int(width_px / TICK_PX)))
        whole = [value for value, _text in value_ticks("number", 0.0, self.end, count).marks if value == round(value)]
        texts = [format_count(round(value)) for value in whole]
        if texts:
            texts[-1] = f"step {texts[-1]}"
        return tuple(zip(whole, texts, strict=True))


def course_scene(
    course: MemoryCourse,
    other: MemoryCourse | None,
    room: int,
    axes: ComparisonAxes,
    frame: SceneFrame,
    scale: Callable[[float], float] = float,
) -> PlotScene:
    """The plot of a run.

    Args:
        course: of the run.
        other: of the one that it is compared with, drawn as a thin line.
        room: bytes that PyTorch could have of the card, 0 where that is not known.
        axes: of both plots.
        frame: logical pixels.
        scale: pixels of the screen's text size.
    """
    height = frame.height - frame.top - frame.bottom
    found = value_ticks("bytes", 0.0, axes.highest, max(2, min(MOST_TICKS, int(height / scale(36)))))
    x = axes.across(course)
    failed = course.status == "out_of_memory"
    items: list[Item] = [SceneArea(x, course.allocated, "refused" if failed else "allocated")]
    if other is not None:
        items.append(SceneCurve(axes.across(other), other.reserved, "before"))
    items.append(SceneCurve(x, course.reserved, LINES.get(course.status, "reserved")))
    if room:
        items.append(SceneLevel(float(room), "room"))
        text = f"{format_bytes(room)}, all there is"
        place = SceneNote(0.0, float(room), text, "room", right=scale(6), down=scale(13))
        # At the left, where what grows is still below it; one that was full early has ended at the right.
        full = x if other is None else axes.across(other)
        if len(full) and full[-1] < EARLY * axes.end:
            place = replace(place, place=axes.end, anchor="end", right=-scale(6))
        items.append(place)
    known = np.flatnonzero(np.isfinite(course.reserved))
    if failed and len(known):
        items.append(SceneDot(float(x[known[-1]]), float(course.reserved[known[-1]]), "refused", scale(5)))
    if other is not None and len(other.times):
        end = float(axes.across(other)[-1])
        level = float(other.reserved[-1])
        if np.isfinite(level) and end < BEFORE_NAMED * axes.end:
            # beside its end, and below what there is
            down = max(scale(4), scale(26) - (height * (room - level) / axes.highest if room else 0.0))
            items.append(SceneNote(end, level, "as it was", "before", right=scale(8), down=down))
    width = frame.width - frame.left - frame.right
    return PlotScene(
        f"peak {format_bytes(course.highest)} of {format_bytes(room)}",
        SceneAxis(0.0, axes.end, axes.ticks(width)),
        SceneAxis(0.0, axes.highest, found.named_marks),
        items,
        frame=frame,
    )


def styles(palette: Palette) -> Mapping[str, ItemStyle]:
    """How the kinds in such a scene are painted."""
    return {
        "allocated": ItemStyle(palette.curves["allocated"], 2, fill=FILL_ALPHA),
        "reserved": ItemStyle(palette.curves["allocated"], 2),
        "finished": ItemStyle(palette.good, 2),
        "refused": ItemStyle(palette.critical, 2, fill=FILL_ALPHA),
        "before": ItemStyle(palette.muted, 1, (3, 3)),
        "room": ItemStyle(palette.critical, 1.5, (8, 4)),
    }
