"""A predicted peak as a bar of its parts against the memory that is free."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRectF, Qt
from PySide6.QtGui import QColor, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from gpudash.memory.predicting.estimate import Estimate
from gpudash.memory.predicting.estimate_words import COMMUNICATION, HELD_BACK, bar_bytes, headline, segments
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.units import format_bytes

HEIGHT = 16

STALE_ALPHA = 90
"""Opacity, of 255, of figures that are being predicted anew."""

GAP = 1.0
"""Logical pixels between two parts, so that neighbours are told apart by more than colour."""

SMALLEST = 2.0
"""Logical pixels that a part needs to be drawn with its gap."""


def part_colour(name: str, palette: Palette) -> str:
    """The colour of a part of the bar; the same as of its band in the plots, where it has one."""
    return palette.curves[{HELD_BACK: "idle", COMMUNICATION: "other tensors"}.get(name, name)]


class FitBar(QWidget):
    """The bar reaches to what is free, or to what is needed where that is more: then the overhang is hatched."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._estimate: Estimate | None = None
        self._stale = False
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Predicted memory")

    def show_estimate(self, estimate: Estimate | None, palette: Palette, *, stale: bool) -> None:
        """Draw a prediction, faint while it is out of date; ``None`` draws an empty bar."""
        self._estimate, self._palette, self._stale = estimate, palette, stale
        parts = [] if estimate is None else [f"{name} {format_bytes(size)}" for name, size in segments(estimate)]
        if estimate is not None:
            parts = [headline(estimate), *parts, f"free {format_bytes(estimate.free_bytes)}"]
        self.setAccessibleDescription("; ".join(parts))
        self.update()

    def parts(self) -> list[tuple[str, int, QRectF]]:
        """Name, bytes and place of each part, from the left."""
        if self._estimate is None:
            return []
        scale = self._pixels_per_byte()
        placed, left = [], 0.0
        for name, size in segments(self._estimate):
            width = size * scale
            placed.append((name, size, QRectF(left, 1, width, HEIGHT - 2)))
            left += width
        return placed

    def free_end(self) -> float | None:
        """Where free memory ends, in pixels; ``None`` when it is not known or reaches to the bar's end."""
        estimate = self._estimate
        if estimate is None or estimate.free_bytes is None or bar_bytes(estimate) <= estimate.free_bytes:
            return None
        return estimate.free_bytes * self._pixels_per_byte()

    def _pixels_per_byte(self) -> float:
        estimate = self._estimate
        assert estimate is not None
        return self.width() / max(bar_bytes(estimate), estimate.free_bytes or 0, 1)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._palette.border), 1))
        painter.setBrush(QColor(self._palette.window))
        painter.drawRoundedRect(QRectF(0.5, 0.5, self.width() - 1, HEIGHT - 1), 3, 3)
        painter.setPen(Qt.PenStyle.NoPen)
        for name, _size, place in self.parts():
            colour = QColor(part_colour(name, self._palette))
            if self._stale:
                colour.setAlpha(STALE_ALPHA)
            gap = GAP if place.width() > SMALLEST else 0.0
            painter.fillRect(place.adjusted(0, 0, -gap, 0), colour)
        end = self.free_end()
        if end is not None:
            self._mark_overhang(painter, end)

    def _mark_overhang(self, painter: QPainter, end: float) -> None:
        critical = QColor(self._palette.critical)
        beyond = QRectF(end, 1, self.width() - end, HEIGHT - 2)
        painter.fillRect(beyond, QColor(self._palette.panel if self._stale else self._palette.banner_critical))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setClipRect(beyond)
        painter.setPen(QPen(critical, 1.5))
        for left in range(int(end) - HEIGHT, self.width() + HEIGHT, 6):
            painter.drawLine(left, HEIGHT, left + HEIGHT, 0)
        painter.setClipping(False)
        painter.fillRect(QRectF(end - 1, 0, 2, HEIGHT), critical)

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            QToolTip.showText(event.globalPos(), plain_tip(self.words_at(event.pos().x())), self)
            return True
        return super().event(event)

    def words_at(self, x: float) -> str:
        """What is at a place of the bar, in words."""
        estimate = self._estimate
        if estimate is None:
            return "Nothing has been predicted yet"
        end = self.free_end()
        beyond = "\nbeyond what is free" if end is not None and x > end else ""
        for name, size, place in self.parts():
            if place.left() <= x <= place.right():
                return f"{name}: {format_bytes(size)}{beyond}"
        spare = (estimate.free_bytes or 0) - bar_bytes(estimate)
        return f"left over at the peak: {format_bytes(max(0, spare))}"
