"""A comparison in a tab. A thread reads the runs first. Then a row of controls aligns them, with curves and figures at
the left and the runs' settings at the right.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QPalette, QResizeEvent, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QApplication,
    QDoubleSpinBox,
    QHBoxLayout,
    QLabel,
    QSplitter,
    QStackedLayout,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from gpudash.session.recordings.comparing.comparison_loader import CancelledError, load_run, split_run
from gpudash.telemetry.comparing import MOST_RUNS, ComparedRun, Comparison, Field, FigureDifference, compare
from gpudash.telemetry.comparing.comparison import (
    FIGURE_TITLES,
    LETTERS,
    differences_text,
    field_row,
    figure_row,
    headline,
    machines,
    spec_fields,
)
from gpudash.telemetry.comparing.curves import Alignment, common_marks
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.colours import Palette, mixed
from gpudash.ui.dashboard.document import Document
from gpudash.ui.plots.export import Caption, as_png, picture, vector_picture, write_picture
from gpudash.ui.recordings.compare.overlay import Laying, Overlay
from gpudash.ui.recordings.compare.plots import LetterLegend, run_row
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_halves
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, Index, Table
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_dates, listed

logger = logging.getLogger(__name__)

FARTHEST = 1e7
"""The maximum offset of a run in seconds or steps, longer than any run."""

_ALIGNMENTS: tuple[tuple[str, Alignment], ...] = (("their start", "start"), ("steps", "step"), ("a mark", "mark"))


class Controls(QWidget):
    """Controls the overlay.

    Signals:
        changed: the alignment or the offset changed.
        swapped: A and B should change places.
        chosen: the run at this index should become B.
    """

    changed = Signal()
    swapped = Signal()
    chosen = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.alignment = ChoiceField()
        self.alignment.setToolTip("What the runs are aligned by")
        for text, alignment in _ALIGNMENTS:
            self.alignment.addItem(text, alignment)
        self.mark = ChoiceField()
        self.mark.setAccessibleName("Mark by which the runs are aligned")
        self.mark.setToolTip("A mark that every run has")
        self.offset = QDoubleSpinBox()
        self.offset.setRange(-FARTHEST, FARTHEST)
        self.offset.setDecimals(2)
        self.offset.setStyleSheet("QAbstractSpinBox::up-button, QAbstractSpinBox::down-button { width: 0px; }")
        self.offset.lineEdit().setTextMargins(6, 0, 0, 0)
        self.offset.setToolTip("How far B is shifted to the right; dragging a plot does the same")
        self.compared = ChoiceField()
        self.compared.setAccessibleName("Run to compare with A")
        self.compared.setToolTip("Choose which run is B, compared with A")
        self.swap = worded_button("Swap A and B", "Reverse the sign of every difference", self.swapped.emit)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        self._labelled(row, "&Align by", self.alignment)
        row.addWidget(self.mark)
        self._labelled(row, "&Move B by", self.offset)
        self._other = self._labelled(row, "&Compare A with", self.compared)
        row.addStretch(1)
        row.addWidget(self.swap)
        self.alignment.currentIndexChanged.connect(self._alignment_changed)
        self.mark.currentIndexChanged.connect(lambda _row: self.changed.emit())
        self.offset.valueChanged.connect(lambda _value: self.changed.emit())
        self.compared.activated.connect(lambda row: self.chosen.emit(row + 1))

    def _labelled(self, row: QHBoxLayout, text: str, widget: QWidget) -> QLabel:
        label = PlainLabel(text)
        label.setBuddy(widget)
        row.addWidget(label)
        row.addWidget(widget)
        return label

    def set_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Offer the alignments that these runs allow; by step at first, since that makes curves coincide."""
        boxes = (self.alignment, self.mark, self.compared)
        for box in boxes:
            # Filling a box changes its current entry, which would lay everything out again each time.
            box.blockSignals(True)
        mark, fresh = self.mark.currentText(), self.compared.count() == 0
        self.mark.clear()
        self.mark.addItems(common_marks(runs))
        self.mark.setCurrentIndex(max(0, self.mark.findText(mark)))
        stepped = all(len(run.steps.number) for run in runs)
        for place, available in ((1, stepped), (2, self.mark.count() > 0)):
            self._choice(place).setEnabled(available)
        self.compared.clear()
        self.compared.addItems([f"{letter}: {run.label}" for letter, run in zip(LETTERS[1:], runs[1:], strict=False)])
        # Keep the user's choice while it is available.
        if fresh or not self._choice(self.alignment.currentIndex()).isEnabled():
            self.alignment.setCurrentIndex(1 if stepped else 0)
        for box in boxes:
            box.blockSignals(False)
        self._other.setVisible(len(runs) > 2)
        self.compared.setVisible(len(runs) > 2)
        self._show_unit()

    def _choice(self, place: int) -> QStandardItem:
        model = self.alignment.model()
        assert isinstance(model, QStandardItemModel)
        return model.item(place)

    @property
    def laying(self) -> Laying:
        """The chosen alignment and offset."""
        alignment: Alignment = self.alignment.currentData()
        return Laying(alignment, self.mark.currentText(), self.offset.value())

    def choose(self, alignment: Alignment) -> None:
        """Align by ``alignment``, if these runs allow it."""
        row = self.alignment.findData(alignment)
        if self._choice(row).isEnabled():
            self.alignment.setCurrentIndex(row)

    def move_by(self, by: float) -> None:
        """Move B by a further ``by``."""
        self.offset.setValue(self.offset.value() + by)

    def _alignment_changed(self) -> None:
        self._show_unit()
        # Blocked: resetting the offset is part of the same change.
        self.offset.blockSignals(True)
        self.offset.setValue(0.0)
        self.offset.blockSignals(False)
        self.changed.emit()

    def _show_unit(self) -> None:
        steps = self.alignment.currentData() == "step"
        self.offset.setSuffix(" steps" if steps else " s")
        self.offset.setSingleStep(1.0 if steps else 0.1)
        self.mark.setVisible(self.alignment.currentData() == "mark")


