"""A program's run and its run with a change, side by side: the memory of each on the same axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QSize
from PySide6.QtWidgets import QBoxLayout, QFrame, QWidget

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
"""Margins around a plot."""

HEADROOM = 1.12
"""Upper end of the axis, as a multiple of the highest value."""

FILL_ALPHA = 0.62

BEFORE_NAMED = 0.8
"""Fraction of the x axis up to which an ended run's name fits after its end."""

EARLY = 0.4
"""A run that ended before this fraction of the x axis leaves the right side free."""

TICK_PX = 80.0
"""Logical pixels between step numbers."""

LINES: Mapping[Status, str] = {"finished": "finished", "out_of_memory": "refused"}
"""Style of the reserved line, by how the run ended."""

LEAST_S = 1.0

MOST_TICKS = 5

ROLES: Mapping[Status, str] = {"finished": "good-small", "out_of_memory": "bad-small"}
"""Label role of a peak by how its run ended, where it is not the usual one."""

LEAST_PLOT_PX = 96
GAP_PX = 8
"""Logical pixels: the lowest plot whose axis can be read, and the gap between the parts of its head."""

_COLUMNS = 800
"""Pixel columns for which readings are queried."""


def _nothing() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True)
class MemoryCourse:
    """The memory of one run.

    Attributes:
        times: seconds since the run began.
        steps: steps made by these times, with fractions; empty if the run reported none.
        reserved, allocated: bytes at these times; NaN where nothing was read.
        seconds: duration of the run, so far if it has not ended.
        status: how it ended, or that it is still going.
    """

    times: Floats = field(default_factory=_nothing)
    reserved: Floats = field(default_factory=_nothing)
    allocated: Floats = field(default_factory=_nothing)
    steps: Floats = field(default_factory=_nothing)
    seconds: float = 0.0
    status: Status = "running"

    @property
    def step_count(self) -> int:
        """Steps at the newest reading; 0 if none were reported."""
        if len(self.steps):
            return int(np.ceil(self.steps[-1]))
        return 0

    @property
    def highest(self) -> float:
        """The highest reading in bytes; 0.0 if there is none."""
        finite = self.reserved[np.isfinite(self.reserved)]
        if len(finite):
            return float(finite.max())
        return 0.0


def course_of(store: Store, run: RunView, allocator: str) -> MemoryCourse:
    """Query a run's memory from a store. The caller holds the store's lock.

    Args:
        store: store of the readings.
        run: the run.
        allocator: name of its device in the readings.
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
        # The window may include a reading of another run on either side.
        inside = (times >= run.began_s) & (times <= end_s)
        found.append((times[inside] - run.began_s, values[inside]))
    (times, reserved), (other_times, allocated) = found
    held = np.flatnonzero(reserved > 0)
    if run.ended_s is not None and len(held):
        # A program frees all of it as it ends, which is no part of what it needed.
        times, reserved = times[: held[-1] + 1], reserved[: held[-1] + 1]
    if len(times):
        if len(other_times):
            allocated = np.interp(times, other_times, allocated)
        else:
            allocated = np.full(len(times), np.nan)
    return MemoryCourse(times, reserved, allocated, _steps_at(run, times), end_s - run.began_s, run.status)


def _steps_at(run: RunView, times: Floats) -> Floats:
    """Steps made at each time, in seconds of the run; what came before the first step counts as none."""
    ended_s, steps = run.step_times.known()
    if len(steps) < 2 or not len(times):
        return _nothing()
    ended_s = ended_s - run.began_s
    # Assume that the first step took as long as the later ones on average.
    first_s = ended_s[0] - (ended_s[-1] - ended_s[0]) / (steps[-1] - steps[0]) * steps[0]
    known_s = np.concatenate(([max(0.0, first_s)], ended_s))
    found: Floats = np.interp(times, known_s, np.concatenate(([0.0], steps)))
    return found


class ComparisonPanel(QFrame):
    """The two plots, each with its result above."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.before = SceneWidget(palette, styles, MARGINS)
        self.after = SceneWidget(palette, styles, MARGINS)
        for plot in (self.before, self.after):
            plot.setMinimumHeight(LEAST_PLOT_PX)
        self._before_head = _Head("AS IT IS")
        self._after_head = _Head("WITH THE CHANGE")
        panels = []
        for head, plot in ((self._before_head, self.before), (self._after_head, self.after)):
            panel = QFrame()
            panel.setProperty("role", "panel")
            in_column(head, (plot, 1), parent=panel, margins=(10, 6, 10, 6), spacing=4)
            panels.append((panel, 1))
        in_row(*panels, parent=self, margins=(0, 0, 0, 0), spacing=8)

    def show_courses(
        self, before: MemoryCourse, after: MemoryCourse, room: int, runs: tuple[RunView, RunView], peak_before: str
    ) -> None:
        """Draw both runs on common axes.

        Args:
            before, after: memory of the two runs.
            room: bytes of the card that PyTorch can use.
            runs: the runs, in the same order.
            peak_before: the peak of the first, in words.
        """
        axes = ComparisonAxes.of((before, after), room)
        for plot, course, other in ((self.before, before, None), (self.after, after, before)):
            text = f"peak reserved {format_bytes(course.highest)} of {format_bytes(room)}"
            plot.show_scene("Memory of the run", text, partial(course_scene, course, other, room, axes))
        peak = runs[1].peak_reserved_bytes
        peak_after = ""
        if peak:  # 0 while the run starts
            peak_after = f"peak reserved {format_bytes(peak)}"
        self._before_head.show_run(runs[0], peak_before)
        self._after_head.show_run(runs[1], peak_after)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        for plot in (self.before, self.after):
            plot.set_palette(palette)


