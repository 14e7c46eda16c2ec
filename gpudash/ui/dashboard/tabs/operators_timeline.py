"""When which operator ran: steps above stages above operators, each as wide as it was long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QHelpEvent, QMouseEvent, QPainter, QPaintEvent, QWheelEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from gpudash.ui.colours import DARK, DARK_TEXT, LIGHT_TEXT, Palette
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.units import format_count, format_duration

ROW_PX = 16
LANE_GAP_PX = 6
NAMED_PX = 30
"""Least width of a span that carries its name."""

ZOOM = 1.25
"""What one notch of the wheel makes the shown time narrower by."""

CURVES = ("allocated", "loss", "accuracy", "d2h", "power", "idle")
"""Colours the operators share, each keeping its own."""

Span = Sequence[int]
"""Lane, depth, name, start and duration in µs."""


class OperatorsTimeline(QWidget):
    """The picture; the wheel zooms at the pointer, dragging moves, a double click shows everything.

    Signals:
        chosen: name of the operator that was clicked.
    """

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Timeline of the profiled steps")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMouseTracking(True)
        self._palette = DARK
        self._spans: Sequence[Span] = ()
        self._names: Sequence[str] = ()
        self._lanes: Sequence[str] = ()
        self._tops: list[float] = []
        self._whole_us = self._shown_us = 1.0
        self._first_us = 0.0
        self._left_out = ""
        self._selected: str | None = None
        self._pressed: QPointF | None = None
        self._dragged = False

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        self.update()

    def show_timeline(self, timeline: Mapping[str, Any]) -> None:
        """Show another profile, as `gpudash.workloads.profiling.operators.timeline` tells it."""
        self._spans, self._names = timeline["spans"], timeline["names"]
        self._lanes = timeline["lanes"]
        depths = [max((span[1] for span in self._spans if span[0] == lane), default=-1) for lane in self._lane_numbers]
        self._tops, top = [], 0.0
        for depth in depths:
            self._tops.append(top)
            top += (depth + 1) * ROW_PX + LANE_GAP_PX
        left_out = timeline["left_out"]
        self._left_out = f"{format_count(left_out)} short operators are not drawn." if left_out else ""
        self._whole_us = max(1.0, timeline["seconds"] * 1e6)
        self.setFixedHeight(max(ROW_PX, round(top)))
        self.show_all()

    @property
    def _lane_numbers(self) -> range:
        return range(len(self._lanes))

    def show_all(self) -> None:
        """Show the whole profile."""
        self._first_us, self._shown_us = 0.0, self._whole_us
        self.update()

    def select(self, name: str | None) -> None:
        """Mark the spans of an operator."""
        self._selected = name
        self.update()

    def zoom(self, factor: float, at: float) -> None:
        """Show ``factor`` times as much time; what is at the x coordinate ``at`` stays there."""
        share = at / max(1, self.width())
        moment = self._first_us + share * self._shown_us
        self._shown_us = min(self._whole_us, max(1.0, self._shown_us * factor))
        self._move_to(moment - share * self._shown_us)

    def _move_to(self, first_us: float) -> None:
        self._first_us = min(max(0.0, first_us), self._whole_us - self._shown_us)
        self.update()

    def span_at(self, point: QPointF) -> Span | None:
        """The span under a point."""
        return next((span for span in reversed(self._spans) if self._place(span).contains(point)), None)

    def _place(self, span: Span) -> QRectF:
        lane, depth, _name, start, duration = span
        scale = self.width() / self._shown_us
        top = self._tops[lane] + depth * ROW_PX
        return QRectF((start - self._first_us) * scale, top, max(1.0, duration * scale), ROW_PX - 1)

    def sizeHint(self) -> QSize:
        return QSize(200, self.height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(self._palette.field))
        for span in self._spans:
            place = self._place(span)
            if place.right() >= 0 and place.left() <= self.width():
                self._draw(painter, place, self._names[span[2]])
        painter.setPen(QColor(self._palette.muted))
        for lane, words in enumerate(self._lanes[1:], 1):
            painter.drawText(QPointF(4, self._tops[lane] + ROW_PX - 4), words)
        painter.end()

    def _draw(self, painter: QPainter, place: QRectF, name: str) -> None:
        palette = self._palette
        chosen = name == self._selected
        ground = QColor(palette.accent if chosen else palette.curves[CURVES[sum(map(ord, name)) % len(CURVES)]])
        if self._selected is not None and not chosen:
            ground.setAlpha(110)
        place.setLeft(max(0.0, place.left()))
        place.setRight(min(float(self.width()), place.right()))
        painter.fillRect(place.adjusted(0, 0, -1 if place.width() > 3 else 0, 0), ground)
        if place.width() >= NAMED_PX:
            faint = ground.alpha() < 255
            painter.setPen(QColor(palette.text if faint else DARK_TEXT if palette.dark else LIGHT_TEXT))
            inside = place.adjusted(4, 0, -4, 0)
            words = painter.fontMetrics().elidedText(
                name.removeprefix("aten::"), Qt.TextElideMode.ElideRight, int(inside.width())
            )
            painter.drawText(inside, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, words)

    def event(self, event: Any) -> bool:
        if isinstance(event, QHelpEvent):
            span = self.span_at(QPointF(event.pos()))
            if span is None:
                QToolTip.showText(event.globalPos(), plain_tip(self._left_out), self)
            else:
                lasted, began = (format_duration(span[place] / 1e6) for place in (4, 3))
                QToolTip.showText(
                    event.globalPos(), plain_tip(f"{self._names[span[2]]}\n{lasted}, from {began} on"), self
                )
            return True
        return super().event(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        notches = event.angleDelta().y() / 120
        if notches:
            self.zoom(ZOOM**-notches, event.position().x())
        event.accept()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._pressed, self._dragged = event.position(), False

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._pressed is None:
            return
        moved = event.position().x() - self._pressed.x()
        if self._dragged or abs(moved) > 3:
            self._dragged, self._pressed = True, event.position()
            self._move_to(self._first_us - moved * self._shown_us / max(1, self.width()))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        span = None if self._dragged else self.span_at(event.position())
        self._pressed = None
        if span is not None:
            self.chosen.emit(self._names[span[2]])

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.show_all()
