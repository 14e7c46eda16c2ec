"""A row beside the tabs: the parts of a run's step as a bar, and a sentence about what it waits for."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy

from gpudash.telemetry.results.step_parts import StepParts
from gpudash.ui.colours import DARK, text_on
from gpudash.ui.widgets.plain_text import plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedWidget
from gpudash.units import format_duration, format_percent

CURVES = {
    "input": "inputs",
    "copies": "h2d",
    "forward": "activations",
    "backward": "gradients",
    "optimizer": "optimizer state",
    "other": "other",
}
"""Colour of each part: that of the curve with the same meaning."""

BAR_SHARE = 0.35
"""Share of the row taken by the bar; the sentence has the rest."""

PADDING, GAP = 3, 10
"""Logical pixels around the bar's labels, and between the bar and the sentence."""


class StepPartsRow(PaintedWidget):
    """Draws the parts of a step; hidden if they are unknown. The tooltip has the full text."""

    def __init__(self) -> None:
        super().__init__(DARK)
        self._parts: StepParts | None = None
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Parts of a step")
        self.hide()

    def show_parts(self, parts: StepParts | None) -> None:
        """Draw ``parts``; ``None`` hides the row."""
        if parts == self._parts:
            return
        self._parts = parts
        self.setVisible(parts is not None)
        if parts is not None:
            text = f"A step of {format_duration(parts.seconds)}: {parts.line()}. {parts.text()}"
            self.setToolTip(plain_tip(text))
            self.setAccessibleDescription(text)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(0, self.fontMetrics().height() + scaled(PADDING))

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        parts = self._parts
        if parts is None:
            return
        painter = QPainter(self)
        left, whole = 0.0, self.width() * BAR_SHARE
        for part, share in parts.shares.items():
            self._paint_part(painter, QRectF(left, 0, share * whole, self.height()), part, share)
            left += share * whole
        place = QRectF(whole + scaled(GAP), 0, self.width() - whole - scaled(GAP), self.height())
        painter.setPen(QColor(self._palette.text))
        text = painter.fontMetrics().elidedText(parts.text(), Qt.TextElideMode.ElideRight, int(place.width()))
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, text)
        painter.end()

    def _paint_part(self, painter: QPainter, place: QRectF, part: str, share: float) -> None:
        ground = QColor(self._palette.curves[CURVES[part]])
        painter.fillRect(place.adjusted(0, 0, -1, 0), ground)
        labels = (f"{part} {format_percent(share)}", format_percent(share))
        metrics = painter.fontMetrics()
        room = place.width() - 2 * scaled(PADDING)
        # The longest that fits: a cut word could be read as another.
        fitting = next((text for text in labels if metrics.horizontalAdvance(text) <= room), "")
        painter.setPen(text_on(ground))
        painter.drawText(place, Qt.AlignmentFlag.AlignCenter, fitting)
