"""A comparison in a tab: read first, in a thread of its own, then curves at the left, figures and specs at the
right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QPushButton, QSplitter, QStackedLayout, QVBoxLayout, QWidget

from gpudash.session.recordings.comparison_loader import CancelledError, load_run, split_run
from gpudash.telemetry.comparing import ComparedRun, Comparison, compare
from gpudash.telemetry.comparing.words import headline
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.colours import Palette
from gpudash.ui.compare.controls import Controls
from gpudash.ui.compare.legend import MOST_RUNS, LetterLegend, run_row
from gpudash.ui.compare.overlay import Overlay
from gpudash.ui.compare.tables import FiguresTable, SpecsTable
from gpudash.ui.dashboard.document import Document
from gpudash.ui.widgets.plain_text import PlainLabel

Load = Callable[[Path, int | None, Callable[[], bool]], ComparedRun]


def load(path: Path, number: int | None, cancelled: Callable[[], bool]) -> ComparedRun:
    """`load_run`, as a thread calls it."""
    return load_run(path, number, cancelled=cancelled)


class LoadingRuns(threading.Thread):
    """Reads recordings one after another; whoever started it looks at `done` now and then.

    Args:
        paths: recordings, each ``FILE`` or ``FILE#N``.
        load: reads one.

    Attributes:
        runs: in the order of the paths, once all are read.
        problem: one sentence, when one cannot be read.
    """

    def __init__(self, paths: Sequence[Path], load: Load = load) -> None:
        super().__init__(name="gpudash-comparison", daemon=True)
        self.runs: list[ComparedRun] = []
        self.problem = ""
        self.reading = ""
        self._paths = list(paths)
        self._load = load
        self._unwanted = threading.Event()

    @property
    def done(self) -> bool:
        """Whether there is an answer: runs, or a problem."""
        return not self.is_alive()

    def cancel(self, timeout_s: float) -> None:
        """Read no further, and wait up to ``timeout_s`` for the thread to end."""
        self._unwanted.set()
        self.join(timeout_s)

    def run(self) -> None:
        runs = []
        try:
            for path in self._paths:
                self.reading = path.name
                runs.append(self._load(*split_run(str(path)), self._unwanted.is_set))
        except CancelledError:
            return
        except RecordingError as error:
            self.problem = f"{error}."
        except OSError as error:
            self.problem = f"{self.reading} cannot be read: {error.strerror or error}."
        except Exception as error:  # whatever a file's content leads to is told, not raised into nothing
            self.problem = f"{self.reading} cannot be compared ({type(error).__name__}: {error})."
        else:
            self.runs = runs


LEAVING_S = 2.0
"""How long closing waits for the thread that reads."""


TABLES_PX = 860
"""Widest that the tables get; the rest is for the plots."""

PLOTS_SHARE = 0.57
"""Width of the plots as a share of the tables' while there is not room for both; at 1280 px every column is seen."""


def comparison_title(paths: Sequence[Path]) -> str:
    """What a tab that compares ``paths`` is called."""
    names = [path.name.replace(".gpudash", "") for path in paths]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"{names[0]} vs {names[1]}{more}"


