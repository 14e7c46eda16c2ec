"""Which run is which: a piece of its line, its letter, its recording and how it ended.

How runs are told apart: a letter, a colour and a line style each.
"""

from __future__ import annotations

from collections.abc import Sequence

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


class RunLegend(QWidget):
    """One row a run."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._runs: Sequence[ComparedRun] = ()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(2)
        self._grid.setColumnStretch(3, 1)

    def set_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Tell these runs apart."""
        self._runs = list(runs)
        for widget in self.findChildren(QWidget):
            self._grid.removeWidget(widget)
            widget.deleteLater()
        for place, run in enumerate(self._runs):
            letter = PlainLabel(LETTERS[place])
            letter.setProperty("role", "figure-small")
            name = PlainLabel(run.label)
            name.setToolTip(plain_tip(run.recording))
            what = PlainLabel(_words(run))
            what.setProperty("role", "muted")
            for column, widget in enumerate((letter, LinePiece(place, self._palette), name, what)):
                self._grid.addWidget(widget, place, column)

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        self.set_runs(self._runs)


def _words(run: ComparedRun) -> str:
    status = run.view.status.replace("_", " ")
    return f"{run.view.workload} on {shown_name(run.view.device)}, {status}"


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
