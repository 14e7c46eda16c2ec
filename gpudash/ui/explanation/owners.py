"""Who allocated the memory: a table that can be grouped, searched and ordered; its rows are a pure function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from gpudash.memory.explaining.explanation_text import growth_words, place
from gpudash.memory.explaining.wording import innermost
from gpudash.telemetry.explanation import Explanation, Owner, short
from gpudash.ui.explanation.call_site_table import COUNT, OWN, TOTAL, WHERE, CallSiteArrangement, CallSiteTable
from gpudash.ui.widgets.labels import title_label
from gpudash.ui.widgets.plain_text import without_mnemonics
from gpudash.ui.widgets.tables import Column
from gpudash.units import format_bytes, format_count

COLUMNS = (
    OWN,
    TOTAL,
    COUNT,
    Column("per step", right=True, tip="Bytes that stay behind at every step"),
    Column("what"),
    WHERE,
)

GROUPS = ("call site", "module", "file", "category")
"""What rows may stand for."""

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
        self.chip = QPushButton()
        self.chip.setProperty("role", "chip")
        self.chip.setToolTip("Show all categories again (Esc)")
        self.chip.clicked.connect(self.category_cleared)
        self.arrangement = CallSiteArrangement(GROUPS)
        self.arrangement.grouped.connect(self._changed)
        self.arrangement.ordered.connect(self._changed)
        self.group, self.total = self.arrangement.group, self.arrangement.total
        self.search = QLineEdit()
        self.search.setPlaceholderText("Search   /")
        self.search.setAccessibleName("Search call sites")
        self.search.setClearButtonEnabled(True)
        self.search.setMaximumWidth(150)
        self.search.textChanged.connect(self._changed)
        self.table = CallSiteTable("Who allocated it", COLUMNS, EMPTY)
        self.table.row_changed.connect(self.owner_changed)
        head = QHBoxLayout()
        head.setSpacing(6)
        head.addWidget(title_label("2  WHO ALLOCATED IT"))
        head.addWidget(self.chip)
        head.addStretch(1)
        head.addWidget(self.arrangement)
        head.addWidget(self.search)
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
            group=self.arrangement.grouped_by,
            search=self.search.text(),
            by_total=self.arrangement.by_total,
        )
        self.chip.setText(without_mnemonics(f"{self._choice.category}  ×"))
        self.chip.setVisible(bool(self._choice.category))
        if self._explanation is None:
            return
        rows = owner_rows(self._explanation, self._choice)
        self.table.show_call_sites([row.cells for row in rows], [row.owner for row in rows])


@dataclass(frozen=True)
class OwnerRow:
    """A row: its cells, and the largest of the call sites that it stands for."""

    cells: tuple[str, ...]
    owner: Owner | None


@dataclass(frozen=True)
class Choice:
    """What of the owners is shown.

    Attributes:
        group: one of `GROUPS`.
        category: only of this one; "" for all.
        search: only those with this text in their place, module or category.
        by_total: ordered by what a line and all it called allocated, instead of by its own.
    """

    group: str = GROUPS[0]
    category: str = ""
    search: str = ""
    by_total: bool = False


def owner_rows(explanation: Explanation, choice: Choice) -> list[OwnerRow]:
    """Rows of ``explanation``, the largest first."""
    key = _KEYS[choice.group]
    groups: dict[str, list[Owner]] = defaultdict(list)
    for owner in explanation.owners:
        if _wanted(owner, choice):
            groups[key(owner)].append(owner)
    rows = [(owners, _row(name, owners, choice)) for name, owners in groups.items()]
    rows.sort(key=lambda row: -_size(row[0], choice))
    found = [row for _owners, row in rows]
    if explanation.rest_owners and not choice.category and not choice.search:
        words = f"{format_count(explanation.rest_owners)} more call sites"
        found.append(OwnerRow((format_bytes(explanation.rest_bytes), "", "", "", "", words), None))
    return found


def _wanted(owner: Owner, choice: Choice) -> bool:
    if choice.category and owner.category != choice.category:
        return False
    words = f"{owner.file} {owner.line} {owner.name} {owner.module} {owner.category} {owner.text}".lower()
    return choice.search.lower() in words


def _size(owners: Sequence[Owner], choice: Choice) -> int:
    return _total(owners) if choice.by_total else sum(owner.bytes for owner in owners)


def _total(owners: Sequence[Owner]) -> int:
    """Of one line its total; of several, which may contain one another, no less than any and than their own."""
    return max(sum(owner.bytes for owner in owners), *(owner.total_bytes for owner in owners))


def _row(name: str, owners: Sequence[Owner], choice: Choice) -> OwnerRow:
    largest = max(owners, key=lambda owner: owner.bytes)
    own = sum(owner.bytes for owner in owners)
    growth = sum(owner.growth_per_step or 0.0 for owner in owners)
    what = ", ".join(dict.fromkeys(owner.category for owner in owners))
    modules = {innermost(owner.module) for owner in owners}
    if choice.group == "call site" and len(modules) == 1 and largest.module:
        what = f"{innermost(largest.module)}: {what}"
    cells = (
        format_bytes(own),
        format_bytes(_total(owners)),
        format_count(sum(owner.count for owner in owners)),
        growth_words(growth or None),
        "" if choice.group == "category" else what,
        name,
    )
    return OwnerRow(cells, largest)


def _call_site(owner: Owner) -> str:
    return f"{place(owner)}  {owner.text}" if owner.text else place(owner)


def _file(owner: Owner) -> str:
    return "no stack recorded" if owner.file is None else short(owner.file)


_KEYS: dict[str, Callable[[Owner], str]] = {
    "call site": _call_site,
    "module": lambda owner: owner.module or "outside of modules",
    "file": _file,
    "category": lambda owner: owner.category,
}
