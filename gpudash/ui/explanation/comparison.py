"""Two runs of a program beside one another, as it was and with a change: the memory of each, on the same axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QFrame, QSizePolicy, QWidget

from gpudash.drawing.axes import time_ticks, value_ticks
from gpudash.telemetry.runs import RunView, Status
from gpudash.telemetry.store import Store
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.labels import set_role
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_bytes, format_count

Floats = NDArray[np.float64]

AXIS_PX = 56
BELOW_PX = 20
ABOVE_PX = 8
RIGHT_PX = 8
"""Logical pixels left of a plot, below, above and right of it."""

HEADROOM = 1.12
"""What the axis reaches to, as a multiple of the highest value."""

FILL_ALPHA = 0.62

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
        reserved, allocated: bytes at these times, NaN where nothing was read.
        seconds: that it took, or has until now.
        status: how it ended, or that it has not.
    """

    times: Floats = field(default_factory=_nothing)
    reserved: Floats = field(default_factory=_nothing)
    allocated: Floats = field(default_factory=_nothing)
    seconds: float = 0.0
    status: Status = "running"

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
    return MemoryCourse(times, reserved, allocated, end_s - run.began_s, run.status)


class ComparisonPanel(QFrame):
    """The plots, with what each came to above them."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.before = CoursePlot(palette)
        self.after = CoursePlot(palette)
        self._before_head = _Head("3  AS IT IS")
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
        highest = HEADROOM * max(before.highest, after.highest, float(room))
        seconds = max(before.seconds, after.seconds, LEAST_S)
        self.before.show_course(before, None, room, highest, seconds)
        self.after.show_course(after, before, room, highest, seconds)
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
            "finished": f"all of it, {steps}",
            "out_of_memory": f"out of memory after {steps}",
            "cancelled": f"stopped after {steps}",
            "failed": f"failed after {steps}",
        }
        self._steps.setText(text[run.status])
        peak = run.peak_reserved_bytes
        self._peak.setText("" if peak is None else f"peak {format_bytes(peak)}")
        set_role(self._peak, ROLES.get(run.status, "figure-small"))


class CoursePlot(QWidget):
    """The memory of a run over its seconds, what there is for it, and another run's as a thin line."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._course = MemoryCourse()
        self._other: MemoryCourse | None = None
        self._room = 0
        self._highest = 1.0
        self._seconds = LEAST_S
        self.setMinimumHeight(90)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def show_course(
        self, course: MemoryCourse, other: MemoryCourse | None, room: int, highest: float, seconds: float
    ) -> None:
        """Draw ``course``, and behind it ``other``; the axes reach to ``highest`` bytes and ``seconds``."""
        self._course = course
        self._other = other
        self._room = room
        self._highest = highest
        self._seconds = seconds
        self.setAccessibleName("Memory of the run")
        self.setAccessibleDescription(f"peak {format_bytes(course.highest)} of {format_bytes(room)}")
        self.update()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, 180)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        font = QFont(self.font())
        font.setPixelSize(scaled(11))
        painter.setFont(font)
        plot = QRectF(self.rect()).adjusted(scaled(AXIS_PX), scaled(ABOVE_PX), -scaled(RIGHT_PX), -scaled(BELOW_PX))
        self._paint_axes(painter, plot)
        painter.setClipRect(plot.adjusted(-1, -1, 1, 1))
        self._paint_course(painter, plot)
        painter.setClipping(False)
        self._paint_room(painter, plot)
        painter.end()

    def _paint_axes(self, painter: QPainter, plot: QRectF) -> None:
        ticks = value_ticks("bytes", 0.0, self._highest, max(2, min(MOST_TICKS, int(plot.height() / scaled(36)))))
        line = painter.fontMetrics().height()
        for value, label in ticks.marks:
            y = self._at(plot, 0.0, value).y()
            painter.setPen(QPen(QColor(self._palette.grid), 1))
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
            painter.setPen(QColor(self._palette.muted))
            text = label
            if value == ticks.marks[-1][0]:
                text = f"{label} {ticks.name}"
            box = QRectF(0, y - line / 2, plot.left() - scaled(6), line)
            painter.drawText(box, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, text)
        painter.setPen(QColor(self._palette.muted))
        for at_s, label in time_ticks(0.0, self._seconds, plot.width(), relative=False).marks:
            x = self._at(plot, at_s, 0.0).x()
            wide = painter.fontMetrics().horizontalAdvance(label)
            left = min(max(x - wide / 2, plot.left()), plot.right() - wide)
            painter.drawText(QPointF(left, plot.bottom() + line), label)

    def _paint_course(self, painter: QPainter, plot: QRectF) -> None:
        course = self._course
        palette = self._palette
        failed = course.status == "out_of_memory"
        colour = QColor(palette.critical if failed else palette.curves["allocated"])
        allocated = self._points(plot, course.times, course.allocated)
        if len(allocated) > 1:
            area = QPolygonF(allocated)
            area.append(QPointF(allocated[-1].x(), plot.bottom()))
            area.append(QPointF(allocated[0].x(), plot.bottom()))
            fill = QColor(colour)
            fill.setAlphaF(FILL_ALPHA)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(fill)
            painter.drawPolygon(area)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        if self._other is not None:
            pen = QPen(QColor(palette.muted), 1)
            pen.setDashPattern([3, 3])
            painter.setPen(pen)
            line = self._points(plot, self._other.times, self._other.reserved)
            painter.drawPolyline(QPolygonF(line))
        if course.status == "finished":
            colour = QColor(palette.good)
        painter.setPen(QPen(colour, 2))
        reserved = self._points(plot, course.times, course.reserved)
        painter.drawPolyline(QPolygonF(reserved))
        if failed and reserved:
            painter.setBrush(QColor(palette.panel))
            painter.drawEllipse(reserved[-1], scaled(5), scaled(5))

    def _paint_room(self, painter: QPainter, plot: QRectF) -> None:
        if not self._room:
            return
        y = self._at(plot, 0.0, float(self._room)).y()
        pen = QPen(QColor(self._palette.critical), 1.5)
        pen.setDashPattern([8, 4])
        painter.setPen(pen)
        painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        text = f"{format_bytes(self._room)}, all there is"
        line = painter.fontMetrics().height()
        painter.setPen(QColor(self._palette.critical))
        # at the left, where what grows is still below it
        box = QRectF(plot.left() + scaled(6), y + 2, plot.width(), line)
        painter.drawText(box, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, text)
        if self._other is not None and self._other.times.size:
            end = self._points(plot, self._other.times[-1:], self._other.reserved[-1:])
            wide = painter.fontMetrics().horizontalAdvance("as it was")
            if end and end[0].x() + scaled(8) + wide < plot.right():
                painter.setPen(QColor(self._palette.muted))
                # below what there is, and beside the end
                below = max(y + 2 + painter.fontMetrics().ascent(), end[0].y() + painter.fontMetrics().ascent() / 2)
                painter.drawText(QPointF(end[0].x() + scaled(8), below), "as it was")

    def _points(self, plot: QRectF, times: Floats, values: Floats) -> list[QPointF]:
        known = np.isfinite(values)
        return [self._at(plot, t, v) for t, v in zip(times[known].tolist(), values[known].tolist(), strict=True)]

    def _at(self, plot: QRectF, time_s: float, value: float) -> QPointF:
        x = plot.left() + plot.width() * time_s / self._seconds
        return QPointF(x, plot.bottom() - plot.height() * value / self._highest)
