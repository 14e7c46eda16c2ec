"""The events of a trace in a table: only the rows in sight are ever made, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt

from gpudash.memory.snapshot.model import NONE, OOM, SEGMENT_ALLOC, Columns, Stack
from gpudash.ui.tables import Column
from gpudash.units import format_bytes, format_count

Index = QModelIndex | QPersistentModelIndex

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
    """Which events are shown.

    Attributes:
        action: only these; "" for all, "segments" for those of the device itself.
        text: only those with it in their stack.
        least_bytes: only those of this size or more.
    """

    action: str = ""
    text: str = ""
    least_bytes: int = 0


def matching(columns: Columns, stacks: Sequence[Stack], wanted: Filter) -> NDArray[np.int64]:
    """Numbers of the events that ``wanted`` lets through, ascending."""
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
        keep &= hits[columns.stack]  # NONE is the last
    return np.flatnonzero(keep)


def _mentions(stack: Stack, text: str) -> bool:
    return any(text in f"{file}:{line} {name}".lower() for file, line, name in stack)


class EventsModel(QAbstractTableModel):
    """Rows of `matching` events; cells are made when they are asked for.

    Args:
        columns: the trace.
        sites: words of the place of each stack.
    """

    def __init__(self, columns: Columns, sites: Sequence[str], parent: Any = None) -> None:
        super().__init__(parent)
        self.columns = columns
        self._sites = sites
        self.rows = np.arange(len(columns))
        times = columns.time_us
        known = times[times != NONE]
        self._began_us = int(known[0]) if len(known) else None

    def show_rows(self, rows: NDArray[np.int64]) -> None:
        """Show the events of these numbers."""
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def row_of(self, event: int) -> int:
        """The row of an event, or of the last before it; -1 when there is none."""
        return int(np.searchsorted(self.rows, event, "right")) - 1

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own default
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(EVENT_COLUMNS)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return self.cells(int(self.rows[index.row()]))[index.column()]
        if role == Qt.ItemDataRole.TextAlignmentRole and EVENT_COLUMNS[index.column()].right:
            return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        return None

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        return None if orientation is Qt.Orientation.Vertical else EVENT_COLUMNS[section].heading(role)

    def cells(self, event: int) -> tuple[str, ...]:
        """The words of one event."""
        columns = self.columns
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
