"""The tables of a comparison: figures as B minus A, and what was asked of each run."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QStyledItemDelegate, QStyleOptionViewItem, QWidget

from gpudash.telemetry.comparing import Comparison, FieldPair, FigureDifference
from gpudash.telemetry.comparing.words import FIGURE_TITLES, SPEC_TITLES, figure_row, specs_row
from gpudash.ui.colours import Palette, mixed
from gpudash.ui.widgets.tables import Column, Index, Table

LEAST_STRENGTH = 0.35
"""Share of full colour that even the smallest difference beyond the noise gets."""

WIDEST_FIELD = 180
"""Width of a column of specs; a longer text is cut, and whole in its tooltip."""

_CHANGE, _VERDICT = FIGURE_TITLES.index("B minus A"), FIGURE_TITLES.index("verdict")

_TIPS = {
    "B minus A": "How much more B has; less than nothing where A has more",
    "B over A": "1.00× is equal; above it B has more",
    "noise": "How far two equal runs may lie apart, from how much each run's own stretches differ",
    "verdict": "Whether B has more or less by more than the noise, and whether that is better; within the noise it is\n"
    '"same" up to 5 %, and else "too noisy to tell"',
}


class FigureColours(QStyledItemDelegate):
    """Grey within the noise; else green or red, stronger the larger the difference, beside the word."""

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
        roles = option.palette
        roles.setColor(QPalette.ColorRole.Text, colour)
        roles.setColor(QPalette.ColorRole.HighlightedText, colour)


def figure_colour(difference: FigureDifference, palette: Palette) -> QColor:
    """The colour of a difference: muted within the noise, else the fuller the larger it is."""
    if difference.verdict in ("same", "unclear"):
        return QColor(palette.muted)
    full = {"better": palette.good, "worse": palette.critical}.get(difference.judgement or "", palette.accent)
    strength = LEAST_STRENGTH + (1 - LEAST_STRENGTH) * difference.strength
    return mixed(QColor(full), QColor(palette.text), 1 - strength)


class FiguresTable(Table):
    """One figure a row."""

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
        """Draw in other colours."""
        self.colours.palette = palette
        self.view.viewport().update()


class ChangedMarks(QStyledItemDelegate):
    """Rows that are equal in grey; the others stand out, and say so in a column of their own."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.pairs: Sequence[FieldPair] = ()
        self.palette: Palette | None = None

    def initStyleOption(self, option: QStyleOptionViewItem, index: Index) -> None:
        super().initStyleOption(option, index)
        if self.palette is None or index.row() >= len(self.pairs):
            return
        differs = self.pairs[index.row()].differs
        option.font.setBold(differs)
        colour = QColor(self.palette.text if differs else self.palette.muted)
        option.palette.setColor(QPalette.ColorRole.Text, colour)
        option.palette.setColor(QPalette.ColorRole.HighlightedText, colour)


class SpecsTable(Table):
    """One field a row, those that differ first; below them the machine."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        columns = [Column(title) for title in SPEC_TITLES]
        super().__init__("What was asked of both runs", columns, "Nothing is known of what was asked.", parent)
        self.marks = ChangedMarks(self)
        self.marks.palette = palette
        self.view.setItemDelegate(self.marks)

    def show_comparison(self, comparison: Comparison) -> None:
        """Show what was asked of two runs, and where they ran."""
        pairs = sorted((*comparison.specs, *comparison.machine), key=lambda pair: not pair.differs)
        self.marks.pairs = pairs
        self.show_rows([specs_row(pair) for pair in pairs])
        for column in range(len(SPEC_TITLES)):
            self.view.setColumnWidth(column, min(self.view.columnWidth(column), WIDEST_FIELD))
        self.view.viewport().update()

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self.marks.palette = palette
        self.view.viewport().update()
