"""Buttons of the stage: a key as printed on a keyboard, and what it does."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QPushButton

from gpudash.ui.colours import Palette, mixed
from gpudash.ui.widgets.plain_text import plain_tip


class KeyButton(QPushButton):
    """A key and its action; clicking the button does the same.

    Args:
        key: the key as printed on the keyboard.
        label: what the key does.
        act: called when the key is pressed.
        palette: colours.
        tip: one more sentence, for the tooltip.
    """

    def __init__(self, key: str, label: str, act: Callable[[], None], palette: Palette, tip: str = "") -> None:
        super().__init__()
        self._key, self._label, self._colours = key, label, palette
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(f"{label} ({key})")
        self.setToolTip(plain_tip(tip or label))
        self.clicked.connect(act)

    @property
    def label(self) -> str:
        """What the key does."""
        return self._label

    def set_key(self, key: str) -> None:
        """Change the key that the button shows."""
        if key != self._key:
            self._key = key
            self.setAccessibleName(f"{self._label} ({key})")
            self.updateGeometry()
            self.update()

    def set_label(self, label: str) -> None:
        """Change what the button says the key does."""
        if label != self._label:
            self._label = label
            self.setAccessibleName(f"{label} ({self._key})")
            self.updateGeometry()
            self.update()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._colours = palette
        self.update()

    def set_pixels(self, size: int) -> None:
        """Set the font size in pixels."""
        self.setStyleSheet(f"font-size: {size}px; border: 0px; background: transparent; padding: 0px;")
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        height = QFontMetricsF(self.font()).height()
        return QSize(round(self._whole_width(self.font())), max(26, round(height * 1.55)))

    def width_for(self, size: int) -> float:
        """The width it takes in type of ``size`` pixels."""
        font = QFont(self.font())
        font.setPixelSize(size)
        return self._whole_width(font)

    def minimumSizeHint(self) -> QSize:
        """Small, so that the buttons never stop the window from shrinking with the screen."""
        return QSize(0, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        colours = self._colours
        metrics = QFontMetricsF(self.font())
        width = self._key_width(metrics)
        chip = QRectF(1.5, 1.5, width, self.height() - 3)
        ground = colours.button_hover if self.underMouse() else colours.button
        edge = colours.accent if self.hasFocus() else colours.border
        painter.setPen(QPen(QColor(edge), 2 if self.hasFocus() else 1))
        painter.setBrush(QColor(ground))
        painter.drawRoundedRect(chip, 4, 4)
        ink = QColor(colours.text)
        if not self.isEnabled():
            ink = mixed(QColor(colours.muted), QColor(colours.button), 0.3)
        bold = QFont(self.font())
        bold.setBold(True)
        painter.setFont(bold)
        painter.setPen(ink)
        painter.drawText(chip, Qt.AlignmentFlag.AlignCenter, self._key)
        painter.setFont(self.font())
        if self.isEnabled():
            painter.setPen(QColor(colours.muted))
        left = chip.right() + metrics.height() * 0.35
        rest = QRectF(left, 0, self.width() - left, self.height())
        painter.drawText(rest, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, self._label)
        painter.end()

    def _whole_width(self, font: QFont) -> float:
        metrics = QFontMetricsF(font)
        return self._key_width(metrics) + metrics.height() * 0.35 + metrics.horizontalAdvance(self._label) + 6

    def _key_width(self, metrics: QFontMetricsF) -> float:
        return metrics.horizontalAdvance(self._key) * 1.12 + metrics.height() * 0.7