LEAST_STRENGTH = 0.35
"""Share of full colour for the smallest difference beyond the noise."""

LEAST_FIELD = 70
MOST_MARKED = 3
"""Minimum width in logical pixels of a run's settings column; and the maximum number of runs that leave room for a
column to mark differences, which order and bold text show as well.
"""

_CHANGE, _VERDICT = FIGURE_TITLES.index("B minus A"), FIGURE_TITLES.index("verdict")

_TIPS = {
    "B minus A": "How much more B has; negative if A has more",
    "B over A": "1.00× is equal; above it B has more",
    "noise": "How far apart two equal runs may be, judged by how much the parts of each run differ",
    "verdict": "Whether B differs by more than the noise, and whether that is better. Within the noise it is\n"
    '"same" up to 5 %, and otherwise "too noisy to tell"',
}


class FigureColours(QStyledItemDelegate):
    """Grey within the noise; otherwise green or red, more intense for larger differences, never without a word."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.differences: Sequence[FigureDifference] = ()
        self.palette: Palette | None = None

    def initStyleOption(self, option: QStyleOptionViewItem, index: Index) -> None:
        super().initStyleOption(option, index)
        if self.palette is None or index.row() >= len(self.differences):
            return
        difference = self.differences[index.row()]
        if difference.verdict in ("same", "unclear"):
            colour = QColor(self.palette.muted)
        elif index.column() < _CHANGE:
            return
        else:
            colour = figure_colour(difference, self.palette)
        # Both roles, or a selected row would lose its colour.
        roles = option.palette
        roles.setColor(QPalette.ColorRole.Text, colour)
        roles.setColor(QPalette.ColorRole.HighlightedText, colour)


def figure_colour(difference: FigureDifference, palette: Palette) -> QColor:
    """The colour of a difference: muted within the noise, otherwise more intense the larger it is."""
    if difference.verdict in ("same", "unclear"):
        return QColor(palette.muted)
    full = {"better": palette.good, "worse": palette.critical}.get(difference.judgement or "", palette.accent)
    strength = LEAST_STRENGTH + (1 - LEAST_STRENGTH) * difference.strength
    return mixed(QColor(full), QColor(palette.text), 1 - strength)


class FiguresTable(Table):
    """A table with one figure per row."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        columns = [
            Column(title, right=place not in (0, _VERDICT), wide=place == 0, tip=_TIPS.get(title, ""))
            for place, title in enumerate(FIGURE_TITLES)
        ]
        super().__init__("Figures of both runs", columns, "The two runs have no figure in common.", parent)
        self.colours = FigureColours(self)
        self.colours.palette = palette
        self.view.setItemDelegate(self.colours)

    def show_comparison(self, comparison: Comparison) -> None:
        """Show the figures of two runs."""
        self.colours.differences = comparison.differences
        self.show_rows([figure_row(difference) for difference in comparison.differences])
        self.view.viewport().update()

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.colours.palette = palette
        self.view.viewport().update()


