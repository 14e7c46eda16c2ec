"""The table of recorded runs: sorted by any column, filtered by what is typed, ticked to be compared, under a heading
for each session; and what is said of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from PySide6.QtCore import QEvent, QItemSelectionModel, QObject, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from gpudash.devices.names import shown_devices
from gpudash.session.recordings.library import LibraryEntry
from gpudash.session.recordings.run_names import kind_of_run, run_name
from gpudash.system.foreign_text import tab_separated
from gpudash.telemetry.comparing.comparison import value_text
from gpudash.telemetry.recording.facts import RunFacts
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.tables import ARROW_ROOM, Column, Index, RowsModel
from gpudash.units import format_bytes, format_date, format_duration

ALARMING = ("out of memory", "failed", "damaged")
"""Endings that are shown in the colour of trouble."""

UNREAD, UNKNOWN = "…", "–"

_ENDINGS = {"out_of_memory": "out of memory", "cancelled": "stopped", "running": "broken off"}
"""A run's status, where it is not said as it is kept. "running" without a session that writes it was killed."""

RunKey = tuple[Path, int]
"""A recording and the number of a run in it; 0 is the session's own row."""


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """A run, or with `run` ``None`` the session that it belongs to."""

    entry: LibraryEntry
    run: RunFacts | None = None

    @property
    def kind(self) -> Literal["run", "session"]:
        """What it is a row of."""
        if self.run is None:
            return "session"
        return "run"

    @property
    def key(self) -> RunKey:
        return self.entry.path, 0 if self.run is None else self.run.number

    @property
    def began_s(self) -> float:
        """When it began, seconds since the epoch."""
        return self.entry.began_s + (0.0 if self.run is None else self.run.began_s)


def runs_of(entry: LibraryEntry) -> tuple[RunFacts, ...]:
    """The runs of a recording, as far as they have been read."""
    if entry.facts is None:
        return ()
    return entry.facts.runs


def place_of(row: LibraryRow) -> Path:
    """A run as a comparison is given it: ``FILE``, or ``FILE#N`` where its recording has several."""
    several = row.run is not None and len(runs_of(row.entry)) > 1
    if several and row.run is not None:
        return Path(f"{row.entry.path}#{row.run.number}")
    return row.entry.path


def name_of(row: LibraryRow) -> str:
    """What a run is called; that of a session's only run may be the session's own, given by the user."""
    if row.run is None:
        return row.entry.title
    facts = row.entry.facts
    session = ""
    if facts is not None and len(facts.runs) == 1:
        session = facts.title
    return row.run.label.title or session or run_name(row.run)


def date_of(row: LibraryRow) -> str:
    """When it began, in local time, to the second."""
    return f"{datetime.fromtimestamp(row.began_s).astimezone():%Y-%m-%d %H:%M:%S}"


def ending_of(row: LibraryRow) -> str:
    """How a run ended, or what is the matter with a session, in a word or two."""
    entry, run = row.entry, row.run
    if run is not None:
        if run.status == "running" and entry.written:
            return "running now"
        return _ENDINGS.get(run.status, run.status)
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
    """Where a run took place."""
    if row.run is None:
        return UNKNOWN
    return shown_devices(row.run.device, row.run.spec) or UNKNOWN


def session_text(entry: LibraryEntry) -> str:
    """A session in a line: when, what the user calls it, how many runs it has, its size, what is the matter."""
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


def peak_of(row: LibraryRow) -> str:
    """What a run itself held at most; where nothing tells that, the highest use beside it, and of what that is."""
    found = None
    if row.run is not None:
        found = peak_bytes_of(row.run)
    if row.run is None or found is None:
        return UNKNOWN
    if row.run.own_peak_bytes is not None:
        whole = ""
    elif row.run.device == "cpu":
        whole = " (process)"
    else:
        whole = " (GPU)"
    return f"{format_bytes(found)}{whole}"


def peak_bytes_of(run: RunFacts) -> int | None:
    """The bytes of `peak_of`."""
    if run.own_peak_bytes is None:
        return run.peak_bytes
    return run.own_peak_bytes


def duration_of(row: LibraryRow) -> str:
    """How long a run took."""
    if row.run is None or row.run.seconds is None:
        return UNKNOWN
    return format_duration(row.run.seconds)


def loss_of(row: LibraryRow) -> str:
    """The last loss of a run."""
    if row.run is None or row.run.loss is None:
        return UNKNOWN
    return value_text("", row.run.loss)


def _of_run(read: Callable[[RunFacts], Any]) -> Callable[[LibraryRow], Any]:
    """What ``read`` finds in a row's run; ``None`` in a session's own row."""
    return lambda row: None if row.run is None else read(row.run)


