"""The table of recorded runs, with a heading per session: sortable, searchable, and with ticks to compare runs; and
the texts of its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from PySide6.QtCore import QEvent, QItemSelectionModel, QObject, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView

from gpudash.devices.names import shown_devices
from gpudash.session.recordings.library import LibraryEntry
from gpudash.session.recordings.run_names import kind_of_run, peak_text, run_name
from gpudash.system.foreign_text import tab_separated
from gpudash.telemetry.comparing.comparison import value_text
from gpudash.telemetry.recording.facts import RunFacts
from gpudash.telemetry.runs import ending_text
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.tables import ARROW_ROOM, Column, Index, RowsModel, RowsView
from gpudash.units import format_bytes, format_date, format_duration

ALARMING = ("out of memory", "failed", "damaged")
"""Endings shown in the alarm colour."""

UNREAD, UNKNOWN = "…", "–"

RunKey = tuple[Path, int]
"""A recording and the number of one of its runs; 0 is the session itself."""


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """A run, or a session if `run` is ``None``."""

    entry: LibraryEntry
    run: RunFacts | None = None

    @property
    def kind(self) -> Literal["run", "session"]:
        """Whether the row is a run or a session."""
        if self.run is None:
            return "session"
        return "run"

    @property
    def key(self) -> RunKey:
        return self.entry.path, 0 if self.run is None else self.run.number

    @property
    def began_s(self) -> float:
        """The start time in seconds since the epoch."""
        return self.entry.began_s + (0.0 if self.run is None else self.run.began_s)


def runs_of(entry: LibraryEntry) -> tuple[RunFacts, ...]:
    """The runs of a recording that have been read so far."""
    if entry.facts is None:
        return ()
    return entry.facts.runs


def place_of(row: LibraryRow) -> Path:
    """A run's address for a comparison: ``FILE``, or ``FILE#N`` if its recording has several."""
    several = row.run is not None and len(runs_of(row.entry)) > 1
    if several and row.run is not None:
        return Path(f"{row.entry.path}#{row.run.number}")
    return row.entry.path


def name_of(row: LibraryRow) -> str:
    """The name of a run. A session's only run takes the session's name if the user gave it one."""
    if row.run is None:
        return row.entry.title
    facts = row.entry.facts
    session = ""
    if facts is not None and len(facts.runs) == 1:
        session = facts.title
    return row.run.label.title or session or run_name(row.run)


def date_of(row: LibraryRow) -> str:
    """The start time in local time, to the second."""
    return f"{datetime.fromtimestamp(row.began_s).astimezone():%Y-%m-%d %H:%M:%S}"


def ending_of(row: LibraryRow) -> str:
    """How a run ended, or the state of a session, in a word or two."""
    entry, run = row.entry, row.run
    if run is not None:
        if run.status != "running":
            return ending_text(run.status, run.spec)
        if entry.written:
            return "running now"
        return "broken off"  # in a session without a writer, it was killed
    if entry.facts is None:
        return UNREAD
    if entry.written:
        return "recording now"
    if entry.facts.duration_s is None and entry.facts.damage:
        return "damaged"
    if entry.facts.runs:
        return ""
    return "no run, only watched"


def device_of(row: LibraryRow) -> str:
    """The device that a run used."""
    if row.run is None:
        return UNKNOWN
    return shown_devices(row.run.device, row.run.spec) or UNKNOWN


def session_text(entry: LibraryEntry) -> str:
    """A session in one line: start, title, number of runs, size, and problems."""
    runs = len(runs_of(entry))
    counted = ""
    if runs:
        counted = f"{runs} run{'s' * (runs != 1)}"
    locked = ""
    if entry.facts is not None and entry.facts.locked:
        locked = "locked"
    row = LibraryRow(entry)
    damaged = entry.facts is not None and entry.facts.damage
    titled = ""
    if entry.title != entry.path.stem or damaged:
        titled = entry.title
    parts = (format_date(row.began_s), titled, counted, ending_of(row), locked, format_bytes(entry.bytes))
    return "   ·   ".join(filter(None, ("Session of " + parts[0], *parts[1:])))


def peak_sentence(row: LibraryRow) -> str:
    """The peak memory of the run, with what it is a peak of, as every other place words it."""
    if row.run is not None and row.run.own_peak_bytes is not None:
        return f"peak allocated {peak_of(row)}"
    return f"peak {peak_of(row)}"


def peak_of(row: LibraryRow) -> str:
    """The peak memory of the run itself. If unknown, the highest use of the process or the GPU, and which of them."""
    if row.run is None:
        return UNKNOWN
    return peak_text(row.run).removesuffix(" allocated") or UNKNOWN