class ChangedMarks(QStyledItemDelegate):
    """Greys out rows that are equal; the others stand out and are marked in their own column."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.fields: Sequence[Field] = ()
        self.palette: Palette | None = None

    def initStyleOption(self, option: QStyleOptionViewItem, index: Index) -> None:
        super().initStyleOption(option, index)
        if self.palette is None or index.row() >= len(self.fields):
            return
        differs = self.fields[index.row()].differs
        # Bold as well: colour alone must not convey it.
        option.font.setBold(differs)
        colour = QColor(self.palette.text if differs else self.palette.muted)
        option.palette.setColor(QPalette.ColorRole.Text, colour)
        option.palette.setColor(QPalette.ColorRole.HighlightedText, colour)


class SpecsTable(Table):
    """One setting per row, differing ones first, then the machine. One column per run."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__("Settings of the runs", _spec_columns(2), "No settings are recorded.", parent)
        self.marks = ChangedMarks(self)
        self.marks.palette = palette
        self.view.setItemDelegate(self.marks)

    def show_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Show the settings of the runs, and where they ran."""
        # sorted() is stable: differing fields come first, each group in its original order.
        fields = sorted((*spec_fields(runs), *machines(runs)), key=lambda field: not field.differs)
        self.marks.fields = fields
        self.begin_again(_spec_columns(len(runs)))
        self.show_rows([field_row(field) for field in fields])
        self._fit_columns()
        self.view.viewport().update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_columns()

    def _fit_columns(self) -> None:
        """Divide the room beside the field names among the runs. A tooltip shows the full text of a cell."""
        # Without the columns for names and marks.
        runs = len(self.model.columns) - 2
        self.view.setColumnHidden(1, runs > MOST_MARKED)
        room = self.view.viewport().width() - sum(self.view.columnWidth(column) for column in (0, 1))
        width = max(scaled(LEAST_FIELD), room // runs)
        for column in range(2, len(self.model.columns)):
            self.view.setColumnWidth(column, width)

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.marks.palette = palette
        self.view.viewport().update()


def _spec_columns(runs: int) -> list[Column]:
    return [Column(title) for title in ("settings and machine", "", *LETTERS[:runs])]


Load = Callable[[Path, int | None, Callable[[], bool]], ComparedRun]


def load(path: Path, number: int | None, cancelled: Callable[[], bool]) -> ComparedRun:
    """`load_run` with the arguments that the thread passes."""
    return load_run(path, number, named=True, cancelled=cancelled)


class LoadingRuns(threading.Thread):
    """Reads recordings one after another; the caller polls `done`.

    Args:
        paths: recordings, each ``FILE`` or ``FILE#N``.
        load: reads one recording.

    Attributes:
        runs: the runs in the order of the paths, once all are read.
        problem: one sentence if a recording cannot be read.
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
        """Whether the thread has finished, with the runs or with a problem."""
        # The thread ends with either; `run` has no third outcome.
        return not self.is_alive()

    def cancel(self, timeout_s: float) -> None:
        """Stop reading, and wait up to ``timeout_s`` for the thread to end."""
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
        # Some errors have no text from the system.
        except OSError as error:
            self.problem = f"{self.reading} cannot be read: {error.strerror or error}."
        except Exception as error:  # report errors caused by the file's content
            logger.exception("runs could not be compared")
            self.problem = f"{self.reading} cannot be compared ({type(error).__name__}: {error})."
        else:
            self.runs = distinguished(runs, self._paths)


def distinguished(runs: Sequence[ComparedRun], paths: Sequence[Path]) -> list[ComparedRun]:
    """The runs with unique labels: equal names get their start time or, without one, the file's name."""
    labels = [run.label for run in runs]
    for name in {run.label for run in runs}:
        places = [place for place, run in enumerate(runs) if run.label == name]
        # A unique name needs nothing more.
        if len(places) == 1:
            continue
        began = [runs[place].began_wall_s for place in places]
        moments = format_dates([moment for moment in began if moment is not None])
        for number, place in enumerate(places):
            # Without a start time, the file's name tells them apart.
            if moments is None or None in began:
                labels[place] = f"{name} ({paths[place].name.replace('.gpudash', '')})"
            else:
                labels[place] = f"{name}, {moments[number]}"
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


