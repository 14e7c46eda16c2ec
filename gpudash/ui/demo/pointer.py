"""A frame around what the demo speaks of; the mouse goes through it."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QRegion
from PySide6.QtWidgets import QWidget

from gpudash.ui.theme import Palette

WIDTH_PX = 3
"""Of the frame."""

RADIUS_PX = 7


class Pointer(QWidget):
    """Lies above the window's parts and frames one of them.

    Args:
        window: whose parts are pointed at.
        palette: colours.
    """

    def __init__(self, window: QWidget, palette: Palette) -> None:
        super().__init__(window, Qt.WindowType.Widget)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._colour = QColor(palette.accent)
        self.target: QWidget | None = None
        self.hide()

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._colour = QColor(palette.accent)
        self.update()

    def point_at(self, target: QWidget | None) -> None:
        """Frame ``target``, where it is now; nothing with ``None`` or while it is not to be seen."""
        self.target = target
        window = self.window()
        if target is None or not target.isVisible() or not window.isAncestorOf(target):
            self.hide()
            return
        seen = target.visibleRegion().boundingRect()  # less than all of it where it is scrolled
        if seen.isEmpty():
            self.hide()
            return
        place = QRect(target.mapTo(window, QPoint(0, 0)) + seen.topLeft(), seen.size()).adjusted(-2, -2, 2, 2)
        if place != self.geometry():
            self.setGeometry(place)
            inner = self.rect().adjusted(RADIUS_PX, RADIUS_PX, -RADIUS_PX, -RADIUS_PX)
            self.setMask(QRegion(self.rect()) - QRegion(inner))  # what is framed is not composed anew at every frame
        self.show()
        self.raise_()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(self._colour, WIDTH_PX))
        half = WIDTH_PX / 2
        painter.drawRoundedRect(self.rect().toRectF().adjusted(half, half, -half, -half), RADIUS_PX, RADIUS_PX)
        painter.end()
