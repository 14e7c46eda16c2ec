"""Marks the steps of a run that deviated from their prediction, in its memory plot."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

from gpudash.session.predicting.deviations import Deviation
from gpudash.ui.colours import Palette
from gpudash.ui.plots.painting.geometry import Geometry
from gpudash.ui.plots.painting.layers import Label, PaintedLayer

MARK_PX = 5.0
NEAR_PX = 9.0
"""Half the size of a mark: within this distance of its centre the pointer is on it."""


class DeviationsLayer(PaintedLayer):
    """A mark for each deviating step, labelled with the difference if there is room; the first says to what it is.

    Attributes:
        marks: each deviation with the centre of its mark in canvas pixels.
        labels: every text with its rectangle.
    """

    def __init__(self, font: QFont, palette: Palette) -> None:
        super().__init__(60, palette)
        self.marks: list[tuple[Deviation, QPointF]] = []
        self.labels: list[Label] = []
        self.set_font(font)
        self.hide()  # even a layer that paints nothing costs a little in each frame

    def set_font(self, font: QFont) -> None:
        """Use this font from the next `show_deviations` on."""
        self._font = QFont(font)
        self._font.setBold(True)

    def show_deviations(self, deviations: Sequence[Deviation], geometry: Geometry) -> None:
        """Mark these deviations."""
        # Nothing before and nothing now: nothing to update. That is most plots, most of the time.
        if not (deviations or self.marks):
            return
        area = geometry.area
        metrics = QFontMetricsF(self._font)
        self.marks = []
        self.labels = []
        for deviation in deviations:
            point = QPointF(geometry.x_of(deviation.at_s), geometry.y_of(deviation.held))
            if not area.left() <= point.x() <= area.right():
                continue
            # A step beyond the axis is marked at its edge.
            point.setY(min(max(point.y(), area.top() + MARK_PX), area.bottom() - MARK_PX))
            self.marks.append((deviation, point))
            text = deviation.label
            if not self.labels and metrics.horizontalAdvance(deviation.whole_label) < area.width() / 2:
                text = deviation.whole_label
            width = metrics.horizontalAdvance(text) + 2
            top = point.y() - MARK_PX - metrics.height() - 3
            if top < area.top():
                top = point.y() + MARK_PX + 3
            rect = QRectF(point.x() - width / 2, top, width, metrics.height())
            rect.moveLeft(min(max(rect.left(), area.left() + 2), area.right() - width - 2))
            # Marks come in time order, so only the previous label can be in the way.
            if not self.labels or rect.left() > self.labels[-1].rect.right() + 6:
                self.labels.append(Label(text, rect))
        self.setVisible(bool(self.marks))
        self.update()

    def text_at(self, point: QPointF) -> str:
        """Describe the mark under the pointer; "" if there is none."""
        nearest = NEAR_PX + 1.0
        text = ""
        for deviation, at in self.marks:
            away = (at - point).manhattanLength()
            if away <= NEAR_PX and away < nearest:
                nearest = away
                text = deviation.text
        return text

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        warn = QColor(self._palette.warn)
        ground = QColor(self._palette.panel)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for _, at in self.marks:
            painter.setPen(QPen(ground, 1))
            painter.setBrush(warn)
            corners = ((0, -MARK_PX), (MARK_PX, 0), (0, MARK_PX), (-MARK_PX, 0))
            painter.drawPolygon(QPolygonF([at + QPointF(*corner) for corner in corners]))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, on=False)
        ground.setAlphaF(0.8)
        painter.setFont(self._font)
        for label in self.labels:
            painter.fillRect(label.rect.adjusted(-2, 0, 2, 0), ground)
            painter.setPen(warn)
            painter.drawText(label.rect, Qt.AlignmentFlag.AlignCenter, label.text)
