"""The round handle at the peak of a predicted run. Dragging it or pressing an arrow key requests another batch
size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedWidget

ROUND_PX = 18
TARGET_PX = 26
"""Logical pixels: the diameter of the circle, and the size of the clickable area."""


@dataclass(frozen=True, slots=True)
class SizedPeak:
    """The parameter that a predicted run grows with.

    Attributes:
        name: the field's name, "batch".
        size: the predicted size.
        most: the largest size that may be requested; the smallest is 1.
        item_bytes: how much one more item raises the peak, as a first estimate.
    """

    name: str
    size: int
    most: int
    item_bytes: float

    def within(self, size: float) -> int:
        """The nearest whole size in the permitted range."""
        return min(max(round(size), 1), self.most)


class PeakHandle(PaintedWidget):
    """Lies over the canvas; hidden if there is nothing to drag.

    Attributes:
        size_wanted: the requested size; 0 before anything was shown.

    Signals:
        wanted: this size was requested, in this drag; drags are counted from 1, and 0 is a key.
    """

    wanted = Signal(int, int)

    def __init__(self, palette: Palette, parent: QWidget) -> None:
        super().__init__(palette, parent)
        self._colour = palette.text
        self._sized: SizedPeak | None = None
        self._geometry: Geometry | None = None
        self._peak = QPointF()
        self._value = 0.0
        self._from: tuple[float, int] | None = None
        self._drags = itertools.count(1)
        self._drag = 0
        self.size_wanted = 0
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.SizeVerCursor)
        self.hide()

    @property
    def dragging(self) -> bool:
        """Whether the pointer is dragging it; the axes stand still meanwhile."""
        return self._from is not None

    def show_at(
        self,
        peak: QPointF | None,
        value: float,
        geometry: Geometry | None,
        sized: SizedPeak | None,
        colour: str,
        *,
        old: bool,
    ) -> None:
        """Place the handle at a peak.

        Args:
            peak: where the peak is drawn; ``None`` if there is none.
            value: its bytes.
            geometry: of the plot.
            sized: the parameter that can be changed; ``None`` for nothing.
            colour: the colour of its outline.
            old: whether the prediction is for another size than the requested one.
        """
        if peak is None or sized is None or geometry is None:
            self._from = None
            self.hide()
            return
        self._geometry = geometry
        self._colour = colour
        # While the prediction for another size is pending, the handle stays where it was dragged.
        if not (old or self.dragging) or self._sized is None or self.isHidden():
            self._sized = sized
            self._peak = peak
            self._value = value
            self.size_wanted = sized.size
        self._place()
        self.show()
        self.raise_()
        self.update()

    def _place(self) -> None:
        """Move to where the peak would be at the requested size, within the plot."""
        assert self._sized is not None and self._geometry is not None
        more = (self.size_wanted - self._sized.size) * self._sized.item_bytes
        area = self._geometry.area
        half = scaled(TARGET_PX) / 2
        y = min(max(self._geometry.y_of(self._value + more), area.top()), area.bottom())
        self.setGeometry(round(self._peak.x() - half), round(y - half), round(2 * half), round(2 * half))
        text = f"{self._sized.name} {self.size_wanted}"
        self.setAccessibleName(f"Peak of the predicted run, {text}")
        self.setToolTip(plain_tip(f"{text}\nDrag to change the {self._sized.name}, or use the arrow keys"))

    def _want(self, size: int) -> None:
        if size != self.size_wanted:
            self.size_wanted = size
            self._place()
            self.wanted.emit(size, self._drag)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton:
            self._from = event.globalPosition().y(), self.size_wanted
            self._drag = next(self._drags)
            self.setFocus(Qt.FocusReason.MouseFocusReason)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._from is None or self._sized is None or self._geometry is None:
            return
        began, size = self._from
        # Along the current axis: it does not change while the handle is held (`TimePlot.take`).
        bytes_per_px = self._geometry.value_at(0.0) - self._geometry.value_at(1.0)
        raised = (began - event.globalPosition().y()) * bytes_per_px
        self._want(self._sized.within(size + raised / self._sized.item_bytes))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._from = None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        steps = {Qt.Key.Key_Up: 1, Qt.Key.Key_Down: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_Left: -1}
        step = steps.get(Qt.Key(event.key()))
        if step is None or self._sized is None:
            event.ignore()
            return
        self._drag = 0
        self._want(self._sized.within(self.size_wanted + step))

    def focusInEvent(self, event: QFocusEvent) -> None:
        self.update()
        super().focusInEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self.update()
        super().focusOutEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        middle = QRectF(self.rect()).center()
        radius = scaled(ROUND_PX) / 2
        if self.hasFocus():
            painter.setPen(QPen(QColor(self._palette.accent), 2))
            painter.drawEllipse(middle, radius + 2.5, radius + 2.5)
        painter.setPen(QPen(QColor(self._colour), 2))
        painter.setBrush(QColor(self._palette.panel))
        painter.drawEllipse(middle, radius - 1, radius - 1)
        pen = QPen(QColor(self._palette.text), 1.6)
        pen.setCapStyle(Qt.PenCapStyle.RoundCap)
        painter.setPen(pen)
        wide = radius * 0.32
        high = radius * 0.3
        apart = radius * 0.2
        for way in (-1, 1):
            tip = QPointF(middle.x(), middle.y() + way * (apart + high))
            for side in (-wide, wide):
                painter.drawLine(QLineF(tip, QPointF(middle.x() + side, middle.y() + way * apart)))
