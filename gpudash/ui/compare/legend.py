"""Which is which of what is compared: a letter, a colour and a line style each, and what stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QGridLayout, QWidget

from gpudash.devices.names import shown_name
from gpudash.telemetry.comparing import ComparedRun
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

_LINE = QSize(46, 14)


class LinePiece(QWidget):
    """A piece of the line that a run is drawn with."""

    def __init__(self, place: int, palette: Palette) -> None:
        super().__init__()
        self._place, self._palette = place, palette
        self.setFixedSize(_LINE)
        self.setAccessibleName(f"{LETTERS[place]} is {STYLE_WORDS[place]}")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        pen = run_pen(self._place, self._palette)
        pen.setWidth(2)
        painter.setPen(pen)
        painter.drawLine(2, self.height() // 2, self.width() - 2, self.height() // 2)


@dataclass(frozen=True, slots=True)
class LegendRow:
    """What stands behind a letter: its name, the name's tooltip, and more words."""

    name: str
    more: str
    tip: str = ""


class LetterLegend(QWidget):
    """One row a letter: the letter, a piece of its line, and what it stands for."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._rows: Sequence[LegendRow] = ()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(2)
        self._grid.setColumnStretch(3, 1)

    def show_rows(self, rows: Sequence[LegendRow]) -> None:
        """Tell these apart, the first as A."""
        self._rows = list(rows)
        while (item := self._grid.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        for place, row in enumerate(self._rows):
            letter, name, more = PlainLabel(LETTERS[place]), PlainLabel(row.name), PlainLabel(row.more)
            letter.setProperty("role", "figure-small")
            name.setToolTip(plain_tip(row.tip))
            more.setProperty("role", "muted")
            for column, widget in enumerate((letter, LinePiece(place, self._palette), name, more)):
                self._grid.addWidget(widget, place, column)

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        self.show_rows(self._rows)


def run_row(run: ComparedRun) -> LegendRow:
    """What stands behind the letter of a run: its recording, and how it ended."""
    status = run.view.status.replace("_", " ")
    return LegendRow(run.label, f"{run.view.workload} on {shown_name(run.view.device)}, {status}", run.recording)


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
