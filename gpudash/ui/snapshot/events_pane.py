"""A table of the trace's events with filters; selecting an event selects its moment.

Only visible rows are created, however many events there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QItemSelectionModel, Signal
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QLineEdit, QWidget

from gpudash.memory.snapshot.history.model import NONE, OOM, SEGMENT_ALLOC, Columns, Stack
from gpudash.system.foreign_text import tab_separated
from gpudash.ui.snapshot.rows import Places
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import polish_again, search_field
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, RowsModel, RowsView
from gpudash.units import format_bytes, format_count, parse_size

WIDTHS = (80, 92, 120, 84, 128, 56)
"""Widths in logical pixels of all columns but the last: measuring millions of cells would take too long."""

COPIED = 10_000
"""Maximum number of rows to copy at once."""


class EventsPane(QWidget):
    """The table of events and its filters.

    Signals:
        picked: the moment after the selected event.
    """

    picked = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.model: EventsModel | None = None
        self._places: Places | None = None
        self.action = ChoiceField("Show events", "Which events are shown")
        self.action.currentIndexChanged.connect(self._narrow)
        self.least = QLineEdit()
        self.least.setPlaceholderText("least size")
        self.least.setAccessibleName("Least size of an event")
        self.least.setToolTip("Only events of this size or more")
        self.least.setMaximumWidth(110)
        self.text = search_field("text in the stack", "Text in the stack of an event")
        self.text.setMaximumWidth(160)
        for field in (self.least, self.text):
            field.textChanged.connect(self._narrow)
        self.sums = PlainLabel(role="muted")
        self.view = RowsView("Events of the trace")
        self.view.setWordWrap(False)
        self.view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerItem)  # there may be millions
        header = self.view.verticalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        header.setDefaultSectionSize(22)
        head = in_row((self.sums, 1), self.action, self.least, self.text, spacing=6)
        in_column(head, (self.view, 1), parent=self, margins=(4, 6, 4, 2), spacing=4)

    def show_events(self, columns: Columns, places: Places) -> None:
        """Show a trace."""
        self._places = places
        self.model = EventsModel(columns, places.labels, self)
        self.view.setModel(self.model)
        for place, width in enumerate(WIDTHS):
            self.view.setColumnWidth(place, width)
        self.view.horizontalHeader().setSectionResizeMode(len(EVENT_COLUMNS) - 1, QHeaderView.ResizeMode.Stretch)
        self.view.selectionModel().currentRowChanged.connect(self._emit_picked)
        self.action.blockSignals(True)
        self.action.clear()
        self.action.addItem("all events", "")
        self.action.addItem("segments only", "segments")
        present = np.flatnonzero(np.bincount(columns.action)).tolist()
        for code in present:
            self.action.addItem(columns.actions[code], columns.actions[code])
        self.action.blockSignals(False)
        self._narrow()

    def _narrow(self) -> None:
        if self.model is None or self._places is None:
            return
        least = 0
        invalid = "false"
        text = self.least.text().strip()
        if text:
            try:
                least = parse_size(text)
            except ValueError:
                invalid = "true"
        self.least.setProperty("invalid", invalid)
        polish_again(self.least)
        wanted = Filter(self.action.currentData() or "", self.text.text().strip(), least)
        found = matching(self.model.trace, self._places.stacks, wanted)
        self.model.replace_rows(found)
        shown, all_of_them = format_count(len(found)), format_count(len(self.model.trace))
        self.sums.setText(f"{all_of_them} events" if shown == all_of_them else f"{shown} of {all_of_them} events")

    def show_moment(self, moment: int) -> None:
        """Select the event of ``moment`` and scroll to it."""
        selected = self.view.selectionModel()
        if self.model is None or selected is None:
            return
        row = self.model.row_of(moment)
        if row < 0 or row == self.view.currentIndex().row():
            return
        index = self.model.index(row, 0)
        selected.blockSignals(True)
        selected.setCurrentIndex(
            index, QItemSelectionModel.SelectionFlag.ClearAndSelect | QItemSelectionModel.SelectionFlag.Rows
        )
        selected.blockSignals(False)
        self.view.scrollTo(index, QAbstractItemView.ScrollHint.PositionAtCenter)
        self.view.viewport().update()

    def _emit_picked(self) -> None:
        row = self.view.currentIndex().row()
        if self.model is not None and row >= 0:
            self.picked.emit(int(self.model.rows[row]))

    def text_of(self) -> str:
        """The selected rows as tab-separated text; with fewer than two selected, the rows from the first on."""
        if self.model is None:
            return ""
        chosen = sorted({index.row() for index in self.view.selectionModel().selectedRows()})
        rows = chosen if len(chosen) > 1 else range(min(self.model.rowCount(), COPIED))
        lines = [tuple(column.title for column in EVENT_COLUMNS)]
        lines += [self.model.cells(self.model.rows[row]) for row in rows]
        return tab_separated(lines)


EVENT_COLUMNS = (
    Column("event", right=True, tip="Number of the event, from 0"),
    Column("time (ms)", right=True, tip="Since the first event"),
    Column("action"),
    Column("size", right=True, tip="Bytes as requested"),
    Column("address", right=True),
    Column("stream", right=True),
    Column("where", wide=True),
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events to show.

    Attributes:
        action: only this action; "" for all, "segments" for segment events.
        text: only events with this text in their stack.
        least_bytes: only events of at least this size.
    """

    action: str = ""
    text: str = ""
    least_bytes: int = 0


