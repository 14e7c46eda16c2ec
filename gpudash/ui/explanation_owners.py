"""Who allocated the memory: a table that can be grouped, searched and ordered by own or total bytes."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QFrame, QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from gpudash.memory.explanation import Explanation, Owner
from gpudash.ui.explanation_rows import GROUPS, Choice, OwnerRow, owner_rows
from gpudash.ui.labels import title_label
from gpudash.ui.tables import Column, Table

COLUMNS = (
    Column("own", right=True, tip="Live bytes that the line itself allocated"),
    Column("total", right=True, tip="Live bytes of the line and of everything it called"),
    Column("count", right=True, tip="Live blocks"),
    Column("per step", right=True, tip="Bytes that stay behind at every step"),
    Column("what"),
    Column("where", wide=True),
)

EMPTY = "No live block matches. Esc shows all again."


class OwnersPanel(QFrame):
    """The table and what narrows it.

    Signals:
        owner_changed: the `Owner` of the row in front, ``None`` when there is none.
        category_cleared: the choice of a category was taken back here.
    """

    owner_changed = Signal(object)
    category_cleared = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self._explanation: Explanation | None = None
        self._choice = Choice()
        self._rows: list[OwnerRow] = []
        self.chip = QPushButton()
        self.chip.setProperty("role", "chip")
        self.chip.setToolTip("Show all categories again (Esc)")
        self.chip.clicked.connect(self.category_cleared)
        self.group = QComboBox()
        self.group.addItems([f"by {group}" for group in GROUPS])
        self.group.setAccessibleName("Group rows")
        self.group.setToolTip("What a row stands for")
        self.group.currentIndexChanged.connect(self._changed)
        self.search = QLineEdit()
        self.search.setPlaceholderText("Search   /")
        self.search.setAccessibleName("Search call sites")
        self.search.setClearButtonEnabled(True)
        self.search.setMaximumWidth(150)
        self.search.textChanged.connect(self._changed)
        self.total = QPushButton("by total")
        self.total.setProperty("role", "chip")
        self.total.setCheckable(True)
        self.total.setToolTip("Order by total instead of own bytes (T)")
        self.total.toggled.connect(self._changed)
        self.table = Table("Who allocated it", COLUMNS, EMPTY)
        self.table.view.setWordWrap(False)
        self.table.view.selectionModel().selectionChanged.connect(self._tell)
        head = QHBoxLayout()
        head.setSpacing(6)
        head.addWidget(title_label("2  WHO ALLOCATED IT"))
        head.addWidget(self.chip)
        head.addStretch(1)
        for control in (self.total, self.group, self.search):
            head.addWidget(control)
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 6, 8, 6)
        column.setSpacing(4)
        column.addLayout(head)
        column.addWidget(self.table, 1)

    def show_owners(self, explanation: Explanation) -> None:
        """Show who allocated what ``explanation`` tells."""
        self._explanation = explanation
        self.set_category("")

    def set_category(self, category: str) -> None:
        """Show only this category; "" for all."""
        self._choice = replace(self._choice, category=category)
        self._changed()

    def clear(self) -> bool:
        """Take search and category back; false when there was neither."""
        narrowed = bool(self._choice.category or self._choice.search)
        self.search.clear()
        self.set_category("")
        return narrowed

    def _changed(self) -> None:
        self._choice = replace(
            self._choice,
            group=GROUPS[self.group.currentIndex()],
            search=self.search.text(),
            by_total=self.total.isChecked(),
        )
        self.chip.setText(f"{self._choice.category}  ×")
        self.chip.setVisible(bool(self._choice.category))
        if self._explanation is None:
            return
        self._rows = owner_rows(self._explanation, self._choice)
        self.table.show_rows([row.cells for row in self._rows])
        self.table.view.clearSelection()
        if self._rows:
            self.table.view.selectRow(0)
        self._tell()

    def _tell(self) -> None:
        owner: Owner | None = None
        chosen = self.table.view.selectionModel().selectedRows()
        if chosen and chosen[0].row() < len(self._rows):
            owner = self._rows[chosen[0].row()].owner
        self.owner_changed.emit(owner)