def peak_bytes_of(run: RunFacts) -> int | None:
    """The peak of `peak_of` in bytes."""
    if run.own_peak_bytes is None:
        return run.peak_bytes
    return run.own_peak_bytes


def duration_of(row: LibraryRow) -> str:
    """The duration of a run."""
    if row.run is None or row.run.seconds is None:
        return UNKNOWN
    return format_duration(row.run.seconds)


def loss_of(row: LibraryRow) -> str:
    """The last loss of a run."""
    if row.run is None or row.run.loss is None:
        return UNKNOWN
    return value_text("", row.run.loss)


def _of_run(read: Callable[[RunFacts], Any]) -> Callable[[LibraryRow], Any]:
    """Apply ``read`` to a row's run; ``None`` for a session."""
    return lambda row: None if row.run is None else read(row.run)


@dataclass(frozen=True, slots=True)
class _RunColumn:
    """One column of the table.

    Attributes:
        column: its heading.
        label: the text of a row's cell.
        value: the sort key; ``None`` if unknown.
        least: the number of characters it may be cut to if space is short; 0 means whole or hidden.
        needed: whether it is shown even if empty in all rows.
    """

    column: Column
    label: Callable[[LibraryRow], str]
    value: Callable[[LibraryRow], Any]
    least: int = 0
    needed: bool = False


_PEAK_TIP = """Most memory that PyTorch allocated for the run
(process): on the CPU, for the whole process, including Python and PyTorch
(GPU): for the whole GPU, including what others held"""


def _name_key(row: LibraryRow) -> str:
    return name_of(row).lower()


def _kind(row: LibraryRow) -> str:
    if row.run is None:
        return UNKNOWN
    return kind_of_run(row.run)


def _tags(row: LibraryRow) -> str:
    if row.run is None:
        return ""
    return row.run.label.tags


def _note(row: LibraryRow) -> str:
    if row.run is None:
        return ""
    return " ".join(row.run.label.note.split())


COLUMNS = (
    _RunColumn(Column("run", wide=True, tip="Tick two or more to compare them"), name_of, _name_key, needed=True),
    _RunColumn(Column("began"), lambda row: format_date(row.began_s), lambda row: row.began_s, needed=True),
    _RunColumn(Column("workload"), _kind, _of_run(kind_of_run), least=8),
    _RunColumn(Column("device"), device_of, device_of, least=7),
    _RunColumn(Column("ended"), ending_of, ending_of, needed=True),
    _RunColumn(Column("peak", right=True, tip=_PEAK_TIP), peak_of, _of_run(peak_bytes_of)),
    _RunColumn(Column("duration", right=True), duration_of, _of_run(lambda run: run.seconds)),
    _RunColumn(Column("loss", right=True, tip="The last value"), loss_of, _of_run(lambda run: run.loss)),
    _RunColumn(Column("tags"), _tags, _of_run(lambda run: run.label.tags.lower() or None), least=9),
    _RunColumn(Column("note"), _note, _of_run(lambda run: run.label.note.lower() or None), least=5),
)

BEGAN, ENDED, NOTE = 1, 4, 9

_CUT = (NOTE, 2, 8, 3)
"""Columns to cut one after another if space is short, and then to hide: the note, the workload (which the name shows),
the tags, the device. Tooltips and the details pane show the full texts."""

NAME_CHARACTERS = 32
"""Minimum width of the names: that of "training width 1024 on sim:0"."""

WIDEST_NAME_PX, WIDEST_PX, ROOM_PX = 420, 230, 24
"""Pixels: maximum width of the names before a note is cut, maximum width of any other column, and padding per
column."""

ROOMY_NAME_PX = 640
"""Maximum width of the names in a wide window: beyond it the figures would be too far from their names."""

MEASURED_ROWS = 200


