"""The table of who allocated what, live and of a snapshot: its rows stand for something, and can be rearranged."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QPushButton, QWidget

from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.tables import Column, Table

OWN = Column("own", right=True, tip="Live bytes that the row itself allocated")
TOTAL = Column("total", right=True, tip="Live bytes of the line and of everything it called")
COUNT = Column("count", right=True, tip="Live blocks")
WHERE = Column("where", wide=True)


class CallSiteTable(Table):
    """A table of which one row is in front.

    Signals:
        row_changed: what the row in front stands for; ``None`` when it is none, or stands for nothing.
    """

    row_changed = Signal(object)

    def __init__(self, name: str, columns: Sequence[Column], empty: str, parent: QWidget | None = None) -> None:
        super().__init__(name, columns, empty, parent)
        self._stand_for: Sequence[object] = ()
        self.view.setWordWrap(False)
        self.view.selectionModel().selectionChanged.connect(self._emit_row)

    def show_call_sites(self, rows: Sequence[Sequence[str]], stand_for: Sequence[object]) -> None:
        """Show ``rows`` with the first in front.

        Args:
            rows: of cells.
            stand_for: what the rows stand for, in their order; those behind the last stand for nothing.
        """
        self._stand_for = stand_for
        self.show_rows(list(rows))
        self.view.clearSelection()
        if rows:
            self.view.selectRow(0)
        self._emit_row()

    def _emit_row(self) -> None:
        chosen = self.view.selectionModel().selectedRows()
        at = -1
        if chosen:
            at = chosen[0].row()
        self.row_changed.emit(self._stand_for[at] if 0 <= at < len(self._stand_for) else None)


class CallSiteArrangement(QWidget):
    """What rows stand for, and what they are ordered by.

    Args:
        groups: what rows may stand for: "call site".

    Signals:
        grouped, ordered: another choice was made.
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
        """The chosen one of the groups."""
        return self._groups[self.group.currentIndex()]

    @property
    def by_total(self) -> bool:
        """Whether rows are ordered by what a line and all it called allocated, instead of by its own."""
        return self.total.isChecked()