class _Head(QWidget):
    def __init__(self, title: str) -> None:
        super().__init__()
        self._steps = PlainLabel(role="legend")
        self._peak = PlainLabel(role="figure-small")
        self._left = in_row(PlainLabel(title, role="title"), self._steps, 1, spacing=GAP_PX)
        self._parts = in_row((self._left, 1), self._peak, parent=self, margins=(0, 0, 0, 0), spacing=GAP_PX)

    def event(self, event: QEvent) -> bool:
        done = super().event(event)
        if event.type() in (QEvent.Type.LayoutRequest, QEvent.Type.Resize):
            self._arrange()
        return done

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def _arrange(self) -> None:
        """Place the peak below the steps if there is no room beside them."""
        needed = self._left.sizeHint().width() + self._parts.spacing() + self._peak.sizeHint().width()
        direction = QBoxLayout.Direction.LeftToRight
        if needed > self.width():
            direction = QBoxLayout.Direction.TopToBottom
        self._parts.setDirection(direction)

    def show_run(self, run: RunView, peak: str) -> None:
        steps = f"{format_count(run.step)} step{'' if run.step == 1 else 's'}"
        text = {
            "running": f"{steps} so far",
            "finished": f"finished after {steps}",
            "out_of_memory": f"out of memory after {steps}",
            "cancelled": f"stopped after {steps}",
            "failed": f"failed after {steps}",
        }
        self._steps.setText(text[run.status])
        self._peak.setText(peak)
        set_role(self._peak, ROLES.get(run.status, "figure-small"))


@dataclass(frozen=True)
class ComparisonAxes:
    """The extent of both plots.

    Attributes:
        highest: upper end of the y axis, in bytes.
        end: right end of the x axis, in steps or seconds.
        in_steps: whether the x axis counts steps.
    """

    highest: float = 1.0
    end: float = LEAST_S
    in_steps: bool = False

    @classmethod
    def of(cls, courses: Sequence[MemoryCourse], room: int) -> ComparisonAxes:
        """Axes that hold all courses; in steps if every run reported its steps."""
        highest = HEADROOM * max(float(room), *(course.highest for course in courses))
        if all(course.step_count for course in courses):
            return cls(highest, float(max(course.step_count for course in courses)), in_steps=True)
        return cls(highest, max(LEAST_S, *(course.seconds for course in courses)))

    def across(self, course: MemoryCourse) -> Floats:
        """The x coordinates of a run's readings."""
        if self.in_steps:
            return course.steps
        return course.times

    def ticks(self, width_px: float) -> tuple[tuple[float, str], ...]:
        """Ticks of the x axis; the last one names the unit."""
        if not self.in_steps:
            return time_ticks(0.0, self.end, width_px).marks
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
        course: memory of the run.
        other: memory of the run it is compared with, drawn as a thin line.
        room: bytes of the card that PyTorch can use; 0 if unknown.
        axes: axes of both plots.
        frame: size and margins, in logical pixels.
        scale: scales logical pixels to the text size.
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
        # At the left, where a growing curve is still below it. If the other run ended early, the right is free
        # instead.
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
            # Beside the end of the curve, and below the limit's label.
            down = max(scale(4), scale(26) - (height * (room - level) / axes.highest if room else 0.0))
            items.append(SceneNote(end, level, "as it was", "before", right=scale(8), down=down))
    width = frame.width - frame.left - frame.right
    return PlotScene(
        f"peak reserved {format_bytes(course.highest)} of {format_bytes(room)}",
        SceneAxis(0.0, axes.end, axes.ticks(width)),
        SceneAxis(0.0, axes.highest, found.named_marks),
        items,
        frame=frame,
    )


def styles(palette: Palette) -> Mapping[str, ItemStyle]:
    """How each kind of item in such a scene is painted."""
    return {
        "allocated": ItemStyle(palette.curves["allocated"], 2, fill=FILL_ALPHA),
        "reserved": ItemStyle(palette.curves["allocated"], 2),
        "finished": ItemStyle(palette.good, 2),
        "refused": ItemStyle(palette.critical, 2, fill=FILL_ALPHA),
        "before": ItemStyle(palette.muted, 1, (3, 3)),
        "room": ItemStyle(palette.critical, 1.5, (8, 4)),
    }
