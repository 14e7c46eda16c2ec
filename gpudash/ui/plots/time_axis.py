"""What lies below the plots and never scrolls: the time axis, and the overview of the whole session."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QEvent, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QMouseEvent, QPainter, QPaintEvent, QPen, QPixmap
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.drawing.axes import Ticks
from gpudash.ui.colours import Palette
from gpudash.ui.plots.canvas import EDGE_PX, label_font
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Area, Label, paint_area
from gpudash.ui.plots.reading import SessionShape
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedWidget


class TimeAxis(PaintedWidget):
    """The ticks and the name of the time axis, below the plot areas that share it.

    Attributes:
        labels: every text with its rectangle, in widget pixels.
    """

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(palette, parent)
        self._key: object = None
        self.labels: list[Label] = []
        self.setAccessibleName("Time axis")
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._measure()

    def show_ticks(self, geometry: Geometry, ticks: Ticks) -> None:
        """Show these ticks, at positions relative to the origin, below a plot area with this geometry."""
        key = (geometry.area.left(), geometry.area.right(), geometry.x_low, geometry.x_high, ticks, self.width())
        if key != self._key:
            self._key = key
            self.labels = self._laid_out(geometry, ticks)
            self.setAccessibleDescription(", ".join(label.text for label in self.labels))
            self.update()

    def _laid_out(self, geometry: Geometry, ticks: Ticks) -> list[Label]:
        metrics, area = self._metrics, geometry.area
        height = metrics.height()
        labels: list[Label] = []
        free = 0.0
        for position, text in ticks.marks:
            width = metrics.horizontalAdvance(text) + 1
            x = geometry.x_of(position + geometry.origin_s)
            left = min(max(x - width / 2, 0.0), self.width() - width)
            # Labels at the ends are pushed inwards; one that would then touch its neighbour is left out.
            if area.left() - 1 <= x <= area.right() + 1 and left >= free:
                labels.append(Label(text, QRectF(left, 1, width, height)))
                free = left + width + 8
        width = metrics.horizontalAdvance(ticks.name) + 2
        labels.append(Label(ticks.name, QRectF(area.center().x() - width / 2, height + 1, width, height)))
        return labels

    def _measure(self) -> None:
        self._font = label_font(self)
        self._metrics = QFontMetricsF(self._font)
        self._key = None
        self.setFixedHeight(math.ceil(2 * self._metrics.height()) + 2)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._measure()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(self._font)
        painter.setPen(QColor(self._palette.muted))
        for label in self.labels:
            painter.drawText(label.rect, Qt.AlignmentFlag.AlignCenter, label.text)


OVERVIEW_PX = 24

HANDLE_PX = 8.0
"""Minimum width of the handle that marks the visible part."""

LONGER = 1.02
"""The overview appears once the session is this many times as long as the view."""


@dataclass(slots=True)
class _Grip:
    """What a drag grips: the whole handle or one of its ends. Times are session times at the press."""

    part: str
    at_s: float
    span: tuple[float, float]


class SessionOverview(PaintedWidget):
    """The whole session in one strip, with a handle that marks the visible part.

    Dragging the handle moves the view, dragging an end resizes it, a press elsewhere moves the view there, and a
    double click shows everything. It keeps its room while it is empty, so that nothing above it jumps.
    """

    def __init__(self, view: TimeView, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(palette, parent)
        self._view = view
        self._shape: SessionShape | None = None
        self._insets = (0.0, 0.0)
        self._grip: _Grip | None = None
        self.setAccessibleName("Overview of the session")
        self.setToolTip("The whole session. Drag the handle to move through it; double click shows everything.")
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._wanted = True
        self.set_wanted(True)
        self.setFixedHeight(scaled(OVERVIEW_PX))
        self.setMouseTracking(True)
        self.hide()
        self._drawn_handle = QRect()
        self._picture_key: object = None
        self._picture = QPixmap()
        # Repaint on view changes only if the handle moves by a pixel (`_follow`).
        view.changed.connect(self._follow)

    def sizeHint(self) -> QSize:
        return QSize(200, scaled(OVERVIEW_PX))

    def set_insets(self, left: float, right: float) -> None:
        """Align with the plot areas, in pixels from either side."""
        if (left, right) != self._insets:
            self._insets = left, right
            self.update()

    @property
    def area(self) -> QRectF:
        """Where the session is drawn, in widget pixels."""
        left, right = self._insets
        return QRectF(left, 3, max(10.0, self.width() - left - right), self.height() - 6)

    @property
    def handle(self) -> QRectF:
        """The visible part, in widget pixels; empty without a session."""
        shape, area = self._shape, self.area
        if shape is None:
            return QRectF()
        left, right = (min(max(self._x_of(t), area.left()), area.right()) for t in self._view.range())
        if right - left < HANDLE_PX:
            middle = min(max((left + right) / 2, area.left() + HANDLE_PX / 2), area.right() - HANDLE_PX / 2)
            left, right = middle - HANDLE_PX / 2, middle + HANDLE_PX / 2
        return QRectF(left, area.top(), right - left, area.height())

    def set_wanted(self, wanted: bool) -> None:
        """Take up room, or leave it to the plots."""
        self._wanted = wanted
        policy = self.sizePolicy()
        # So that nothing jumps when the overview appears and disappears with the length of the session.
        policy.setRetainSizeWhenHidden(wanted)
        self.setSizePolicy(policy)
        if not wanted:
            self.hide()

    def show_session(self, shape: SessionShape | None) -> None:
        """Draw this session; nothing if all of it is in view or there is none."""
        if shape is not self._shape:
            self._shape, self._picture_key = shape, None
            self.update()
        start, end = self._view.range()
        # The session outgrew the view, or the view is far from its start.
        longer = shape is not None and shape.end_s - shape.start_s > LONGER * (end - start)
        elsewhere = shape is not None and start > shape.start_s + 0.5 * (end - start)
        self.setVisible(self._wanted and (longer or elsewhere))
        self._follow()

    def _x_of(self, time_s: float) -> float:
        assert self._shape is not None
        area = self.area
        length = max(self._shape.end_s - self._shape.start_s, 1e-9)
        return area.left() + (time_s - self._shape.start_s) / length * area.width()

    def _time_at(self, x: float) -> float:
        assert self._shape is not None
        area = self.area
        share = (x - area.left()) / area.width()
        return self._shape.start_s + share * (self._shape.end_s - self._shape.start_s)

    def _follow(self) -> None:
        """Repaint once the handle has moved by a pixel."""
        handle = self.handle.toRect()
        if handle != self._drawn_handle:
            self._drawn_handle = handle
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._shape is None:
            return
        painter, area, palette = QPainter(self), self.area, self._palette
        painter.drawPixmap(0, 0, self._session_picture(self._shape))
        handle = self.handle
        shade = QColor(palette.window)
        shade.setAlphaF(0.55)
        painter.fillRect(QRectF(area.left(), area.top(), handle.left() - area.left(), area.height()), shade)
        painter.fillRect(QRectF(handle.right(), area.top(), area.right() - handle.right(), area.height()), shade)
        painter.setPen(QPen(QColor(palette.accent), 1))
        painter.drawRect(handle.adjusted(0.5, -0.5, -0.5, 0.5))
        for x in (handle.left(), handle.right()):
            painter.fillRect(QRectF(x - 1.5, area.center().y() - 5, 3, 10), QColor(palette.accent))

    def _session_picture(self, shape: SessionShape) -> QPixmap:
        """Runs and memory, cached as a pixmap while the session and the size stay the same: every frame shows it."""
        key = (self.size(), self._insets, self._palette.name, self.devicePixelRatioF())
        if key != self._picture_key:
            self._picture_key = key
            self._picture = QPixmap(self.size() * self.devicePixelRatioF())
            self._picture.setDevicePixelRatio(self.devicePixelRatioF())
            self._picture.fill(Qt.GlobalColor.transparent)
            painter = QPainter(self._picture)
            painter.fillRect(self.area, QColor(self._palette.field))
            tint = QColor(self._palette.accent)
            tint.setAlphaF(0.12)
            for began, ended in shape.runs:
                left, right = self._x_of(began), self._x_of(ended)
                painter.fillRect(QRectF(left, self.area.top(), max(1.0, right - left), self.area.height()), tint)
            self._paint_memory(painter, shape)
            painter.end()
        return self._picture

    def _paint_memory(self, painter: QPainter, shape: SessionShape) -> None:
        times, values = shape.memory
        known = np.isfinite(values)
        if np.count_nonzero(known) < 2:
            return
        area = self.area
        x = area.left() + (times - shape.start_s) / max(shape.end_s - shape.start_s, 1e-9) * area.width()
        y = area.bottom() - values / max(float(values[known].max()), 1.0) * (area.height() - 2)
        colour = QColor(self._palette.curves["used"])
        colour.setAlphaF(0.5)
        for run in np.split(np.arange(len(times)), np.flatnonzero(~known)):
            inside = run[known[run]]
            if len(inside) > 1:
                ground = x[inside[[0, -1]]], np.full(2, area.bottom())
                paint_area(painter, Area((x[inside], y[inside]), ground, colour))

    def _part_under(self, x: float) -> str:
        handle = self.handle
        # A narrow handle has no ends to grip: dragging moves all of it.
        if handle.width() > 3 * EDGE_PX:
            for part, edge in (("start", handle.left()), ("end", handle.right())):
                if abs(x - edge) <= EDGE_PX:
                    return part
        if handle.left() - EDGE_PX <= x <= handle.right() + EDGE_PX:
            return "whole"
        return ""

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if self._shape is None or event.button() is not Qt.MouseButton.LeftButton:
            return
        x = event.position().x()
        part = self._part_under(x)
        if not part:
            start, end = self._view.range()
            # A press beside the handle brings it there, and the same press continues as a drag.
            self._view.pan(self._time_at(x) - (start + end) / 2)
            part = "whole"
        self._grip = _Grip(part, self._time_at(x), self._view.range())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        x, grip = event.position().x(), self._grip
        if self._shape is None:
            return
        if grip is None:
            shape = Qt.CursorShape.PointingHandCursor
            if self._part_under(x) in ("start", "end"):
                shape = Qt.CursorShape.SizeHorCursor
            self.setCursor(shape)
            return
        moved = self._time_at(x) - grip.at_s
        start, end = grip.span
        if grip.part == "whole":
            # From the view's current position: it may have stopped at an end of the session.
            self._view.pan(start + moved - self._view.range()[0])
        elif grip.part == "start":
            self._view.resize(start + moved, end)
        else:
            self._view.resize(start, end + moved)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._grip = None
        self._view.settle()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        if self._shape is not None:
            self._view.show_all((self._shape.start_s, self._shape.end_s))