@dataclass(frozen=True, slots=True)
class _RunColumn:
    """A column.

    Attributes:
        column: its heading.
        label: what it says of a row.
        value: what it is sorted by; ``None`` where that is unknown.
        least: characters to which it may be cut where there is no room; 0 where it is whole or not there.
        needed: whether it is there though it says nothing of any run.
    """

    column: Column
    label: Callable[[LibraryRow], str]
    value: Callable[[LibraryRow], Any]
    least: int = 0
    needed: bool = False


_PEAK_TIP = """Most that PyTorch had allocated for the run
(process): on the CPU, of the whole process, with Python and PyTorch in it
(GPU): of the whole GPU, with what others held of it"""


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
    _RunColumn(Column("loss", right=True, tip="The last one"), loss_of, _of_run(lambda run: run.loss)),
    _RunColumn(Column("tags"), _tags, _of_run(lambda run: run.label.tags.lower() or None), least=9),
    _RunColumn(Column("note"), _note, _of_run(lambda run: run.label.note.lower() or None), least=5),
)

BEGAN, ENDED, NOTE = 1, 4, 9

_CUT = (NOTE, 2, 8, 3)
"""Columns that are cut where there is no room, one after another, and then left out: the note, the workload (which the
name tells), the tags, the device. A tooltip has the words of each, and so has the pane at the right."""

NAME_CHARACTERS = 32
"""Least width of the names, which is that of "training width 1024 on sim:0"."""

WIDEST_NAME_PX, WIDEST_PX, ROOM_PX = 420, 230, 24
"""Pixels: most that the names take before a note is cut, most that any other column takes, and what each takes beside
its words."""

ROOMY_NAME_PX = 640
"""Pixels of the names in a wide window: with more of them the figures would be far from the name they belong to."""

MEASURED_ROWS = 200


