"""How runs are told apart: a letter, a colour and a line style each."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPen

from gpudash.ui.theme import Palette

MOST_RUNS = 6
"""Runs that can still be told apart in one plot."""

LETTERS = "ABCDEF"

_CURVES = ("allocated", "loss", "h2d", "d2h", "link", "capacity")
"""Names in `Palette.curves` whose colours lie far apart, also for the colour-blind."""

_STYLES = (
    Qt.PenStyle.SolidLine,
    Qt.PenStyle.DashLine,
    Qt.PenStyle.DotLine,
    Qt.PenStyle.DashDotLine,
    Qt.PenStyle.DashDotDotLine,
    Qt.PenStyle.DashLine,
)

STYLE_WORDS = ("solid", "dashed", "dotted", "dash-dotted", "dash-dot-dotted", "dashed")


def run_colour(place: int, palette: Palette) -> str:
    """The colour of the run at ``place``, from 0."""
    return palette.curves[_CURVES[place % MOST_RUNS]]


def run_pen(place: int, palette: Palette) -> QPen:
    """The pen of the run at ``place``, one pixel wide, since a wider one costs many times as much."""
    pen = QPen(QColor(run_colour(place, palette)), 1, _STYLES[place % MOST_RUNS])
    pen.setCosmetic(True)
    return pen
