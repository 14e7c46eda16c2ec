"""Paints the cells of the overview. Colours, fonts and the words' places are worked out once, not once a cell."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetrics, QPainter, QPen

from gpudash.devices.names import SIMULATED
from gpudash.ui.colours import Palette, mixed, text_on
from gpudash.ui.fleet.layout import Density, Rect
from gpudash.ui.fleet.words import Cell, Level
from gpudash.ui.widgets.text_size import scaled

PAD = 8
"""Logical pixels between a cell's edge and its words."""

BAR = 8
"""Height of the bar, logical pixels at the normal text size."""

STEPS = 100
"""Shades of the heat map, a per cent each."""

FAINTEST = 0.12
"""Share of the colour in the cell of an empty GPU, so that it does not look like no cell."""

SMALL_PT, TINY_PT = 8.0, 7.0

MOST_ELIDED = 4096
"""Names of GPUs, shortened to a width, that are kept."""

LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
CENTRE = int(Qt.AlignmentFlag.AlignCenter)
UPPER = int(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignBottom)
LOWER = int(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop)


class CellPainter:
    """Paints cells of one density in one look.

    Args:
        palette: colours.
        density: large cells or small ones.
        font: of the window.
    """

    def __init__(self, palette: Palette, density: Density, font: QFont) -> None:
        self.paint = self._paint_cell if density == "cells" else self._paint_dense
        self._panel, self._text, self._muted = (QColor(c) for c in (palette.panel, palette.text, palette.muted))
        self._border, self._accent = QPen(QColor(palette.border), 1), QPen(QColor(palette.accent), 2)
        self._focus = QPen(QColor(palette.text), 2)
        self._chosen = mixed(QColor(palette.accent), self._panel, 0.8)
        self._ground = QColor(palette.grid)
        base: Mapping[Level, str] = {"": palette.curves["used"], "warning": palette.warn, "critical": palette.critical}
        self._colours = {level: QColor(colour) for level, colour in base.items()}
        self._marks = {"": self._muted, "warning": QColor(palette.warn), "critical": QColor(palette.critical)}
        self._stale = QBrush(self._muted, Qt.BrushStyle.BDiagPattern)
        self._shades = {
            level: [self._shade(colour, step) for step in range(STEPS + 1)] for level, colour in self._colours.items()
        }
        self._inks = {level: [text_on(shade) for shade in shades] for level, shades in self._shades.items()}
        self._font, self._small, self._tiny = font, sized(font, SMALL_PT), sized(font, TINY_PT)
        self._bold = sized(font, SMALL_PT)
        self._bold.setBold(True)
        self._warn = QColor(palette.warn)
        self._dashes = QPen(self._muted, 1, Qt.PenStyle.DashLine)
        self._measure = QFontMetrics(font)
        self._line, self._bar = self._measure.height(), scaled(BAR)
        bold = QFontMetrics(self._bold)
        self._percent, self._badge_width = (bold.horizontalAdvance(text) + PAD for text in ("100 %", SIMULATED))
        self._elided: dict[tuple[str, int], str] = {}

    def _shade(self, colour: QColor, step: int) -> QColor:
        share = FAINTEST + (1 - FAINTEST) * step / STEPS
        return mixed(colour, self._panel, 1 - share)

    def _paint_cell(self, painter: QPainter, rect: Rect, cell: Cell, *, chosen: bool, current: bool) -> None:
        left, top, width, height = rect
        painter.setPen(self._focus if current else self._accent if chosen else self._border)
        painter.setBrush(self._chosen if chosen else self._panel)
        painter.drawRect(left, top, width - 1, height - 1)
        inner, room, line = left + PAD, width - 2 * PAD, self._line
        badge = self._badge_width if cell.simulated else 0
        painter.setFont(self._font)
        painter.setPen(self._text)
        painter.drawText(QRect(inner, top + 5, room - badge, line), LEFT, self._elide(cell.name, room - badge))
        self._paint_bar(painter, (inner, top + (height - self._bar) // 2, room - self._percent, self._bar), cell)
        painter.setFont(self._bold)
        painter.setPen(self._text)
        painter.drawText(QRect(inner, top + (height - line) // 2, room, line), RIGHT, cell.percent)
        if badge:
            painter.setPen(self._warn)
            painter.drawText(QRect(inner, top + 5, room, line), RIGHT, SIMULATED)
        below = QRect(inner, top + height - line - 4, room, line)
        if cell.marked:
            painter.setPen(self._marks[cell.level])
            painter.drawText(below, RIGHT, cell.beside)
        painter.setFont(self._small)
        if not cell.marked:
            painter.setPen(self._muted)
            painter.drawText(below, RIGHT, cell.beside)
        painter.setPen(self._text)
        painter.drawText(below, LEFT, cell.figure)

    def _paint_bar(self, painter: QPainter, rect: Rect, cell: Cell) -> None:
        left, top, width, height = rect
        painter.fillRect(left, top, width, height, self._ground)
        if cell.fullness is None:
            return
        filled = round(width * min(max(cell.fullness, 0.0), 1.0))
        if cell.stale:
            painter.fillRect(left, top, filled, height, self._stale)
        else:
            painter.fillRect(left, top, filled, height, self._colours[cell.level])

    def _paint_dense(self, painter: QPainter, rect: Rect, cell: Cell, *, chosen: bool, current: bool) -> None:
        left, top, width, height = rect
        step = 0 if cell.fullness is None else round(min(max(cell.fullness, 0.0), 1.0) * STEPS)
        known = cell.fullness is not None and not cell.stale
        painter.fillRect(left, top, width, height, self._shades[cell.level][step] if known else self._ground)
        ink = self._inks[cell.level][step] if known else self._text
        painter.setPen(ink)
        if cell.short:
            painter.setFont(self._small)
            painter.drawText(QRect(left, top, width, height // 2), UPPER, cell.percent)
            painter.setFont(self._tiny)
            painter.drawText(QRect(left, top + height // 2, width, height - height // 2), LOWER, cell.short)
        else:
            painter.setFont(self._small)
            painter.drawText(QRect(left, top, width, height), CENTRE, cell.percent)
        if chosen or current or cell.stale:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(self._focus if current else self._accent if chosen else self._dashes)
            painter.drawRect(left, top, width - 1, height - 1)

    def _elide(self, words: str, width: int) -> str:
        known = self._elided.get((words, width))
        if known is None:
            if len(self._elided) >= MOST_ELIDED:  # every width that a window is drawn to has words of its own
                self._elided.clear()
            known = self._measure.elidedText(words, Qt.TextElideMode.ElideMiddle, width)
            self._elided[words, width] = known
        return known


def sized(font: QFont, points: float) -> QFont:
    """``font`` in another size, scaled as the user has chosen."""
    result = QFont(font)
    result.setPointSizeF(scaled(points * 10) / 10)
    return result
