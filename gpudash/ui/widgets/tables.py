"""The tables below the plots: rows of text in a view that can be read and copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from PySide6.QtCore import QAbstractTableModel, QEvent, QModelIndex, QObject, QPersistentModelIndex, QRect, Qt, QTimer
from PySide6.QtGui import QAction, QGuiApplication, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QStackedLayout, QStyleOptionViewItem, QTableView, QWidget

from gpudash.system.foreign_text import tab_separated
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.text_size import scaled, text_scale

Index = QModelIndex | QPersistentModelIndex


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title (with the unit if all cells share one), its alignment, whether it takes spare width, and
    whether longer text wraps.
    """

    title: str
    right: bool = False
    wide: bool = False
    tip: str = ""
    wraps: bool = False

    def heading(self, role: int) -> Any:
        """The header data of the column, as for `QAbstractItemModel.headerData`."""
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
"""Room in a header for the sort arrow, which Qt would draw over the text."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Rows(Protocol[R_co]):
    """A sequence of rows, or an array of their indices."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> R_co: ...

    def __iter__(self) -> Iterator[R_co]: ...


class RowsModel(QAbstractTableModel, Generic[R]):
    """Rows of any type in columns of text; a subclass provides the text of a cell.

    Args:
        columns: from left to right.
        parent: parent object.

    Attributes:
        rows: from top to bottom.
        sorted_column: column by which the rows are sorted; ``None`` if the table cannot be sorted.
    """

    def __init__(self, columns: Sequence[Column], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.columns = columns
        self.rows: Rows[R] = ()
        self.sorted_column: int | None = None

    def label(self, row: R, column: int) -> str:
        """The text of a cell."""
        raise NotImplementedError

    def tip(self, row: R, column: int) -> str:
        """The tooltip of a cell, as plain text."""
        return self.label(row, column)

    def value(self, row: R, column: int, role: int) -> Any:
        """The data of a cell for any other role of Qt."""
        return None

    def cells(self, row: R) -> Sequence[str]:
        """The texts of a row."""
        return [self.label(row, column) for column in range(len(self.columns))]

    def replace_rows(self, rows: Rows[R]) -> None:
        """Replace all rows."""
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def update_rows(self, rows: Rows[R]) -> None:
        """Replace the rows by as many others; unchanged rows are not redrawn."""
        before, self.rows = self.rows, rows
        self._emit_changes(before)

    def _emit_changes(self, before: Rows[R]) -> None:
        # One signal from the first to the last changed row: Qt redraws only what is visible.
        changed = [place for place, (old, new) in enumerate(zip(before, self.rows, strict=False)) if old != new]
        if changed:
            self.dataChanged.emit(self.index(changed[0], 0), self.index(changed[-1], len(self.columns) - 1))

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own default
        # A table has no nested rows.
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
        # A right-aligned title needs room for the sort arrow, which Qt draws over it.
        sorts = role == Qt.ItemDataRole.DisplayRole and section == self.sorted_column and column.right
        if sorts:
            return f"{column.heading(role)}{ARROW_ROOM}"
        return column.heading(role)


class TextModel(RowsModel[Sequence[str]]):
    """Rows of text cells."""

    def label(self, row: Sequence[str], column: int) -> str:
        return row[column]

    def show_rows(self, rows: list[Sequence[str]]) -> None:
        """Show ``rows``; unchanged cells are not redrawn."""
        if rows == self.rows:
            return
        before, after = len(self.rows), len(rows)
        # Insert or remove at the end instead of resetting, so that the view keeps its position.
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
"""Height of a row in logical pixels, and the height up to which a cut-off row is unnoticeable."""

BETWEEN_PX = 6
"""Logical pixels added below a row of several lines."""

MEASURED_ROWS = 100
"""Number of rows, from the top, whose cells determine the column widths; more are never visible at once."""


class RowsView(QTableView):
    """A view of rows that are read and copied whole.

    Args:
        name: accessible name.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.verticalHeader().hide()
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Interactive)


class Table(QWidget):
    """A table with an accessible name, and a text in place of rows while it is empty."""

    def __init__(self, name: str, columns: Sequence[Column], empty: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.name = name
        self.model = TextModel(columns, self)
        self.view = RowsView(name)
        self.view.setModel(self.model)
        self._scale = text_scale()
        self.view.verticalHeader().setDefaultSectionSize(scaled(ROW_PX))
        header = self.view.horizontalHeader()
        header.setMinimumSectionSize(48)
        # Without a column marked as wide, the last one takes the spare width.
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
        """Replace the columns, and remove all rows."""
        self.model.beginResetModel()
        self.model.columns = columns
        self.model.rows = []
        self.model.endResetModel()
        self._widths = []

    def set_empty_text(self, text: str) -> None:
        """Set the text shown in place of rows."""
        self._empty.setText(text)

    def show_rows(self, rows: list[Sequence[str]]) -> None:
        """Show ``rows`` without the columns that are empty in all of them. Columns only grow, to avoid jumps."""
        if rows == self.model.rows and self._widths:
            return
        self.model.show_rows(rows)
        self._layers.setCurrentIndex(1 if rows else 0)
        for position in range(1, len(self.model.columns)):
            # The first column names the row and is always shown.
            self.view.setColumnHidden(position, bool(rows) and not any(row[position] for row in rows))
        metrics = self.view.fontMetrics()
        titles = [column.title for column in self.model.columns]
        columns = zip(titles, *rows[:MEASURED_ROWS], strict=True)
        widths = [max(map(metrics.horizontalAdvance, cells)) + 24 for cells in columns]
        if not self._widths:
            # Widths only grow; a new set of columns starts from zero.
            self._widths = [0] * len(widths)
        for position, (width, before) in enumerate(zip(widths, self._widths, strict=True)):
            # One long word must not push all other columns out of view.
            width = min(width, 420)
            if width > before and not self.model.columns[position].wide:
                self._widths[position] = width
                self.view.setColumnWidth(position, width)
        self._fit_rows()
        self._end_with_a_row()

    def _fit_rows(self, resized: int = -1, _before: int = 0, width: int = 0) -> None:
        """Give each row as many lines as its text needs in the columns that wrap.

        Args:
            resized: column being resized to ``width``; the view does not know the new width yet.
        """
        wrapping = [position for position, column in enumerate(self.model.columns) if column.wraps]
        if not wrapping or resized not in (-1, *wrapping):
            # Other columns do not affect wrapped text.
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
        """Height in logical pixels at which every row is visible."""
        # Actual row heights: they differ for wrapped text.
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
            QTimer.singleShot(0, self, self._fit_text)  # the view gets its font after this event

    def _end_with_a_row(self) -> None:
        """Leave a gap at the bottom instead of showing half a row, which looks like a bug."""
        rows = self.view.verticalHeader()
        room = self.height() - self.view.horizontalHeader().sizeHint().height() - 2 * self.view.frameWidth()
        over = 0
        if rows.length() > max(0, room):
            # The first row that is cut off.
            last = next(row for row in range(rows.count()) if rows.sectionPosition(row) + rows.sectionSize(row) > room)
            over = room - rows.sectionPosition(last)
            # A sliver of a row, or nearly all of it, looks like a table that goes on; half a row looks like a bug.
            whole = not last or not SLIVER_PX < over < rows.sectionSize(last) - SLIVER_PX
            if whole:
                over = 0
        self.setContentsMargins(0, 0, 0, over)

    def _fit_text(self) -> None:
        """Adjust rows and columns to a new text size; does nothing while hidden."""
        if self._scale != text_scale():
            self._scale = text_scale()
            # Measure again at the new text size.
            self._widths = []
            self.view.verticalHeader().setDefaultSectionSize(scaled(ROW_PX))
            self.show_rows(list(self.model.rows))

    def text(self) -> str:
        """The selected rows, or all if none are selected, as tab-separated text with a header."""
        chosen = sorted({index.row() for index in self.view.selectionModel().selectedRows()})
        rows = [self.model.rows[row] for row in chosen] if chosen else self.model.rows
        lines = [[column.title for column in self.model.columns], *rows]
        return tab_separated(lines)

    def copy(self) -> None:
        """Copy `text` to the clipboard."""
        QGuiApplication.clipboard().setText(self.text())
