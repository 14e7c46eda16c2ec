"""Which run is which: a piece of its line, its letter, its recording and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from gpudash.devices import shown_name
from gpudash.telemetry.comparing import ComparedRun
from gpudash.ui.compare.looks import LETTERS, STYLE_WORDS, run_pen
from gpudash.ui.theme import Palette

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
            letter = QLabel(LETTERS[place])
            letter.setProperty("role", "figure-small")
            name = QLabel(run.label)
            name.setToolTip(run.recording)
            what = QLabel(_words(run))
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
