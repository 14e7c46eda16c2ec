"""Base of the stage's painting: text that shrinks to fit its room, and blocks of memory."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontDatabase, QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from gpudash.drawing.stages import StageBlock
from gpudash.session.demo.pictures import REFUSED
from gpudash.ui.colours import Palette, mixed

CODE, PEAK, FIGURE, AXIS = 56, 44, 36, 28
"""Font sizes in pixels on a `WIDE` × `HIGH` screen: code, the peak, figures and names, axes and remarks."""

SMALLEST = 24
"""Smallest font size that a long text shrinks to; 18 pt."""

WIDE, HIGH = 2560, 1440

LEAST = {CODE: 20, PEAK: 20, FIGURE: 17, AXIS: 16}
"""Minimum font sizes in pixels, of the screen itself, whatever its size and scale factor, where there is room."""

SHRUNK = 13
"""Minimum font size in pixels, of the screen itself, of a text that would be cut otherwise."""

HATCH_PX = 7
"""Distance between the lines of the hatch that means "does not fit"."""

FILL, FILL_COMING = 0.38, 0.78
"""Share of the background in a block's colour: for an existing block, and for one still to come."""


@dataclass(frozen=True, slots=True)
class DrawnText:
    """A text that was painted.

    Attributes:
        text: the whole text.
        place: rectangle it takes.
        room: rectangle it may take.
        cut: whether it was elided.
    """

    text: str
    place: QRectF
    room: QRectF
    cut: bool


class StagePainting(QWidget):
    """A widget that paints type sized for a whole screen.

    Args:
        palette: colours.

    Attributes:
        drawn: texts of the latest paint event.
    """

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._colours = palette
        self._scale = 1.0
        self._gap = 8.0
        self.drawn: list[DrawnText] = []
        self._mono = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._colours = palette
        self.update()

    @property
    def edge(self) -> float:
        """Margin between the screen's edge and its content, in pixels."""
        return 72 * self._scale

    def px(self, size: int) -> int:
        """A font size scaled to this screen, in pixels."""
        return max(self.least(size), round(size * self._scale))

    def least(self, size: int) -> int:
        """Smallest size of such type, in Qt's pixels. It counts the screen's own: the type is made for the whole
        screen, so that a scale factor of the desktop must not enlarge it until it is cut."""
        return round(LEAST.get(size, 1) / self.devicePixelRatioF())

    @property
    def smallest_shown(self) -> int:
        """The size below which no text shrinks on any screen, in Qt's pixels."""
        return round(SHRUNK / self.devicePixelRatioF())

    @property
    def _smallest(self) -> int:
        """Smallest font size on this screen, in pixels; 18 pt on a full-size one."""
        return max(self.smallest_shown, round(SMALLEST * self._scale))

    def _font(self, size: int, *, bold: bool = False, mono: bool = False) -> QFont:
        font = QFont(self.font())
        if mono:
            font.setFamily(self._mono)
        font.setPixelSize(self.px(size))
        font.setBold(bold)
        return font

    def _line(self, size: int) -> float:
        return QFontMetricsF(self._font(size)).height()

    def _write(
        self,
        painter: QPainter,
        room: QRectF,
        text: str,
        font: QFont,
        colour: QColor | str,
        align: Qt.AlignmentFlag = Qt.AlignmentFlag.AlignLeft,
    ) -> QRectF:
        """Write a line of text within ``room``; if it is too long, shrink it by about a quarter at most, then elide
        it."""
        if not text.strip():
            return QRectF()
        used = QFont(font)
        least = max(self._smallest, round(font.pixelSize() * 0.72))
        while QFontMetricsF(used).horizontalAdvance(text) > room.width() and used.pixelSize() > least:
            used.setPixelSize(used.pixelSize() - 1)
        metrics = QFontMetricsF(used)
        shown = text
        if metrics.horizontalAdvance(text) > room.width() + 0.5:
            shown = metrics.elidedText(text, Qt.TextElideMode.ElideRight, room.width())
        taken = metrics.horizontalAdvance(shown)
        left = room.left()
        if align == Qt.AlignmentFlag.AlignRight:
            left = room.right() - taken
        elif align == Qt.AlignmentFlag.AlignHCenter:
            left = room.center().x() - taken / 2
        place = QRectF(left, room.center().y() - metrics.height() / 2, taken, metrics.height())
        painter.setFont(used)
        painter.setPen(QColor(colour))
        painter.drawText(QPointF(place.left(), place.top() + metrics.ascent()), shown)
        self.drawn.append(DrawnText(text, place, room, shown != text))
        return place

    def _colour(self, kind: str) -> QColor:
        curves = self._colours.curves
        if kind == REFUSED:
            return QColor(self._colours.critical)
        if kind == "host":
            return QColor(curves["reference"])
        return QColor(curves.get(kind, curves["reference"]))

    def _fill(self, painter: QPainter, box: QRectF, block: StageBlock, *, coming: bool, radius: float = 0) -> None:
        """Paint a block: solid if it exists, dashed if still to come, with a warning's edge if it was not named."""
        ground = QColor(self._colours.window if self._colours.dark else self._colours.panel)
        colour = self._colour(block.kind)
        share = FILL_COMING if coming else FILL
        if radius:
            share = 0.68 if block.kind != "host" else 0.88
        edge, width = colour, max(1.0, 2.5 * self._scale)
        style = Qt.PenStyle.SolidLine
        if not block.named:
            edge, width = QColor(self._colours.warn), max(2.0, 5 * self._scale)
        if coming or block.kind == "host":
            style = Qt.PenStyle.DashLine
        if block.kind == REFUSED:
            painter.fillRect(box, mixed(colour, ground, 0.8))
            self._hatch(painter, box)
        else:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(mixed(colour, ground, share))
            painter.drawRoundedRect(box, radius, radius)
        edged = radius or coming or not block.named or block.kind == REFUSED
        if edged and box.height() > 2 * width:
            painter.setPen(QPen(edge, width, style))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            inset = width / 2
            painter.drawRoundedRect(box.adjusted(inset, inset, -inset, -inset), radius, radius)

    def _hatch(self, painter: QPainter, box: QRectF) -> None:
        """The hatch that means "does not fit"; it is used for nothing else."""
        painter.save()
        painter.setClipRect(box)
        painter.setPen(QPen(QColor(self._colours.critical), max(1.0, 2 * self._scale)))
        step = max(HATCH_PX, 2 * HATCH_PX * self._scale)
        at = box.left() - box.height()
        while at < box.right():
            painter.drawLine(QPointF(at, box.bottom()), QPointF(at + box.height(), box.top()))
            at += step
        painter.restore()
