"""A comparison in a tab. A thread reads the runs first. Then a row of controls aligns them, with curves and figures at
the left and the runs' settings at the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QApplication, QStackedLayout, QWidget

from gpudash.telemetry.comparing import MOST_RUNS, ComparedRun, Comparison, compare
from gpudash.telemetry.comparing.comparison import LETTERS, differences_text, headline
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.document import Document
from gpudash.ui.plots.export import Caption, as_png, picture, vector_picture, write_picture
from gpudash.ui.recordings.compare.controls import Controls
from gpudash.ui.recordings.compare.loading import Load, LoadingRuns, load
from gpudash.ui.recordings.compare.overlay import Overlay
from gpudash.ui.recordings.compare.plots import LetterLegend, run_row
from gpudash.ui.recordings.compare.tables import FiguresTable, SpecsTable
from gpudash.ui.recordings.compare.titles import comparison_title, short_title
from gpudash.ui.widgets.labels import set_role, worded_button
from gpudash.ui.widgets.layouts import in_column, in_halves
from gpudash.ui.widgets.plain_text import PlainLabel

LEAVING_S = 2.0
"""How long closing waits for the reader thread."""


TABLES_SHARE = 1 / 3
"""Maximum width of the tables as a share of the whole; the plots get the rest."""


FIGURES_SHARE = 0.3
"""Maximum height of the figures below the plots, as a share of the whole."""


class CompareDocument(Document):
    """Two to six runs, all drawn, with their settings. The figures compare B with A, the first run.

    Args:
        paths: recordings, each ``FILE`` or ``FILE#N``.
        palette: the colours in use.
        load: reads one recording; for tests.

    Raises:
        ValueError: fewer than two or more than six runs; the message is one sentence.
    """

    pictured = "the comparison"

    def __init__(self, paths: Sequence[Path], palette: Palette, load: Load = load) -> None:
        if not 2 <= len(paths) <= MOST_RUNS:
            raise ValueError(f"A comparison takes 2 to {MOST_RUNS} recordings; {len(paths)} were chosen.")
        super().__init__()
        self._names: list[str] = []
        self.title = f"Comparison of {len(paths)} runs"
        self.comparison: Comparison | None = None
        self.runs: list[ComparedRun] = []
        self._palette = palette
        # Keep a height that the user chose, whatever the figures need.
        self._dragged = False
        self._build(palette)
        self.label.setText("Reading…")
        self._loading: LoadingRuns | None = LoadingRuns(paths, load)
        self._loading.start()

    def title_within(self, longest: int) -> str:
        if not self._names:
            return ""
        return short_title(self._names, longest)

    def _build(self, palette: Palette) -> None:
        self.label = PlainLabel(role="muted", wraps=True)
        self.label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.controls = Controls()
        self.overlay = Overlay(palette)
        self.overlay.difference.gestures.moved.connect(self.controls.move_by)
        self.legend = LetterLegend(palette)
        self.headline = PlainLabel(role="figure-small", wraps=True, selectable=True)
        self.notes = PlainLabel(role="muted", wraps=True, selectable=True)
        self.figures = FiguresTable(palette)
        self.specs = SpecsTable(palette)
        self.close_button = worded_button("Close", "Close this tab", self.closed.emit)
        self.close_button.hide()
        self._page = self._laid_out()
        self._layers = QStackedLayout(self)
        self._layers.addWidget(self._waiting())
        self._layers.addWidget(self._page)
        self.controls.changed.connect(self._laying_changed)
        self.controls.swapped.connect(self.swap)
        self.controls.chosen.connect(self.choose)

    def _waiting(self) -> QWidget:
        """The page shown until the runs are read, or if they cannot be."""
        page = QWidget()
        column = in_column(1, self.label, parent=page, margins=(80, 0, 80, 0), spacing=14)
        column.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(1)
        return page

    def _laid_out(self) -> QWidget:
        self._left = in_halves((self.overlay, 1), (self.figures, 0), across=False)
        self._left.setHandleWidth(8)
        self._left.splitterMoved.connect(self._dragged_by_hand)
        self._right = QWidget()
        in_column(self.headline, (self.specs, 1), self.notes, parent=self._right, margins=(0, 0, 0, 0), spacing=8)
        halves = in_halves((self._left, 2), (self._right, 1), across=True)
        halves.setHandleWidth(12)
        halves.setSizes([2000, 1000])
        page = QWidget()
        in_column(self.legend, self.controls, (halves, 1), parent=page, margins=(12, 8, 12, 8), spacing=8)
        return page

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._right.setMaximumWidth(int(self.width() * TABLES_SHARE))
        self._share_height()

    def _share_height(self) -> None:
        """Give the figures the height they need, up to their share, unless the user dragged it."""
        if self._dragged:
            return
        height = self._left.height()
        figures = min(self.figures.height_of_all, round(height * FIGURES_SHARE))
        self._left.setSizes([height - figures, figures])

    def _dragged_by_hand(self) -> None:
        self._dragged = True

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while the tab is visible."""
        loading = self._loading
        if loading is not None:
            if loading.done:
                self._take(loading)
            elif loading.reading:
                self.label.setText(f"Reading {loading.reading}…")
            else:
                self.label.setText("Reading…")
        if self.comparison is not None:
            self.overlay.refresh()

    def _take(self, loading: LoadingRuns) -> None:
        # It has ended, so this returns at once.
        loading.join()
        self._loading = None
        if loading.runs:
            self.show_runs(loading.runs)
        else:
            self.label.setText(loading.problem)
            set_role(self.label, "error")
            self.close_button.show()

    def show_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Show these runs, the first one as A."""
        self.runs = list(runs)
        self.legend.show_rows(list(map(run_row, self.runs)))
        self.overlay.set_runs(self.runs)
        # Each set of runs gets new plots.
        for plot in self.overlay.plots.values():
            plot.gestures.moved.connect(self.controls.move_by)
        self.controls.set_runs(self.runs)
        self.specs.show_runs(self.runs)
        self._laying_changed()
        self._layers.setCurrentWidget(self._page)
        self._share_height()
        if self.overlay.plots:
            self.save_picture = self._save_graph
        self._names = [run.label for run in self.runs]
        self.title = comparison_title(self._names)
        self.title_tip = "\n".join(
            f"{letter}: {run.label}\n    {run.recording}" for letter, run in zip(LETTERS, self.runs, strict=False)
        )
        self.retitled.emit()

    def swap(self) -> None:
        """Swap A and B; an offset changes its sign."""
        if self.comparison is None:
            return
        # Read before the runs are shown, which resets the offset if the alignment changes.
        offset = self.controls.offset.value()
        self.show_runs([self.runs[1], self.runs[0], *self.runs[2:]])
        self.controls.offset.setValue(-offset)

    def choose(self, place: int) -> None:
        """Make the run at index ``place`` B, compared with A; the others follow."""
        first, *others = self.runs
        chosen = others.pop(place - 1)
        self.show_runs([first, chosen, *others])
        self.controls.offset.setValue(0.0)

    def _laying_changed(self) -> None:
        laying = self.controls.laying
        a, b = self.runs[:2]
        # The offset and the alignment only move curves; the figures are for the same two runs.
        if self.comparison is None or (self.comparison.a, self.comparison.b) != (a, b):
            self.comparison = compare(a, b)
            self._show_comparison(self.comparison)
        self.overlay.set_laying(laying)
        self.overlay.refresh()

    def _show_comparison(self, comparison: Comparison) -> None:
        self.figures.show_comparison(comparison)
        said = headline(comparison)
        if len(self.runs) > 2:
            of_all = differences_text(self.runs)
            said = said.removeprefix(of_all).lstrip()
            said = f"{of_all} B beside A: {said[:1].lower()}{said[1:]}"
        self.headline.setText(said)
        self.notes.setText("\n".join(comparison.notes))
        self.notes.setVisible(bool(comparison.notes))
        self.setAccessibleDescription(said)

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self._palette = palette
        for part in (self.overlay, self.legend, self.figures, self.specs):
            part.set_palette(palette)
        self.overlay.refresh()

    def copy_values(self) -> None:
        """Copy the focused table, or the figures, as tab-separated text."""
        if self.comparison is None:
            self.said.emit("There is nothing to copy yet.")
            return
        focused = QApplication.focusWidget()
        if focused is not None and self.specs.isAncestorOf(focused):
            self.specs.copy()
            self.said.emit("Copied the settings.")
        else:
            self.figures.copy()
            self.said.emit("Copied the figures.")

    def _save_graph(self, path: Path) -> None:
        """Write the plots with their legend as a picture.

        Raises:
            OSError: the file cannot be written.
        """
        parts = [self.legend, *self.overlay.picture_parts]
        caption = Caption(self.title, "", (0.0, 0.0), names=f"{len(self.runs)} runs, compared with A")
        if path.suffix.lower() == ".svg":
            write_picture(path, vector_picture(parts, caption, self._palette))
        else:
            write_picture(path, as_png(picture(parts, caption, self._palette, self.devicePixelRatioF())))

    def close_document(self) -> None:
        """Stop reading."""
        if self._loading is not None:
            self._loading.cancel(LEAVING_S)
            self._loading = None