class CompareDocument(Document):
    """Two to six runs. The first is A and the second B, whose figures stand beside A's; more are drawn as well.

    Args:
        paths: recordings, each ``FILE`` or ``FILE#N``.
        palette: colours in force.
        load: reads one; for tests.

    Raises:
        ValueError: one sentence, when there are fewer than two or more than six.
    """

    def __init__(
        self, paths: Sequence[Path], palette: Palette, load: Load = load, parent: QWidget | None = None
    ) -> None:
        if not 2 <= len(paths) <= MOST_RUNS:
            raise ValueError(f"A comparison is of 2 to {MOST_RUNS} recordings; {len(paths)} were chosen.")
        super().__init__(parent)
        self.title = comparison_title(paths)
        self.comparison: Comparison | None = None
        self.runs: list[ComparedRun] = []
        self._palette = palette
        self._build(palette)
        self.words.setText("Reading…")
        self._loading: LoadingRuns | None = LoadingRuns(paths, load)
        self._loading.start()

    def _build(self, palette: Palette) -> None:
        self.words = PlainLabel()
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.words.setWordWrap(True)
        self.words.setProperty("role", "muted")
        self.controls = Controls()
        self.overlay = Overlay(palette)
        self.overlay.difference.box.moved.connect(self.controls.move_by)
        self.legend = LetterLegend(palette)
        self.headline = PlainLabel()
        self.headline.setProperty("role", "figure-small")
        self.notes = PlainLabel()
        self.notes.setProperty("role", "muted")
        for label in (self.headline, self.notes):
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.figures = FiguresTable(palette)
        self.specs = SpecsTable(palette)
        self.close_button = QPushButton("Close")
        self.close_button.setToolTip("Close this tab")
        self.close_button.clicked.connect(lambda _checked=False: self.closed.emit())
        self.close_button.hide()
        self._page = self._laid_out()
        self._layers = QStackedLayout(self)
        self._layers.addWidget(self._waiting())
        self._layers.addWidget(self._page)
        self.controls.changed.connect(self._laying_changed)
        self.controls.swapped.connect(self.swap)
        self.controls.chosen.connect(self.choose)

    def _waiting(self) -> QWidget:
        """What is seen until the runs are read, or when they cannot be."""
        page = QWidget()
        column = QVBoxLayout(page)
        column.setContentsMargins(80, 0, 80, 0)
        column.setSpacing(14)
        column.addStretch(1)
        column.addWidget(self.words)
        column.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(1)
        return page

    def _laid_out(self) -> QWidget:
        tables = QSplitter(Qt.Orientation.Vertical)
        tables.setChildrenCollapsible(False)
        tables.addWidget(self.figures)
        tables.addWidget(self.specs)
        tables.setStretchFactor(0, 3)
        tables.setStretchFactor(1, 2)
        right = QWidget()
        right.setMaximumWidth(TABLES_PX)
        column = QVBoxLayout(right)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addWidget(self.headline)
        column.addWidget(tables, 1)
        column.addWidget(self.notes)
        halves = QSplitter(Qt.Orientation.Horizontal)
        halves.setChildrenCollapsible(False)
        halves.setHandleWidth(12)
        halves.addWidget(self.overlay)
        halves.addWidget(right)
        halves.setSizes([round(PLOTS_SHARE * TABLES_PX), TABLES_PX])
        page = QWidget()
        rows = QVBoxLayout(page)
        rows.setContentsMargins(12, 8, 12, 8)
        rows.setSpacing(8)
        rows.addWidget(self.legend)
        rows.addWidget(self.controls)
        rows.addWidget(halves, 1)
        return page

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while it is in front."""
        loading = self._loading
        if loading is not None:
            if loading.done:
                self._take(loading)
            else:
                self.words.setText(f"Reading {loading.reading}…" if loading.reading else "Reading…")
        if self.comparison is not None:
            self.overlay.refresh()

    def _take(self, loading: LoadingRuns) -> None:
        loading.join()
        self._loading = None
        if loading.runs:
            self.show_runs(loading.runs)
        else:
            self.words.setText(loading.problem)
            self.words.setProperty("role", "error")
            self.words.style().polish(self.words)
            self.close_button.show()

    def show_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Show these runs, the first as A."""
        self.runs = list(runs)
        self.legend.show_rows([run_row(run) for run in self.runs])
        self.overlay.set_runs(self.runs)
        for plot in self.overlay.plots.values():
            plot.box.moved.connect(self.controls.move_by)
        self.controls.set_runs(self.runs)
        self._laying_changed()
        self._layers.setCurrentWidget(self._page)

    def swap(self) -> None:
        """A becomes B and B becomes A; what was moved is moved the other way."""
        if self.comparison is None:
            return
        offset = self.controls.offset.value()
        self.show_runs([self.runs[1], self.runs[0], *self.runs[2:]])
        self.controls.offset.setValue(-offset)

    def choose(self, place: int) -> None:
        """The run at ``place`` becomes B, whose figures stand beside those of A; the others follow."""
        first, *others = self.runs
        chosen = others.pop(place - 1)
        self.show_runs([first, chosen, *others])
        self.controls.offset.setValue(0.0)

    def _laying_changed(self) -> None:
        laying = self.controls.laying
        a, b = self.runs[:2]
        if self.comparison is None or (self.comparison.a, self.comparison.b) != (a, b):
            self.comparison = compare(a, b)
            self._show_comparison(self.comparison)
        self.overlay.set_laying(laying)
        self.overlay.refresh()

    def _show_comparison(self, comparison: Comparison) -> None:
        self.figures.show_comparison(comparison)
        self.specs.show_comparison(comparison)
        self.headline.setText(headline(comparison))
        self.notes.setText("\n".join(comparison.notes))
        self.notes.setVisible(bool(comparison.notes))
        self.setAccessibleDescription(headline(comparison))

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        for part in (self.overlay, self.legend, self.figures, self.specs):
            part.set_palette(palette)
        self.overlay.refresh()

    def copy_values(self) -> None:
        """Copy the table in focus, or the figures, as tab-separated text."""
        if self.comparison is None:
            self.said.emit("There is nothing to copy yet.")
            return
        focused = QApplication.focusWidget()
        table = self.specs if focused is not None and self.specs.isAncestorOf(focused) else self.figures
        table.copy()
        self.said.emit("Copied what was asked." if table is self.specs else "Copied the figures.")

    def copy_picture(self) -> None:
        """Copy a picture of what is shown."""
        QGuiApplication.clipboard().setPixmap(self.grab())
        self.said.emit("Copied the comparison as a picture.")

    def close_document(self) -> None:
        """Read no further."""
        if self._loading is not None:
            self._loading.cancel(LEAVING_S)
            self._loading = None
