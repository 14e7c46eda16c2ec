"""Lists who allocated the live memory by call site, function, file, category, size or stream, and what grew or shrank
compared with another snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from gpudash.memory.explaining.call_sites import SourceLine
from gpudash.memory.snapshot.history.history import difference_text
from gpudash.memory.snapshot.history.model import SnapshotError
from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.ui.explanation.call_site_table import COUNT, OWN, TOTAL, WHERE, CallSiteArrangement, CallSiteTable
from gpudash.ui.snapshot.rows import GROUPS, ChangeRow, Holder, changes, signed
from gpudash.ui.snapshot.selection import NOTHING
from gpudash.ui.snapshot.study import Study, Studying
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.labels import set_role, worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.opening_page import progress_text
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, Table
from gpudash.units import format_bytes, format_count, format_percent

COLUMNS = (
    OWN,
    TOTAL,
    COUNT,
    Column("share", right=True, tip="Share of the bytes of all rows"),
    Column("what", tip="What the blocks are for, by their stacks"),
    WHERE,
)

CHANGE_COLUMNS = (
    Column("B minus A", right=True, tip="Live bytes at the later moment minus those at the earlier one"),
    Column("A", right=True, tip="Live bytes at the earlier moment"),
    Column("B", right=True, tip="Live bytes at the later moment"),
    Column("blocks", right=True, tip="Live blocks, B minus A"),
    Column("", tip="Grew, shrank or stayed"),
    WHERE,
)

MOST_ROWS = 500
"""Maximum number of rows; the last one sums up the rest."""

EMPTY = "Nothing is live here. Esc removes the last filter."
SAME = "Nothing grew or shrank between the two moments."


class WhoPane(QWidget):
    """The table, with its grouping and its order.

    Signals:
        group_changed: another one of `GROUPS` was chosen.
        row_changed: the current `Holder` or `ChangeRow`; ``None`` if there is none.
    """

    group_changed = Signal()
    row_changed = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._holders: Sequence[Holder] = ()
        self._compares = False
        self.sums = PlainLabel(role="muted", wraps=True)
        self.arrangement = CallSiteArrangement(GROUPS)
        self.arrangement.grouped.connect(self.group_changed)
        self.arrangement.ordered.connect(self._reorder)
        self.group, self.total = self.arrangement.group, self.arrangement.total
        self.table = CallSiteTable("Who allocated it", COLUMNS, EMPTY)
        self.changes = CallSiteTable("What grew and shrank", CHANGE_COLUMNS, SAME)
        for table in (self.table, self.changes):
            table.row_changed.connect(self.row_changed)
        head = in_row((self.sums, 1), self.arrangement, spacing=6)
        in_column(head, (self.table, 1), (self.changes, 1), parent=self, margins=(4, 6, 4, 2), spacing=4)
        self.changes.hide()

    @property
    def grouped_by(self) -> str:
        """The chosen entry of `GROUPS`."""
        return self.arrangement.grouped_by

    @property
    def front(self) -> Table:
        """The visible table."""
        if self._compares:
            return self.changes
        return self.table

    def show_holders(self, holders: Sequence[Holder]) -> None:
        """Show who holds the memory that is live at one moment."""
        self._compares = False
        self._holders = holders
        self._put_in_front()
        self._show_holders()

    def show_changes(self, changes: Sequence[ChangeRow], text: str) -> None:
        """Show what grew and shrank between two moments; ``text`` sums it up in a sentence."""
        self._compares = True
        self._put_in_front()
        self.sums.setText(text)
        shown = changes[:MOST_ROWS]
        self.changes.show_call_sites(list(map(change_cells, shown)), shown)

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
            text = f"{format_count(len(rest))} more rows"
            rows.append((format_bytes(size), "", format_count(count), format_percent(size / whole), "", text))
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
    """The cells of a comparison row, in the order of `CHANGE_COLUMNS`."""
    more = change.second_count - change.first_count
    sign = ""
    if more > 0:
        sign = "+"
    elif more < 0:
        sign = "−"
    return (
        signed(change.grown),
        format_bytes(change.first),
        format_bytes(change.second),
        f"{sign}{format_count(abs(more))}",
        change.word,
        change.name,
    )


LEAVING_S = 1.0
"""How long closing waits for the thread that analyses the second file."""

NO_OTHER = "Choose a second snapshot: what is live at its peak (or out-of-memory) is compared with this one's."


class ComparePane(QWidget):
    """Compares the snapshot with another file: a button, a sentence and a table.

    Signals:
        said: a sentence for the status line.
    """

    said = Signal(str)

    def __init__(self, opener: Callable[[Path], OpenedSnapshot], source: SourceLine) -> None:
        super().__init__()
        self._opener = opener
        self._source = source
        self._study: Study | None = None
        self._name = ""
        self._opened: OpenedSnapshot | None = None
        self._studying: Studying | None = None
        self.button = worded_button("Choose a snapshot", "Choose the file to compare this snapshot with", self._choose)
        self.label = PlainLabel(role="muted", wraps=True)
        self.table = Table("Difference of two snapshots", CHANGE_COLUMNS, NO_OTHER)
        row = in_row((self.label, 1), self.button)
        in_column(row, (self.table, 1), parent=self, margins=(4, 6, 4, 2), spacing=4)

    def show_study(self, study: Study, name: str) -> None:
        """Set the first of the two snapshots."""
        self._study, self._name = study, name

    def _choose(self) -> None:
        path = FileDialog.ask_to_open(
            self, "Compare with", "", "Memory snapshots (*.pickle *.pkl *.json *.gz);;All files (*)"
        )
        if path:
            self.compare_with(Path(path))

    def compare_with(self, path: Path) -> None:
        """Read another snapshot and show the difference when it is loaded."""
        self.close_other()
        self._opened = self._opener(path)
        self._opened.start()
        self._show_message(f"Reading {path.name}…")

    def refresh(self) -> None:
        """Continue reading the second file."""
        if self._opened is None or self._study is None:
            return
        if self._studying is not None:
            if not self._studying.is_alive():
                self._finish(self._studying)
            return
        try:
            snapshot = self._opened.poll()
        except (SnapshotError, OSError) as error:
            self._show_message(str(error), wrong=True)
            self.close_other()
            return
        if snapshot is None:
            done, total = self._opened.progress
            if total:
                self._show_message(f"Reading {self._opened.path.name}: {progress_text(done, total)}")
            return
        same = [place for place, device in enumerate(snapshot.devices) if device.index == self._study.device.index]
        self._studying = Studying(snapshot, same[0] if same else 0, self._source, self._opened.path)
        self._studying.start()

    def _finish(self, studying: Studying) -> None:
        opened, self._studying = self._opened, None
        assert opened is not None and self._study is not None
        if studying.study is None:
            self._show_message(studying.problem, wrong=True)
        else:
            self._show(studying.study, opened.path.name)
        self.close_other()

    def _show(self, other: Study, name: str) -> None:
        assert self._study is not None
        first, second = self._study, other
        found = changes(
            first.holders(first.alive(NOTHING), "call site"), second.holders(second.alive(NOTHING), "call site")
        )
        self.table.show_rows(list(map(change_cells, found[:MOST_ROWS])))
        text = difference_text(first.history, first.home, second.history, second.home)
        self._show_message(f"A is {self._name}, B is {name}. {text}")
        self.said.emit(f"Compared with {name}.")

    def _show_message(self, text: str, *, wrong: bool = False) -> None:
        set_role(self.label, "error" if wrong else "muted")
        self.label.setText(text)

    def close_other(self) -> None:
        """Stop reading the second file."""
        if self._studying is not None:
            self._studying.join(LEAVING_S)
            self._studying = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None
