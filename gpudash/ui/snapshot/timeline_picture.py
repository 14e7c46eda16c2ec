"""Drawing of the timeline: grid, curves, phases and marks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen, QPolygonF

from gpudash.ui.plots.ticks import Ticks, value_ticks
from gpudash.ui.snapshot.levels import Axis, Ints, Levels, band_runs, extremes
from gpudash.ui.theme import Palette
from gpudash.units import format_bytes, format_count, format_duration

BAND_HEIGHT = 15
"""Logical pixels of the strip that names the phases."""

PHASE_CURVES = {"forward": "activations", "backward": "gradients", "optimizer": "optimizer state"}
"""Phases in the colours of what they allocate."""

LEAST_BAND = 8
"""Logical pixels that phases must have on average to be drawn one by one."""

SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}

HEADROOM = 1.06
"""Height of the axis over the highest level."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where things are drawn.

    Attributes:
        plot: the rectangle of the curves.
        left, right: places of the x axis at its edges.
        top: bytes at its upper edge.
    """

    plot: QRectF
    left: float
    right: float
    top: float

    def x(self, place: float) -> float:
        """Pixel of a place."""
        return self.plot.left() + (place - self.left) / (self.right - self.left) * self.plot.width()

    def y(self, size: float) -> float:
        """Pixel of a number of bytes."""
        return self.plot.bottom() - size / self.top * self.plot.height()

    def place(self, x: float) -> float:
        """Place of a pixel."""
        return self.left + (x - self.plot.left()) / self.plot.width() * (self.right - self.left)


def highest(levels: Levels) -> float:
    """Bytes that the axis reaches to: above the curves, and above the capacity where it is known."""
    most = int(max(levels.reserved.max(initial=0), levels.allocated.max(initial=0), levels.capacity or 0))
    return max(1.0, most * HEADROOM)


def place_words(levels: Levels, moment: int) -> str:
    """A moment in words: "event 18 053 · 112 ms"."""
    if moment < 0:
        return "before the first event"
    number = f"event {format_count(moment)}"
    return number if levels.time_s is None else f"{number} · {format_duration(float(levels.time_s[moment]))}"


def x_ticks(frame: Frame, by_time: bool) -> Ticks:
    """Ticks of the x axis: seconds since the first event, or numbers of events."""
    count = max(2, int(frame.plot.width() / 90))
    if not by_time:
        found = value_ticks("number", frame.left, frame.right, count, unit_name="events")
        marks = tuple((v, format_count(round(v))) for v, _words in found.marks if v == round(v))
        return Ticks(marks, "events")
    span = frame.right - frame.left
    scale, name = next(((s, n) for s, n in ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s")) if span < 5000 * s), (60.0, "min"))
    found = value_ticks("number", frame.left / scale, frame.right / scale, count)
    step = found.marks[1][0] - found.marks[0][0] if len(found.marks) > 1 else 1.0
    digits = max(0, int(np.ceil(-np.log10(step) - 1e-9)))
    return Ticks(tuple((v * scale, f"{v:,.{digits}f}".replace(",", "\u202f")) for v, _words in found.marks), name)


class Picture:
    """Draws one state of the timeline."""

    def __init__(self, levels: Levels, axis: Axis, frame: Frame, palette: Palette) -> None:
        self._levels = levels
        self._axis = axis
        self._frame = frame
        self._palette = palette
        self._columns = max(1, int(frame.plot.width()))
        self._starts = axis.starts(frame.left, frame.right, self._columns)

    def draw(self, painter: QPainter) -> None:
        """Grid, phases, curves, the capacity and its words."""
        painter.save()
        self._draw_grid(painter)
        painter.setClipRect(self._frame.plot.adjusted(0, -BAND_HEIGHT - 2, 1, 1))
        self._draw_bands(painter)
        curves = self._palette.curves
        self._draw_curve(painter, self._levels.reserved, QColor(curves["reserved"]), 0.18)
        self._draw_curve(painter, self._levels.allocated, QColor(curves["allocated"]), 0.35)
        painter.restore()
        self._draw_capacity(painter)

    def _draw_grid(self, painter: QPainter) -> None:
        plot, metrics = self._frame.plot, QFontMetricsF(painter.font())
        sizes = value_ticks("bytes", 0.0, self._frame.top, max(2, int(plot.height() / 42)))
        for size, words in sizes.marks:
            y = round(self._frame.y(size)) + 0.5
            painter.setPen(QColor(self._palette.grid))
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
            painter.setPen(QColor(self._palette.muted))
            place = QRectF(0, y - metrics.height() / 2, plot.left() - 6, metrics.height())
            painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, words)
        painter.drawText(
            QRectF(2, plot.top() - BAND_HEIGHT - 3, plot.left() - 8, BAND_HEIGHT),
            Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter,
            sizes.name,
        )
        self._draw_x_ticks(painter, metrics)

    def _draw_x_ticks(self, painter: QPainter, metrics: QFontMetricsF) -> None:
        plot = self._frame.plot
        ticks = x_ticks(self._frame, self._axis.by_time)
        name_left = plot.right() - metrics.horizontalAdvance(ticks.name)
        top = plot.bottom() + 3
        painter.setPen(QColor(self._palette.muted))
        for place, words in ticks.marks:
            x = self._frame.x(place)
            wide = metrics.horizontalAdvance(words)
            painter.drawLine(QPointF(x, plot.bottom()), QPointF(x, plot.bottom() + 3))
            if x + wide / 2 < name_left - 6:
                painter.drawText(QPointF(max(plot.left() - wide / 3, x - wide / 2), top + metrics.ascent()), words)
        painter.drawText(QPointF(name_left, top + metrics.ascent()), ticks.name)

    def _draw_bands(self, painter: QPainter) -> None:
        plot, metrics = self._frame.plot, QFontMetricsF(painter.font())
        runs = band_runs(self._levels.bands, self._starts)
        if len(runs) * LEAST_BAND > plot.width():
            strip = QRectF(plot.left(), plot.top() - BAND_HEIGHT - 1, plot.width(), BAND_HEIGHT)
            painter.fillRect(strip, QColor(self._palette.grid))
            painter.setPen(QColor(self._palette.muted))
            painter.drawText(strip, Qt.AlignmentFlag.AlignCenter, "many phases: zoom in to tell them apart")
            return
        for name, first, end in runs:
            colour = QColor(self._palette.curves.get(PHASE_CURVES.get(name, ""), self._palette.muted))
            strip = QRectF(plot.left() + first, plot.top() - BAND_HEIGHT - 1, end - first, BAND_HEIGHT)
            colour.setAlphaF(0.30)
            painter.fillRect(strip, colour)
            colour.setAlphaF(0.07)
            painter.fillRect(QRectF(strip.left(), plot.top(), strip.width(), plot.height()), colour)
            painter.setPen(QColor(self._palette.text))
            words = next(
                (w for w in (name, SHORT.get(name, "")) if w and metrics.horizontalAdvance(w) + 6 <= strip.width()), ""
            )
            painter.drawText(strip, Qt.AlignmentFlag.AlignCenter, words)
            painter.setPen(QColor(self._palette.panel))
            painter.drawLine(strip.topRight(), strip.bottomRight())

    def _draw_curve(self, painter: QPainter, sizes: Ints, colour: QColor, filling: float) -> None:
        """Columns from the lowest to the highest level, joined where neighbours do not touch, above a faint filling."""
        low, high = extremes(sizes, self._starts)
        plot = self._frame.plot
        scale = plot.height() / self._frame.top
        tops, feet = plot.bottom() - high * scale, plot.bottom() - low * scale
        feet[1:] = np.maximum(feet[1:], np.minimum(tops[:-1], plot.bottom()))
        feet[:-1] = np.maximum(feet[:-1], np.minimum(tops[1:], plot.bottom()))
        left = plot.left() + 0.5
        edge = QPolygonF([QPointF(left + k, y) for k, y in enumerate(tops.tolist())])
        ground = QColor(colour)
        ground.setAlphaF(filling)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(ground)
        painter.drawPolygon(
            QPolygonF([QPointF(left, plot.bottom()), *edge.toList(), QPointF(left + len(tops) - 1, plot.bottom())])
        )
        painter.setBrush(colour)
        for column, (top, foot) in enumerate(zip(tops.tolist(), feet.tolist(), strict=True)):
            painter.fillRect(QRectF(plot.left() + column, top - 0.75, 1.0, max(1.5, foot - top + 0.75)), colour)

    def _draw_capacity(self, painter: QPainter) -> None:
        capacity = self._levels.capacity
        if capacity is None:
            return
        y = self._frame.y(capacity)
        painter.setPen(QPen(QColor(self._palette.curves["capacity"]), 1.5, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(self._frame.plot.left(), y), QPointF(self._frame.plot.right(), y))
        words = f"room for PyTorch {format_bytes(capacity)}"
        metrics = QFontMetricsF(painter.font())
        place = QRectF(self._frame.plot.left() + 4, y + 2, metrics.horizontalAdvance(words) + 6, metrics.height())
        ground = QColor(self._palette.panel)
        ground.setAlphaF(0.8)
        painter.fillRect(place, ground)
        painter.setPen(QColor(self._palette.critical))
        painter.drawText(place, Qt.AlignmentFlag.AlignCenter, words)