def matching(columns: Columns, stacks: Sequence[Stack], wanted: Filter) -> NDArray[np.int64]:
    """The numbers of the events that pass the filter ``wanted``, ascending."""
    keep = np.ones(len(columns), dtype=bool)
    if wanted.action == "segments":
        keep &= (columns.action >= SEGMENT_ALLOC) & (columns.action < OOM)
    elif wanted.action:
        keep &= columns.action == columns.actions.index(wanted.action)
    if wanted.least_bytes:
        keep &= columns.size >= wanted.least_bytes
    if wanted.text:
        text = wanted.text.lower()
        hits = np.array([_mentions(stack, text) for stack in stacks] + [False], dtype=bool)
        keep &= hits[columns.stack]  # NONE is -1: the last entry
    return np.flatnonzero(keep)


def _mentions(stack: Stack, text: str) -> bool:
    return any(text in f"{file}:{line} {name}".lower() for file, line, name in stack)


class EventsModel(RowsModel[np.int64]):
    """Rows of `matching` events; cells are created on demand.

    Args:
        columns: the trace.
        sites: the label of each stack's call site.
    """

    def __init__(self, columns: Columns, sites: Sequence[str], parent: Any = None) -> None:
        super().__init__(EVENT_COLUMNS, parent)
        self.trace = columns
        self._sites = sites
        self.rows = np.arange(len(columns))
        times = columns.time_us
        known = times[times != NONE]
        self._began_us = int(known[0]) if len(known) else None

    def row_of(self, event: int) -> int:
        """The row of an event, or of the last shown one before it; -1 if there is none."""
        return int(np.searchsorted(np.asarray(self.rows), event, "right")) - 1

    def label(self, row: np.int64, column: int) -> str:
        return self.cells(row)[column]

    def cells(self, row: np.int64) -> tuple[str, ...]:
        """The texts of one event."""
        columns, event = self.trace, int(row)
        time_us, stack = int(columns.time_us[event]), int(columns.stack[event])
        address = int(columns.address[event])
        known = time_us != NONE and self._began_us is not None
        return (
            format_count(event),
            f"{(time_us - (self._began_us or 0)) / 1000:,.3f}".replace(",", "\u202f") if known else "",
            columns.actions[int(columns.action[event])],
            format_bytes(int(columns.size[event])),
            f"{address:#x}" if address else "",
            str(int(columns.stream[event])),
            self._sites[stack] if stack != NONE else "no stack recorded",
        )
