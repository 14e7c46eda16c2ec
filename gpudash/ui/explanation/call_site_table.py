"""The table of who allocated what, live and for snapshots; its rows can be grouped and sorted."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QItemSelectionModel, Signal
from PySide6.QtWidgets import QPushButton, QWidget

from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.tables import Column, Table

OWN = Column("own", right=True, tip="Live bytes that the row itself allocated")
TOTAL = Column("total", right=True, tip="Live bytes of the line and of everything it called")
COUNT = Column("count", right=True, tip="Live blocks")
WHERE = Column("where", wide=True)


class CallSiteTable(Table):
    """A table with one current row.

    Signals:
        row_changed: what the current row stands for; ``None`` if there is no such row, or it stands for nothing. Also
            when the current row is clicked again.
    """

    row_changed = Signal(object)

    def __init__(self, name: str, columns: Sequence[Column], empty: str, parent: QWidget | None = None) -> None:
        super().__init__(name, columns, empty, parent)
        self._stand_for: Sequence[object] = ()
        self.view.setWordWrap(False)
        self.view.selectionModel().selectionChanged.connect(self._emit_row)
        self.view.clicked.connect(lambda _index: self._emit_row())

    def show_call_sites(self, rows: Sequence[Sequence[str]], stand_for: Sequence[object]) -> None:
        """Show ``rows`` and select the first.

        Args:
            rows: the cells of each row.
            stand_for: what each row stands for, in order; rows past its end stand for nothing.
        """
        self._stand_for = stand_for
        self.show_rows(list(rows))
        self.view.clearSelection()
        if rows:
            self.select_row(0)
        self._emit_row()

    def select_row(self, row: int) -> None:
        """Make ``row`` the current one."""
        # QTableView.selectRow extends or toggles the selection while Shift or Ctrl is held.
        flags = QItemSelectionModel.SelectionFlag.ClearAndSelect | QItemSelectionModel.SelectionFlag.Rows
        self.view.selectionModel().setCurrentIndex(self.model.index(row, 0), flags)

    def _emit_row(self) -> None:
        chosen = self.view.selectionModel().selectedRows()
        at = -1
        if chosen:
            at = chosen[0].row()
        self.row_changed.emit(self._stand_for[at] if 0 <= at < len(self._stand_for) else None)


class CallSiteArrangement(QWidget):
    """Controls that choose how rows are grouped and sorted.

    Args:
        groups: what rows can stand for, such as "call site".

    Signals:
        grouped, ordered: a different choice was made.
    """

    grouped = Signal()
    ordered = Signal()

    def __init__(self, groups: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._groups = groups
        self.group = ChoiceField()
        self.group.addItems([f"by {group}" for group in groups])
        self.group.setAccessibleName("Group rows")
        self.group.setToolTip("What a row stands for")
        self.group.currentIndexChanged.connect(lambda _index: self.grouped.emit())
        self.total = QPushButton("by total")
        self.total.setProperty("role", "chip")
        self.total.setCheckable(True)
        self.total.setAccessibleName("Order by total")
        self.total.setToolTip("Order by total instead of own bytes (T)")
        self.total.toggled.connect(lambda _on: self.ordered.emit())
        in_row(self.total, self.group, parent=self, margins=(0, 0, 0, 0), spacing=6)

    @property
    def grouped_by(self) -> str:
        """The selected group."""
        return self._groups[self.group.currentIndex()]

    @property
    def by_total(self) -> bool:
        """Whether rows are sorted by what a line and everything it called allocated, rather than by the line alone."""
        return self.total.isChecked()
