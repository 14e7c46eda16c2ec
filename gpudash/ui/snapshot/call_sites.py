"""Who allocated what is alive: a table by call site, function, file, category, size or stream."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from gpudash.ui.explanation.call_site_table import COUNT, OWN, TOTAL, WHERE, CallSiteArrangement, CallSiteTable
from gpudash.ui.snapshot.rows import GROUPS, ChangeRow, Holder, signed
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, Table
from gpudash.units import format_bytes, format_count, format_percent

COLUMNS = (
    OWN,
    TOTAL,
    COUNT,
    Column("share", right=True, tip="Of the bytes of all rows"),
    Column("what", tip="What the blocks are for, by their stacks"),
    WHERE,
)

CHANGE_COLUMNS = (
    Column("B minus A", right=True, tip="Bytes that are live at the later moment less those at the earlier one"),
    Column("A", right=True, tip="Live bytes at the earlier moment"),
    Column("B", right=True, tip="Live bytes at the later moment"),
    Column("blocks", right=True, tip="Live blocks, B minus A"),
    Column("", tip="Grew, shrank or stayed"),
    WHERE,
)

MOST_ROWS = 500
"""Rows that are shown; what the rest holds is the last row."""

EMPTY = "Nothing is live here. Esc takes the newest filter back."
SAME = "Between the two moments nothing grew and nothing shrank."


class WhoPane(QWidget):
    """The table, and what it is grouped and ordered by.

    Signals:
        group_changed: another of `GROUPS` was chosen.
        row_changed: the `Holder` or `ChangeRow` in front, ``None`` when there is none.
    """

    group_changed = Signal()
    row_changed = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._holders: Sequence[Holder] = ()
        self._compares = False
        self.sums = PlainLabel()
        self.sums.setProperty("role", "muted")
        self.sums.setWordWrap(True)
        self.arrangement = CallSiteArrangement(GROUPS)
        self.arrangement.grouped.connect(self.group_changed)
        self.arrangement.ordered.connect(self._reorder)
        self.group, self.total = self.arrangement.group, self.arrangement.total
        self.table = CallSiteTable("Who allocated it", COLUMNS, EMPTY)
        self.changes = CallSiteTable("What grew and shrank", CHANGE_COLUMNS, SAME)
        for table in (self.table, self.changes):
            table.row_changed.connect(self.row_changed)
        head = QHBoxLayout()
        head.setSpacing(6)
        head.addWidget(self.sums, 1)
        head.addWidget(self.arrangement)
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 6, 4, 2)
        column.setSpacing(4)
        column.addLayout(head)
        column.addWidget(self.table, 1)
        column.addWidget(self.changes, 1)
        self.changes.hide()

    @property
    def grouped_by(self) -> str:
        """The chosen one of `GROUPS`."""
        return self.arrangement.grouped_by

    @property
    def front(self) -> Table:
        """The table in sight."""
        return self.changes if self._compares else self.table

    def show_holders(self, holders: Sequence[Holder]) -> None:
        """Show who holds what is alive at one moment."""
        self._compares = False
        self._holders = holders
        self._put_in_front()
        self._show_holders()

    def show_changes(self, changes: Sequence[ChangeRow], words: str) -> None:
        """Show what grew and shrank between two moments; ``words`` say it in a sentence."""
        self._compares = True
        self._put_in_front()
        self.sums.setText(words)
        shown = changes[:MOST_ROWS]
        self.changes.show_call_sites([change_cells(change) for change in shown], shown)

    def _put_in_front(self) -> None:
        self.table.setVisible(not self._compares)
        self.changes.setVisible(self._compares)
        self.total.setVisible(not self._compares)

    def _reorder(self) -> None:
        if not self._compares:
            self._show_holders()

    def _show_holders(self) -> None:
        by_total = self.arrangement.by_total
        self._holders = sorted(self._holders, key=lambda row: -(row.total if by_total else row.own))
        whole = sum(row.own for row in self._holders)
        shown = self._holders[:MOST_ROWS]
        rows = [_cells(row, whole) for row in shown]
        rest = self._holders[MOST_ROWS:]
        if rest:
            size, count = sum(row.own for row in rest), sum(row.count for row in rest)
            words = f"{format_count(len(rest))} more rows"
            rows.append((format_bytes(size), "", format_count(count), format_percent(size / whole), "", words))
        blocks = sum(row.count for row in self._holders)
        self.sums.setText(f"{format_bytes(whole)} live in {format_count(blocks)} blocks")
        self.table.show_call_sites(rows, shown)


def _cells(row: Holder, whole: int) -> tuple[str, ...]:
    return (
        format_bytes(row.own),
        format_bytes(row.total),
        format_count(row.count),
        format_percent(row.own / whole) if whole else "",
        ", ".join(row.categories[:2]) + (", …" if len(row.categories) > 2 else ""),
        row.name,
    )


def change_cells(change: ChangeRow) -> tuple[str, ...]:
    """A row of a comparison, in the order of `CHANGE_COLUMNS`."""
    more = change.second_count - change.first_count
    return (
        signed(change.grown),
        format_bytes(change.first),
        format_bytes(change.second),
        f"{'+' if more > 0 else '-' if more else ''}{format_count(abs(more))}",
        change.word,
        change.name,
    )
