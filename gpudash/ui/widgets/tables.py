"""The tables below the plots: rows of text in a view that can be sorted by eye and copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from PySide6.QtCore import QAbstractTableModel, QEvent, QModelIndex, QObject, QPersistentModelIndex, QRect, Qt, QTimer
from PySide6.QtGui import QAction, QGuiApplication, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStackedLayout,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from gpudash.system.foreign_text import tab_separated
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.text_size import scaled, text_scale

Index = QModelIndex | QPersistentModelIndex


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title (with the unit, where all its cells share one), side, whether it takes spare width, and
    whether words that are longer go on in a line below.
    """

    title: str
    right: bool = False
    wide: bool = False
    tip: str = ""
    wraps: bool = False

    def heading(self, role: int) -> Any:
        """What Qt shows of the column in a header."""
        if role == Qt.ItemDataRole.DisplayRole:
            return self.title
        if role == Qt.ItemDataRole.ToolTipRole:
            return self.tip or None
        if role == Qt.ItemDataRole.TextAlignmentRole:
            if self.right:
                side = Qt.AlignmentFlag.AlignRight
            else:
                side = Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        return None


ARROW_ROOM = "\N{EN SPACE}" * 2
"""Room in a header for the arrow that tells the order, which Qt would draw over the words."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Rows(Protocol[R_co]):
    """A sequence of rows, or an array of their numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> R_co: ...

    def __iter__(self) -> Iterator[R_co]: ...


