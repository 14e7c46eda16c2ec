"""The tables of a comparison: figures of two runs, and settings of all."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPalette, QResizeEvent
from PySide6.QtWidgets import QHeaderView, QStyledItemDelegate, QStyleOptionViewItem, QTableView, QWidget

from gpudash.telemetry.comparing import ComparedRun, Comparison, Field, FigureDifference
from gpudash.telemetry.comparing.comparison import FIGURE_TITLES, LETTERS, field_row, figure_row, machines, spec_fields
from gpudash.ui.colours import Palette, mixed
from gpudash.ui.widgets.tables import Column, Index, Table
from gpudash.ui.widgets.text_size import scaled

LEAST_STRENGTH = 0.35
"""Share of full colour for the smallest difference beyond the noise."""

LEAST_FIELD = 70
MOST_MARKED = 3
"""Minimum width in logical pixels of a run's settings column; and the maximum number of runs that leave room for a
column to mark differences, which order and bold text show as well.
"""

_FIRST_RUN = 2
"""Column of run A in the settings, after the field's name and the mark."""

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

    def __init__(self, palette: Palette) -> None:
        columns = [
            Column(title, right=place not in (0, _VERDICT), wide=place == 0, tip=_TIPS.get(title, ""))
            for place, title in enumerate(FIGURE_TITLES)
        ]
        super().__init__("Figures of both runs", columns, "The two runs have no figure in common.")
        self.colours = FigureColours(self)
        self.colours.palette = palette
        self.view.setItemDelegate(self.colours)
        self.view.setHorizontalScrollMode(QTableView.ScrollMode.ScrollPerPixel)
        header = self.view.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Interactive)
        header.geometriesChanged.connect(self._fit_names)  # also where a scroll bar takes some of the width

    def show_comparison(self, comparison: Comparison) -> None:
        """Show the figures of two runs."""
        self.colours.differences = comparison.differences
        self.show_rows(list(map(figure_row, comparison.differences)))
        self._fit_names()
        self.view.viewport().update()

    def _fit_names(self) -> None:
        """Give the names the room beside the figures, and where that is too little, their own width: the last figures
        are scrolled to."""
        columns = range(1, len(self.model.columns))
        room = self.view.viewport().width() - sum(map(self.view.columnWidth, columns))
        self.view.setColumnWidth(0, max(room, self.view.sizeHintForColumn(0)))

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.colours.palette = palette
        self.view.viewport().update()


class ChangedMarks(QStyledItemDelegate):
    """Greys out rows that are equal; the others stand out and are marked in their own column.

    Paths are shortened to what tells them apart, and cut in their middle; the tooltip and a copy have them whole.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.fields: Sequence[Field] = ()
        self.palette: Palette | None = None

    def initStyleOption(self, option: QStyleOptionViewItem, index: Index) -> None:
        super().initStyleOption(option, index)
        if self.palette is None or index.row() >= len(self.fields):
            return
        field = self.fields[index.row()]
        differs = field.differs
        if index.column() >= _FIRST_RUN:
            option.text = field.short_labels[index.column() - _FIRST_RUN]
        option.textElideMode = Qt.TextElideMode.ElideMiddle
        # Bold as well: colour alone must not convey it.
        option.font.setBold(differs)
        colour = QColor(self.palette.text if differs else self.palette.muted)
        option.palette.setColor(QPalette.ColorRole.Text, colour)
        option.palette.setColor(QPalette.ColorRole.HighlightedText, colour)


class SpecsTable(Table):
    """One setting per row, differing ones first, then the machine. One column per run."""

    def __init__(self, palette: Palette) -> None:
        super().__init__("Settings of the runs", _spec_columns(2), "No settings are recorded.")
        self.marks = ChangedMarks(self)
        self.marks.palette = palette
        self.view.setItemDelegate(self.marks)

    def show_runs(self, runs: Sequence[ComparedRun]) -> None:
        """Show the settings of the runs, and where they ran."""
        # sorted() is stable: differing fields come first, each group in its original order.
        fields = sorted((*spec_fields(runs), *machines(runs)), key=lambda field: not field.differs)
        self.marks.fields = fields
        self.begin_again(_spec_columns(len(runs)))
        self.show_rows(list(map(field_row, fields)))
        self._fit_columns()
        self.view.viewport().update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_columns()

    def _fit_columns(self) -> None:
        """Divide the room beside the field names among the runs. A tooltip shows the full text of a cell."""
        runs = len(self.model.columns) - _FIRST_RUN
        self.view.setColumnHidden(1, runs > MOST_MARKED)
        room = self.view.viewport().width() - sum(map(self.view.columnWidth, (0, 1)))
        width = max(scaled(LEAST_FIELD), room // runs)
        for column in range(_FIRST_RUN, len(self.model.columns)):
            self.view.setColumnWidth(column, width)

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.marks.palette = palette
        self.view.viewport().update()


def _spec_columns(runs: int) -> list[Column]:
    return [*map(Column, ("settings and machine", "")), *(Column(letter, wraps=True) for letter in LETTERS[:runs])]
