"""The table of recordings: sorted by any column, filtered by what is typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, QItemSelectionModel, QModelIndex, QSortFilterProxyModel, Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from gpudash.session.recordings.library import LibraryEntry
from gpudash.telemetry.export.cells import tab_separated
from gpudash.ui.colours import Palette
from gpudash.ui.recordings.library_words import (
    ALARMING,
    device_of,
    length_of,
    minute_of,
    peak_of,
    short_title,
    status_of,
    workload_of,
)
from gpudash.ui.widgets.tables import Column, Index, RowsModel
from gpudash.units import format_bytes

SORT = Qt.ItemDataRole.UserRole
"""Role of the value that a column is sorted by. Sizes are floats: Qt compares whole numbers as those of 32 bits where
the first of two fits into them."""

COLUMNS: tuple[tuple[Column, Callable[[LibraryEntry], str], Callable[[LibraryEntry], Any]], ...] = (
    (Column("began"), minute_of, lambda entry: entry.began_s),
    (Column("recording", wide=True), short_title, lambda entry: short_title(entry).lower()),
    (Column("workload"), workload_of, workload_of),
    (Column("device"), device_of, device_of),
    (Column("status"), status_of, status_of),
    (
        Column("peak", right=True, tip="Highest use of the last run's GPU, or of the process's memory on the CPU"),
        peak_of,
        lambda entry: float(entry.facts.peak_bytes or 0) if entry.facts is not None else -1.0,
    ),
    (
        Column("length", right=True),
        length_of,
        lambda entry: entry.facts.duration_s or 0.0 if entry.facts is not None else -1.0,
    ),
    (Column("size", right=True), lambda entry: format_bytes(entry.bytes), lambda entry: float(entry.bytes)),
    (
        Column("locked", tip="Locked recordings are not deleted, and not tidied away when there are too many"),
        lambda entry: "locked" if entry.facts is not None and entry.facts.locked else "",
        lambda entry: entry.facts is None or not entry.facts.locked,
    ),
)

_LONGEST = (
    "2026-12-28 20:00",
    "",
    "comparison",
    "sim:0 (SIMULATED)",
    "out of memory",
    "100.0 GiB",
    "12 min 05 s",
    "100 MiB",
    "locked",
)
"""The longest usual words of each column, for which it has room; "" takes what is left."""

LEAST = "recordings"
"""What the narrowest column has room for."""

ROOM_PX = 26
"""Beside a column's words: its margins."""


class RecordingsModel(RowsModel[LibraryEntry]):
    """One row per recording."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__([column for column, _words, _value in COLUMNS], parent)
        self.alarm = QColor()

    def show_entries(self, entries: Sequence[LibraryEntry]) -> bool:
        """Show these; returns whether rows came or went, so that a selection has to be made again."""
        same = [entry.path for entry in entries] == [entry.path for entry in self.rows]
        if same:
            self.update_rows(entries)
        else:
            self.replace_rows(entries)
        return not same

    def words(self, row: LibraryEntry, column: int) -> str:
        return COLUMNS[column][1](row)

    def tip(self, row: LibraryEntry, column: int) -> str:
        damage = row.facts.damage if row.facts is not None else ""
        return damage or f"{self.words(row, column)}\n{row.path}"

    def value(self, row: LibraryEntry, column: int, role: int) -> Any:
        if role == SORT:
            return COLUMNS[column][2](row)
        alarming = COLUMNS[column][1] is status_of and status_of(row) in ALARMING
        return self.alarm if alarming and role == Qt.ItemDataRole.ForegroundRole else None


class Searched(QSortFilterProxyModel):
    """The recordings that hold every word that is looked for, in any column or in their file's name."""

    def __init__(self, model: RecordingsModel, parent: QWidget) -> None:
        super().__init__(parent)
        self._model = model
        self._words: list[str] = []
        self.setSourceModel(model)
        self.setSortRole(SORT)

    def search(self, text: str) -> None:
        """Show what holds all words of ``text``."""
        self._words = text.lower().split()
        self.invalidate()

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        entry = self._model.rows[row]
        text = " ".join((entry.path.name, *(words(entry) for _column, words, _value in COLUMNS))).lower()
        return all(word in text for word in self._words)


class RecordingsTable(QTableView):
    """The view: whole rows are selected, several with Ctrl or Shift; a click on a heading sorts."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._model = RecordingsModel(self)
        self.found = Searched(self._model, self)
        self.setModel(self.found)
        self.setAccessibleName("Recordings")
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setShowGrid(False)
        self.setAlternatingRowColors(True)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        self.setSortingEnabled(True)
        self.sortByColumn(0, Qt.SortOrder.DescendingOrder)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        for position, (column, _words, _value) in enumerate(COLUMNS):
            if column.wide:
                header.setSectionResizeMode(position, QHeaderView.ResizeMode.Stretch)
        self._measure()
        self.set_palette(palette)

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._model.alarm = QColor(palette.critical)
        self.viewport().update()

    def _measure(self) -> None:
        """Give rows and columns room for the text size in force."""
        metrics = self.fontMetrics()
        self.verticalHeader().setDefaultSectionSize(metrics.height() + 9)
        self.horizontalHeader().setMinimumSectionSize(metrics.horizontalAdvance(LEAST) + ROOM_PX)
        for position, words in enumerate(_LONGEST):
            if words:
                self.setColumnWidth(position, metrics.horizontalAdvance(words) + ROOM_PX)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._measure()

    def show_entries(self, entries: Sequence[LibraryEntry]) -> None:
        """Show these; what was selected stays so."""
        chosen = {entry.path for entry in self.selected()}
        if self._model.show_entries(entries):
            self.select(chosen)

    def select(self, paths: set[Path]) -> None:
        """Select the recordings at ``paths`` and no others."""
        selection, flags = self.selectionModel(), QItemSelectionModel.SelectionFlag
        selection.clearSelection()
        for row in range(self.found.rowCount()):
            index = self.found.index(row, 0)
            if self._entry(index).path in paths:
                selection.select(index, flags.Select | flags.Rows)
                selection.setCurrentIndex(index, flags.NoUpdate)

    def selected(self) -> list[LibraryEntry]:
        """The selected recordings, from the top down."""
        rows = sorted(self.selectionModel().selectedRows(), key=lambda index: index.row())
        return [self._entry(index) for index in rows]

    def shown(self) -> list[LibraryEntry]:
        """Every recording in the table, from the top down."""
        return [self._entry(self.found.index(row, 0)) for row in range(self.found.rowCount())]

    def _entry(self, index: QModelIndex) -> LibraryEntry:
        return self._model.rows[self.found.mapToSource(index).row()]

    def text(self) -> str:
        """The selected recordings, or all when none is, as tab-separated text under a header."""
        rows = [[words(entry) for _column, words, _value in COLUMNS] for entry in self.selected() or self.shown()]
        return tab_separated([[column.title for column, _words, _value in COLUMNS], *rows])