class RunsModel(RowsModel[LibraryRow]):
    """Sessions and their runs, as they are arranged.

    Signals:
        ticked_changed: a run was ticked, or is no longer.

    Attributes:
        grouped: whether runs stand under their sessions.
        ticked: the runs that are ticked.
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
        """Show the runs of these."""
        self._entries = entries
        # A recording that went takes its ticks with it.
        there = {(entry.path, run.number) for entry in entries for run in runs_of(entry)}
        if not self.ticked <= there:
            self.ticked &= there
            self.ticked_changed.emit()
        self.arrange()

    def search(self, text: str) -> None:
        """Show what holds all words of ``text``, in any column, in the session's line or in the file's name."""
        self._searched = text.lower().split()
        self.arrange()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self._column, self._order = column, order
        self.arrange()

    def arrange(self) -> None:
        """Put the rows in order."""
        rows: list[LibraryRow] = []
        for entry in self._entries:
            # A session without runs has a row of its own.
            own = [LibraryRow(entry, run) for run in (runs_of(entry) or (None,))]
            rows += filter(self._found, own)
        value = COLUMNS[self._column].value
        # What is unknown stands last in either order.
        known = [row for row in rows if value(row) is not None]
        known.sort(key=value, reverse=self._order is Qt.SortOrder.DescendingOrder)
        rows = [*known, *(row for row in rows if value(row) is None)]
        # In the order of each session's first row, by whatever column the runs are sorted.
        if self.grouped:
            sessions: dict[Path, list[LibraryRow]] = {}
            for row in rows:
                sessions.setdefault(row.entry.path, []).append(row)
            rows = [row for group in sessions.values() for row in _under_heading(group)]
        # The same rows in the same order: the view keeps its place, selection and spans.
        if [row.key for row in rows] == [row.key for row in self.rows]:
            self.update_rows(rows)
        else:
            self.replace_rows(rows)

    def _found(self, row: LibraryRow) -> bool:
        if row.run is None:
            cells = []
        else:
            cells = [column.label(row) for column in COLUMNS]
        # In one text, so that each word may stand in another column.
        text = " ".join((row.entry.path.name, date_of(row), session_text(row.entry), *cells)).lower()
        return all(word in text for word in self._searched)

    def tick(self, keys: Iterable[RunKey], on: bool) -> None:
        """Tick runs, or take their ticks away; a session has none."""
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
        # A row without a run is its own heading.
        return group
    return [LibraryRow(group[0].entry), *group]


class RunsTable(QTableView):
    """The view: whole rows are selected, several with Ctrl or Shift; a click on a heading sorts; Space ticks."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.runs = RunsModel(self)
        self.setModel(self.runs)
        self.setAccessibleName("Recorded runs")
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        self._chosen: set[RunKey] = set()
        # Kept by key: a reset of the model loses the selection.
        self.selectionModel().selectionChanged.connect(self._remember)
        self.runs.modelReset.connect(self._lay_out)
        self.runs.dataChanged.connect(self._fit)
        # Before sorting is enabled, which would sort by the first column.
        self.sortByColumn(BEGAN, Qt.SortOrder.DescendingOrder)
        self.setSortingEnabled(True)
        self.set_palette(palette)
        self._lay_out()

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self.runs.alarm, self.runs.muted = QColor(palette.critical), QColor(palette.muted)
        self.viewport().update()

    def _remember(self) -> None:
        self._chosen = {row.key for row in self.selected()}

    def _lay_out(self) -> None:
        """A session's line goes across all columns; what was selected is again, once it is to be seen."""
        chosen = set(self._chosen)
        # Selecting changes what is remembered, and rows that are filtered out must not be forgotten.
        self.select(chosen)
        self._chosen = chosen
        self.clearSpans()
        for place, row in enumerate(self.runs.rows):
            if row.run is None:
                self.setSpan(place, 0, 1, len(COLUMNS))
        self._fit()

    def _fit(self) -> None:
        """Columns as wide as their words; where there is no room those that matter least are cut, and then left out."""
        metrics = self.fontMetrics()
        # All rows have one height, so that ten thousand need not be measured.
        self.verticalHeader().setDefaultSectionSize(metrics.height() + 9)
        # The first rows stand for all; measuring each of ten thousand would hold up the window.
        rows = [row for row in self.runs.rows if row.run is not None][:MEASURED_ROWS]
        cells = [(f"{column.column.title}{ARROW_ROOM}", *map(column.label, rows)) for column in COLUMNS]
        whole = [max(map(metrics.horizontalAdvance, text)) + ROOM_PX for text in cells]
        names_px = min(WIDEST_NAME_PX, whole[0] + ROOM_PX)
        widths = [px if position == NOTE else min(WIDEST_PX, px) for position, px in enumerate(whole)]
        # A column that says nothing of any run is not there.
        shown = set()
        for position, column in enumerate(COLUMNS):
            if column.needed or not {"", UNKNOWN}.issuperset(map(column.label, rows)):
                shown.add(position)
        least_px = NAME_CHARACTERS * metrics.averageCharWidth() + 2 * ROOM_PX

        def missing(names_px: int) -> int:
            return names_px + sum(widths[place] for place in shown if place) - self.viewport().width()

        # Two rounds: first everything is cut that may be, then it is left out, in the same order.
        for position in _CUT:
            least = COLUMNS[position].least * metrics.averageCharWidth() + ROOM_PX
            over = missing(names_px if position == NOTE else least_px)
            widths[position] = max(min(widths[position], least), widths[position] - max(0, over))
        for position in _CUT:
            if missing(least_px) > 0:
                shown.discard(position)
        # The names take what is left, within bounds.
        widths[0] = max(least_px, min(-missing(0), max(names_px, ROOMY_NAME_PX)))
        rest = max(0, -missing(widths[0]))  # a row ends where the table does
        # A note has use for any room; otherwise all columns share it evenly.
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
            # Several at once are ticked where one of them is not.
            self.runs.tick(keys, not all(key in self.runs.ticked for key in keys))
            return
        super().keyPressEvent(event)

    def show_entries(self, entries: Sequence[LibraryEntry]) -> None:
        """Show the runs of these; what was selected stays so."""
        self.runs.show_entries(entries)

    def select(self, keys: set[RunKey]) -> None:
        """Select these rows and no others."""
        selection, flags = self.selectionModel(), QItemSelectionModel.SelectionFlag
        selection.clearSelection()
        for place, row in enumerate(self.runs.rows):
            if row.key in keys:
                index = self.runs.index(place, 0)
                selection.select(index, flags.Select | flags.Rows)
                # The current row is where the arrow keys go on.
                selection.setCurrentIndex(index, flags.NoUpdate)

    def selected(self) -> list[LibraryRow]:
        """The selected rows, from the top down."""
        places = {index.row() for index in self.selectionModel().selectedRows()}
        return [self.runs.rows[place] for place in sorted(places)]

    def selected_entries(self) -> list[LibraryEntry]:
        """The sessions that something is selected of, each once."""
        return list({row.entry.path: row.entry for row in self.selected()}.values())

    def shown(self) -> list[LibraryRow]:
        """Every row, from the top down: runs, and where they are grouped their sessions."""
        return list(self.runs.rows)

    def text(self) -> str:
        """The selected runs, or all when none is, as tab-separated text under a header."""
        rows = [row for row in self.selected() or self.shown() if row.run is not None]
        cells = [[column.label(row) for column in COLUMNS] for row in rows]
        return tab_separated([[column.column.title for column in COLUMNS], *cells])