class RowsModel(QAbstractTableModel, Generic[R]):
    """Rows of anything in columns of words; a subclass says what a cell reads.

    Args:
        columns: from left to right.
        parent: owns the model.

    Attributes:
        rows: from the top down.
        sorted_column: by which the rows are in order; ``None`` where they cannot be sorted here.
    """

    def __init__(self, columns: Sequence[Column], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.columns = columns
        self.rows: Rows[R] = ()
        self.sorted_column: int | None = None

    def label(self, row: R, column: int) -> str:
        """What a cell reads."""
        raise NotImplementedError

    def tip(self, row: R, column: int) -> str:
        """The tooltip of a cell, as plain text."""
        return self.label(row, column)

    def value(self, row: R, column: int, role: int) -> Any:
        """The cell's value in any other role of Qt's."""
        return None

    def cells(self, row: R) -> Sequence[str]:
        """A row as it is shown."""
        return [self.label(row, column) for column in range(len(self.columns))]

    def replace_rows(self, rows: Rows[R]) -> None:
        """Show other rows."""
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def update_rows(self, rows: Rows[R]) -> None:
        """Show as many rows as before in place of them; what did not change is not redrawn."""
        before, self.rows = self.rows, rows
        self._emit_changes(before)

    def _emit_changes(self, before: Rows[R]) -> None:
        # From the first to the last that changed in one signal: Qt redraws what is in view alone.
        changed = [place for place, (old, new) in enumerate(zip(before, self.rows, strict=False)) if old != new]
        if changed:
            self.dataChanged.emit(self.index(changed[0], 0), self.index(changed[-1], len(self.columns) - 1))

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own default
        # Rows have no rows of their own.
        if parent.isValid():
            return 0
        return len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        if parent.isValid():
            return 0
        return len(self.columns)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row, column = self.rows[index.row()], index.column()
        if role == Qt.ItemDataRole.DisplayRole:
            return self.label(row, column)
        if role == Qt.ItemDataRole.ToolTipRole:
            return plain_tip(self.tip(row, column))
        if role == Qt.ItemDataRole.TextAlignmentRole and self.columns[column].right:
            return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        return self.value(row, column, role)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Vertical:
            return None
        column = self.columns[section]
        # A title at the right needs room for the arrow, which Qt draws over it.
        sorts = role == Qt.ItemDataRole.DisplayRole and section == self.sorted_column and column.right
        if sorts:
            return f"{column.heading(role)}{ARROW_ROOM}"
        return column.heading(role)


class TextModel(RowsModel[Sequence[str]]):
    """Rows of cells of text."""

    def label(self, row: Sequence[str], column: int) -> str:
        return row[column]

    def show_rows(self, rows: list[Sequence[str]]) -> None:
        """Show ``rows``; cells that did not change are not redrawn."""
        if rows == self.rows:
            return
        before, after = len(self.rows), len(rows)
        # Inserted or removed at the end: the view keeps its place, and a live table is not reset.
        if after > before:
            self.beginInsertRows(QModelIndex(), before, after - 1)
        elif after < before:
            self.beginRemoveRows(QModelIndex(), after, before - 1)
        old, self.rows = self.rows, rows
        if after > before:
            self.endInsertRows()
        elif after < before:
            self.endRemoveRows()
        self._emit_changes(old)


ROW_PX, SLIVER_PX = 24, 4
"""Logical pixels of a row, and of a piece too small to be taken for one."""

BETWEEN_PX = 6
"""Logical pixels by which a row of several lines is set off from the next."""

MEASURED_ROWS = 100
"""Rows from the top whose cells set the columns' widths; more are never in sight together."""


class Table(QWidget):
    """A table with a name for screen readers, and words in place of rows while it is empty."""

    def __init__(self, name: str, columns: Sequence[Column], empty: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.name = name
        self.model = TextModel(columns, self)
        self.view = QTableView()
        self.view.setModel(self.model)
        self.view.setAccessibleName(name)
        self.view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.view.setShowGrid(False)
        self.view.setTabKeyNavigation(False)
        self.view.verticalHeader().hide()
        self._scale = text_scale()
        self.view.verticalHeader().setDefaultSectionSize(scaled(ROW_PX))
        self.view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        header = self.view.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setMinimumSectionSize(48)
        # Spare width goes to the last column where none is meant to take it.
        header.setStretchLastSection(not any(column.wide for column in columns))
        for position, column in enumerate(columns):
            if column.wide:
                header.setSectionResizeMode(position, QHeaderView.ResizeMode.Stretch)
        if any(column.wraps for column in columns):
            header.sectionResized.connect(self._fit_rows)
        self._empty = PlainLabel(empty, role="muted", wraps=True)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        nothing = QWidget()
        in_column(1, self._empty, 1, parent=nothing, margins=(8, 0, 8, 0))
        self._layers = QStackedLayout(self)
        self._layers.addWidget(nothing)
        self._layers.addWidget(self.view)
        copy = QAction("Copy values", self.view)
        copy.setToolTip("Copy the selected rows, or all of them, as tab-separated text")
        copy.triggered.connect(self.copy)
        self.view.addAction(copy)
        self.view.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self._widths: list[int] = []

    def begin_again(self, columns: Sequence[Column]) -> None:
        """Have other columns, and no rows until they are shown."""
        self.model.beginResetModel()
        self.model.columns = columns
        self.model.rows = []
        self.model.endResetModel()
        self._widths = []

    def set_empty_text(self, text: str) -> None:
        """Say ``text`` in place of rows."""
        self._empty.setText(text)

    def show_rows(self, rows: list[Sequence[str]]) -> None:
        """Show ``rows``, without columns that are empty in all; columns only ever grow: a live table does not jump."""
        if rows == self.model.rows and self._widths:
            return
        self.model.show_rows(rows)
        self._layers.setCurrentIndex(1 if rows else 0)
        for position in range(1, len(self.model.columns)):
            # The first column names the row and is always there.
            self.view.setColumnHidden(position, bool(rows) and not any(row[position] for row in rows))
        metrics = self.view.fontMetrics()
        titles = [column.title for column in self.model.columns]
        columns = zip(titles, *rows[:MEASURED_ROWS], strict=True)
        widths = [max(map(metrics.horizontalAdvance, cells)) + 24 for cells in columns]
        if not self._widths:
            # Widths only grow; a new set of columns begins at nothing.
            self._widths = [0] * len(widths)
        for position, (width, before) in enumerate(zip(widths, self._widths, strict=True)):
            # One long word must not push all others out of sight.
            width = min(width, 420)
            if width > before and not self.model.columns[position].wide:
                self._widths[position] = width
                self.view.setColumnWidth(position, width)
        self._fit_rows()
        self._end_with_a_row()

    def _fit_rows(self, resized: int = -1, _before: int = 0, width: int = 0) -> None:
        """Give the rows as many lines as their words need in the columns that wrap.

        Args:
            resized: the column that is being made ``width`` wide: the view does not know it yet.
        """
        wrapping = [position for position, column in enumerate(self.model.columns) if column.wraps]
        if not wrapping or resized not in (-1, *wrapping):
            # Another column's width changes nothing of what wraps.
            return
        option, one_line = QStyleOptionViewItem(), scaled(ROW_PX)
        self.view.initViewItemOption(option)
        for row in range(min(len(self.model.rows), MEASURED_ROWS)):
            needed = 0
            for position in wrapping:
                option.rect = QRect(0, 0, width if position == resized else self.view.columnWidth(position), one_line)
                hint = self.view.itemDelegate().sizeHint(option, self.model.index(row, position))
                needed = max(needed, hint.height())
            self.view.setRowHeight(row, needed + BETWEEN_PX if needed > one_line else one_line)

    @property
    def height_of_all(self) -> int:
        """Logical pixels at which every row is seen."""
        # Row heights as they are now, which for wrapped words differ.
        rows = max(self.view.verticalHeader().length(), self.view.verticalHeader().defaultSectionSize())
        return self.view.horizontalHeader().sizeHint().height() + rows + 2

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._fit_text()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._end_with_a_row()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange and self.isVisible():
            QTimer.singleShot(0, self, self._fit_text)  # the view takes the font after this

    def _end_with_a_row(self) -> None:
        """Leave free what is too low for a whole row: half of one reads as a fault."""
        rows = self.view.verticalHeader()
        room = self.height() - self.view.horizontalHeader().sizeHint().height() - 2 * self.view.frameWidth()
        over = 0
        if rows.length() > max(0, room):
            # The first row that is cut.
            last = next(row for row in range(rows.count()) if rows.sectionPosition(row) + rows.sectionSize(row) > room)
            over = room - rows.sectionPosition(last)
            # A sliver of it, or nearly all, reads as a table that goes on; only half a row reads as a fault.
            whole = not last or not SLIVER_PX < over < rows.sectionSize(last) - SLIVER_PX
            if whole:
                over = 0
        self.setContentsMargins(0, 0, 0, over)

    def _fit_text(self) -> None:
        """Give rows and columns the room that words of another size need; while it is hidden nothing moves."""
        if self._scale != text_scale():
            self._scale = text_scale()
            # The words are measured anew with the other size.
            self._widths = []
            self.view.verticalHeader().setDefaultSectionSize(scaled(ROW_PX))
            self.show_rows(list(self.model.rows))

    def text(self) -> str:
        """The selected rows, or all when none is, as tab-separated text under a header."""
        chosen = sorted({index.row() for index in self.view.selectionModel().selectedRows()})
        rows = [self.model.rows[row] for row in chosen] if chosen else self.model.rows
        lines = [[column.title for column in self.model.columns], *rows]
        return tab_separated(lines)

    def copy(self) -> None:
        """Put `text` on the clipboard."""
        QGuiApplication.clipboard().setText(self.text())