LEAVING_S = 2.0
"""How long closing waits for the reader thread."""


TABLES_SHARE = 1 / 3
"""Maximum width of the tables as a share of the whole; the plots get the rest."""


FIGURES_SHARE = 0.3
"""Maximum height of the figures below the plots, as a share of the whole."""


def comparison_title(names: Sequence[str]) -> str:
    """The title of a comparison of runs with these names."""
    first, *others = names
    return f"{first} vs {listed(others, 1)}"


def short_title(names: Sequence[str], longest: int) -> str:
    """The same title in ``longest`` characters, in whole words if possible: "training width 512 vs 1024 +2".

    Words common to the start or end of both names appear once, as many as fit. If no whole words fit, only the
    differing parts are shown, cut. Text in brackets at the end is used only if nothing else differs.
    """
    # Text in brackets counts only if the rest is equal.
    alone = [name.rpartition(" (")[0] if name.endswith(")") else name for name in names[:2]]
    a, b = (name.split() for name in (alone if alone[0] != alone[1] else names[:2]))
    begin = _common(a, b)
    end = _common(a[begin:][::-1], b[begin:][::-1])
    before, after = a[:begin], a[len(a) - end :]
    apart = [" ".join(name_parts[begin : len(name_parts) - end]).rstrip(",") or "default" for name_parts in (a, b)]
    others = ""
    if len(names) > 2:
        others = f" +{len(names) - 2}"
    if len(before) > 2:
        ends = [before[0], "…", before[-1]]
    else:
        ends = before
    # From most to fewest words; the first that fits is used.
    for left, right in ((before, after), (before, []), (ends, []), (before[-1:], []), ([], [])):
        text = f"{' '.join([*left, apart[0], 'vs', apart[1], *right])}{others}"
        if len(text) <= longest:
            return text
    if before:  # they differ only in their files' names, which say less
        both = f" ×2{others}"
        return f"{_cut(' '.join(before), longest - len(both))}{both}"
    # Each gets half of the room left by " vs ".
    room = (longest - len(f" vs {others}")) // 2
    return f"{_cut(apart[0], room)} vs {_cut(apart[1], room)}{others}"


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return f"{text[: room - 1].rstrip()}…"


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """The number of words that both begin with."""
    return sum(1 for _word in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


class CompareDocument(Document):
    """Two to six runs, all drawn, with their settings. The figures compare B with A, the first run.

    Args:
        paths: recordings, each ``FILE`` or ``FILE#N``.
        palette: the colours in use.
        load: reads one recording; for tests.

    Raises:
        ValueError: fewer than two or more than six runs; the message is one sentence.
    """

    def __init__(
        self, paths: Sequence[Path], palette: Palette, load: Load = load, parent: QWidget | None = None
    ) -> None:
        if not 2 <= len(paths) <= MOST_RUNS:
            raise ValueError(f"A comparison takes 2 to {MOST_RUNS} recordings; {len(paths)} were chosen.")
        super().__init__(parent)
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
        self.headline = PlainLabel(role="figure-small")
        self.notes = PlainLabel(role="muted")
        for label in (self.headline, self.notes):
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
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
        halves = QSplitter(Qt.Orientation.Horizontal)
        halves.setChildrenCollapsible(False)
        halves.setHandleWidth(12)
        halves.addWidget(self._left)
        halves.addWidget(self._right)
        halves.setSizes([2000, 1000])
        halves.setStretchFactor(0, 2)
        halves.setStretchFactor(1, 1)
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
            self.label.setProperty("role", "error")
            # A property that a style sheet selects by takes effect only after polishing.
            self.label.style().polish(self.label)
            self.close_button.show()

    def show_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Show these runs, the first one as A."""
        self.runs = list(runs)
        self.legend.show_rows([run_row(run) for run in self.runs])
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

    def copy_picture(self) -> None:
        """Copy a picture of the comparison."""
        QGuiApplication.clipboard().setPixmap(self.grab())
        self.said.emit("Copied the comparison as a picture.")

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