class RunsModel(RowsModel[LibraryRow]):
    """Sessions and their runs, sorted and filtered.

    Signals:
        ticked_changed: a run was ticked or unticked.

    Attributes:
        grouped: whether runs are grouped by session.
        ticked: the ticked runs.
    """

    ticked_changed = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__([column.column for column in COLUMNS], parent)
        self.grouped = True
        self.ticked: set[RunKey] = set()
        self.alarm, self.muted = QColor(), QColor()
        self._entries: Sequence[LibraryEntry] = ()
        self._searched: list[str] = []
        self._column, self._order = BEGAN, Qt.SortOrder.DescendingOrder

    def show_entries(self, entries: Sequence[LibraryEntry]) -> None:
        """Show the runs of these recordings."""
        self._entries = entries
        # A recording that is gone takes its ticks with it.
        there = {(entry.path, run.number) for entry in entries for run in runs_of(entry)}
        if not self.ticked <= there:
            self.ticked &= there
            self.ticked_changed.emit()
        self.arrange()

    def search(self, text: str) -> None:
        """Show rows that contain all words of ``text`` in any column, in the session's line or in the file's name."""
        self._searched = text.lower().split()
        self.arrange()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self._column, self._order = column, order
        self.arrange()

    def arrange(self) -> None:
        """Sort, filter and group the rows."""
        rows: list[LibraryRow] = []
        for entry in self._entries:
            # A session without runs gets a row itself.
            own = [LibraryRow(entry, run) for run in (runs_of(entry) or (None,))]
            rows += filter(self._found, own)
        value = COLUMNS[self._column].value
        # Unknown values come last in either order.
        known = [row for row in rows if value(row) is not None]
        known.sort(key=value, reverse=self._order is Qt.SortOrder.DescendingOrder)
        rows = [*known, *(row for row in rows if value(row) is None)]
        # Sessions are ordered by their first row, whatever column the runs are sorted by.
        if self.grouped:
            sessions: dict[Path, list[LibraryRow]] = {}
            for row in rows:
                sessions.setdefault(row.entry.path, []).append(row)
            rows = [row for group in sessions.values() for row in _under_heading(group)]
        # The same rows in the same order: the view keeps its position, selection and spans.
        if [row.key for row in rows] == [row.key for row in self.rows]:
            self.update_rows(rows)
        else:
            self.replace_rows(rows)

    def _found(self, row: LibraryRow) -> bool:
        if row.run is None:
            cells = []
        else:
            cells = [column.label(row) for column in COLUMNS]
        # As one text, so that each word may be in another column.
        text = " ".join((row.entry.path.name, date_of(row), session_text(row.entry), *cells)).lower()
        return all(word in text for word in self._searched)

    def tick(self, keys: Iterable[RunKey], on: bool) -> None:
        """Tick or untick runs; sessions are ignored."""
        runs = {key for key in keys if key[1]}
        if on:
            self.ticked = self.ticked | runs
        else:
            self.ticked = self.ticked - runs
        self.dataChanged.emit(self.index(0, 0), self.index(max(0, len(self.rows) - 1), 0))
        self.ticked_changed.emit()

    def label(self, row: LibraryRow, column: int) -> str:
        if row.run is None:
            if column == 0:
                return session_text(row.entry)
            return ""
        return COLUMNS[column].label(row)

    def tip(self, row: LibraryRow, column: int) -> str:
        damage = ""
        if row.entry.facts is not None:
            damage = row.entry.facts.damage
        return damage or f"{self.label(row, column)}\n{row.entry.path}"

    def value(self, row: LibraryRow, column: int, role: int) -> Any:
        if role == Qt.ItemDataRole.CheckStateRole and column == 0 and self._tickable(row):
            if row.key in self.ticked:
                return Qt.CheckState.Checked
            return Qt.CheckState.Unchecked
        if role == Qt.ItemDataRole.ForegroundRole:
            if row.run is None:
                if ending_of(row) in ALARMING:
                    return self.alarm
                return self.muted
            if column == ENDED and ending_of(row) in ALARMING:
                return self.alarm
            return None
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        flags = super().flags(index)
        tickable = index.column() == 0 and self._tickable(self.rows[index.row()])
        if tickable:
            return flags | Qt.ItemFlag.ItemIsUserCheckable
        return flags

    def setData(self, index: Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        if role != Qt.ItemDataRole.CheckStateRole:
            return False
        self.tick([self.rows[index.row()].key], Qt.CheckState(value) is Qt.CheckState.Checked)
        return True

    @staticmethod
    def _tickable(row: LibraryRow) -> bool:
        return row.run is not None and not row.entry.trashed


def _under_heading(group: list[LibraryRow]) -> list[LibraryRow]:
    if group[0].run is None:
        # A session without runs is its own heading.
        return group
    return [LibraryRow(group[0].entry), *group]


class RunsTable(RowsView):
    """The view. It selects whole rows, several with Ctrl or Shift; clicking a heading sorts; Space ticks."""

    def __init__(self, palette: Palette) -> None:
        super().__init__("Recorded runs")
        self.runs = RunsModel(self)
        self.setModel(self.runs)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrap(False)
        self._chosen: set[RunKey] = set()
        # Kept by key: a model reset loses the selection.
        self.selectionModel().selectionChanged.connect(self._remember)
        self.runs.modelReset.connect(self._lay_out)
        self.runs.dataChanged.connect(self._fit)
        # Before sorting is enabled, which would sort by the first column.
        self.sortByColumn(BEGAN, Qt.SortOrder.DescendingOrder)
        self.setSortingEnabled(True)
        self.set_palette(palette)
        self._lay_out()

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.runs.alarm, self.runs.muted = QColor(palette.critical), QColor(palette.muted)
        self.viewport().update()

    def _remember(self) -> None:
        self._chosen = {row.key for row in self.selected()}

    def _lay_out(self) -> None:
        """Let session rows span all columns, and restore the selection of rows that are visible again."""
        chosen = set(self._chosen)
        # Selecting changes what is remembered, and filtered-out rows must not be forgotten.
        self.select(chosen)
        self._chosen = chosen
        self.clearSpans()
        for place, row in enumerate(self.runs.rows):
            if row.run is None:
                self.setSpan(place, 0, 1, len(COLUMNS))
        self._fit()

    def _fit(self) -> None:
        """Fit the columns to their texts. If space is short, the least important ones are cut, then hidden."""
        metrics = self.fontMetrics()
        # All rows have the same height, so ten thousand need not be measured.
        self.verticalHeader().setDefaultSectionSize(metrics.height() + 9)
        # Measure the first rows only: ten thousand would freeze the window.
        rows = [row for row in self.runs.rows if row.run is not None][:MEASURED_ROWS]
        cells = [(f"{column.column.title}{ARROW_ROOM}", *map(column.label, rows)) for column in COLUMNS]
        whole = [max(map(metrics.horizontalAdvance, text)) + ROOM_PX for text in cells]
        names_px = min(WIDEST_NAME_PX, whole[0] + ROOM_PX)
        widths = [px if position == NOTE else min(WIDEST_PX, px) for position, px in enumerate(whole)]
        # Columns that are empty in all rows are hidden.
        shown = set()
        for position, column in enumerate(COLUMNS):
            if column.needed or not {"", UNKNOWN}.issuperset(map(column.label, rows)):
                shown.add(position)
        least_px = NAME_CHARACTERS * metrics.averageCharWidth() + 2 * ROOM_PX

        def missing(names_px: int) -> int:
            return names_px + sum(widths[place] for place in shown if place) - self.viewport().width()

        # Two passes in the same order: first cut columns, then hide them.
        for position in _CUT:
            least = COLUMNS[position].least * metrics.averageCharWidth() + ROOM_PX
            over = missing(names_px if position == NOTE else least_px)
            widths[position] = max(min(widths[position], least), widths[position] - max(0, over))
        for position in _CUT:
            if missing(least_px) > 0:
                shown.discard(position)
        # The names get what is left, within limits.
        widths[0] = max(least_px, min(-missing(0), max(names_px, ROOMY_NAME_PX)))
        rest = max(0, -missing(widths[0]))  # rows fill the width of the table
        # A note can use any room; without one, all columns share it evenly.
        if NOTE in shown:
            widths[NOTE] += rest
        else:
            others = sorted(shown - {0})
            for position, place in enumerate(others):
                widths[place] += rest // len(others) + (position < rest % len(others))
        for position, width in enumerate(widths):
            self.setColumnHidden(position, position not in shown)
            self.setColumnWidth(position, width)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Space:
            keys = [row.key for row in self.selected() if row.run is not None]
            # Several are ticked unless all of them already are.
            self.runs.tick(keys, not all(key in self.runs.ticked for key in keys))
            return
        super().keyPressEvent(event)

    def show_entries(self, entries: Sequence[LibraryEntry]) -> None:
        """Show the runs of these recordings; keep the selection."""
        self.runs.show_entries(entries)

    def select(self, keys: set[RunKey]) -> None:
        """Select exactly these rows."""
        selection, flags = self.selectionModel(), QItemSelectionModel.SelectionFlag
        selection.clearSelection()
        for place, row in enumerate(self.runs.rows):
            if row.key in keys:
                index = self.runs.index(place, 0)
                selection.select(index, flags.Select | flags.Rows)
                # Arrow keys continue from the current row.
                selection.setCurrentIndex(index, flags.NoUpdate)

    def selected(self) -> list[LibraryRow]:
        """The selected rows, from top to bottom."""
        places = {index.row() for index in self.selectionModel().selectedRows()}
        return [self.runs.rows[place] for place in sorted(places)]

    def selected_entries(self) -> list[LibraryEntry]:
        """The sessions of the selected rows, each once."""
        return list({row.entry.path: row.entry for row in self.selected()}.values())

    def shown(self) -> list[LibraryRow]:
        """All rows from top to bottom: runs, and headings if they are grouped."""
        return list(self.runs.rows)

    def text(self) -> str:
        """The selected runs, or all if none is selected, as tab-separated text with a header."""
        rows = [row for row in self.selected() or self.shown() if row.run is not None]
        cells = [[column.label(row) for column in COLUMNS] for row in rows]
        return tab_separated([[column.column.title for column in COLUMNS], *cells])
