"""The operators of a profile as a table: own and total side by side, sorted by any column, searched by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QModelIndex, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from gpudash.ui.widgets.tables import Column, RowsModel
from gpudash.units import format_bytes, format_count, format_duration

Row = Mapping[str, Any]

COLUMNS: tuple[tuple[str, Column], ...] = (
    ("name", Column("operator")),
    ("calls", Column("calls", right=True)),
    ("cpu_self_seconds", Column("own CPU", right=True, tip="Time on the CPU without the operators it calls")),
    ("cpu_total_seconds", Column("total CPU", right=True, tip="Time on the CPU with the operators it calls")),
    ("device_self_seconds", Column("own GPU", right=True, tip="Time of the kernels it starts itself")),
    ("device_total_seconds", Column("total GPU", right=True, tip="Time of its kernels and of those it calls")),
    (
        "cpu_self_bytes",
        Column("own memory", right=True, tip="Host memory taken less given back, by itself"),
    ),
    (
        "cpu_total_bytes",
        Column("total memory", right=True, tip="Host memory taken less given back, in all"),
    ),
    ("device_self_bytes", Column("own GPU memory", right=True, tip="GPU memory taken less given back, by itself")),
    ("device_total_bytes", Column("total GPU memory", right=True, tip="GPU memory taken less given back, in all")),
    ("shapes", Column("most frequent shapes", wide=True)),
)
"""Field of a row → its column."""

DEVICE_FIELDS = ("device_self_seconds", "device_total_seconds", "device_self_bytes", "device_total_bytes")

NAME_WIDTH = 260
"""Logical pixels of an operator's name at most; the rest is in its tooltip."""


ARROW_PX = 14
"""Logical pixels of the arrow that tells the order."""


class OperatorsModel(RowsModel[Row]):
    """Rows of a profile that match the search, in the order of a column."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__([column for _field, column in COLUMNS], parent)
        self._all: Sequence[Row] = ()
        self._search = ""
        self._field, self._order = COLUMNS[2][0], Qt.SortOrder.DescendingOrder
        self.sorted_column = 2

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show other operators."""
        self._all = rows
        self._arrange()

    def search(self, words: str) -> None:
        """Show only operators whose name, shapes or stack hold ``words``."""
        self._search = words.casefold()
        self._arrange()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.DescendingOrder) -> None:
        self.sorted_column, self._field, self._order = column, COLUMNS[column][0], order
        self._arrange()
        self.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(COLUMNS) - 1)

    def _arrange(self) -> None:
        found = [row for row in self._all if self._search in _searched(row)]
        descending = self._order == Qt.SortOrder.DescendingOrder
        self.replace_rows(sorted(found, key=lambda row: row[self._field], reverse=descending))

    def words(self, row: Row, column: int) -> str:
        field = COLUMNS[column][0]
        return cell_words(field, row[field])

    def tip(self, row: Row, column: int) -> str:
        field = COLUMNS[column][0]
        return f"{row[field]} B" if field.endswith("bytes") else str(row[field])


def cell_words(field: str, value: Any) -> str:
    """A figure in words; nothing where there was none, which makes what there was stand out."""
    if field.endswith("seconds"):
        return format_duration(value) if value else ""
    if field.endswith("bytes"):
        return (f"−{format_bytes(-value)}" if value < 0 else format_bytes(value)) if value else ""
    return format_count(value) if field == "calls" else str(value)


def _searched(row: Row) -> str:
    return " ".join((str(row["name"]), str(row["shapes"]), *map(str, row["stack"]))).casefold()


class OperatorsTable(QTableView):
    """The table.

    Signals:
        chosen: the operator (its row) that is selected now, or ``None``.
    """

    chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.operators = OperatorsModel(self)
        self.setModel(self.operators)
        self.setAccessibleName("Operators")
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(24)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        header.setSortIndicator(2, Qt.SortOrder.DescendingOrder)
        self.setSortingEnabled(True)
        self.selectionModel().currentRowChanged.connect(self._choose)

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show the operators of another profile, by own time where most of it was spent."""
        on_device = any(row["device_self_seconds"] for row in rows)
        for place, (field, _column) in enumerate(COLUMNS):
            self.setColumnHidden(place, field in DEVICE_FIELDS and not any(row[field] for row in rows))
        self.operators.show_rows(rows)
        self.sortByColumn(4 if on_device else 2, Qt.SortOrder.DescendingOrder)
        self.resizeColumnsToContents()
        for place in range(1, len(COLUMNS) - 1):
            self.setColumnWidth(place, self.columnWidth(place) + ARROW_PX)
        self.setColumnWidth(0, min(self.columnWidth(0), NAME_WIDTH))
        if rows:
            self.selectRow(0)

    def select(self, name: str) -> None:
        """Select the operator called ``name``, where it is shown."""
        for place, row in enumerate(self.operators.rows):
            if row["name"] == name:
                self.selectRow(place)
                return

    def copy(self) -> None:
        """Copy what is shown as tab-separated text under a header: seconds and bytes, as they are."""
        lines = [[column.title for _field, column in COLUMNS]]
        lines += [[str(row[field]) for field, _column in COLUMNS] for row in self.operators.rows]
        QGuiApplication.clipboard().setText("\n".join("\t".join(line) for line in lines))

    def _choose(self, current: QModelIndex) -> None:
        self.chosen.emit(self.operators.rows[current.row()] if current.isValid() else None)
