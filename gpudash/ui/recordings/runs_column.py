"""The second page of the left column: the latest runs of this session and of the recordings folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QPushButton, QStackedLayout, QWidget

from gpudash.session.recordings.library import Library, LibraryEntry, LibraryWatcher
from gpudash.session.recordings.session_runs import NOWHERE, SessionRuns
from gpudash.session.source import DashboardSource
from gpudash.telemetry.comparing import MOST_RUNS
from gpudash.ui.colours import Palette
from gpudash.ui.recordings.library_table import LibraryRow, place_of
from gpudash.ui.recordings.runs_list import RunsList, rows_of, unreadable
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_count

EMPTY = "Every run appears here, with its memory and how it ended. F5 starts one."
READING = "Reading the recordings…"
COMPARE_TIP = "Overlay the ticked runs, the oldest as A"
TICK_TIP = "Tick two or more runs to overlay them"
TOO_MANY = f"Only the {MOST_RUNS} oldest ticked runs are overlaid; tick fewer to compare"

POLL_S = 0.5
"""How often the session's own runs are polled."""


class RunsColumn(QFrame):
    """The runs, newest first; ticked ones can be compared.

    Args:
        session: its own runs are listed too.
        watch: starts to watch the recordings folder.
        clock: monotonic seconds.

    Signals:
        opened: a recording, and the number of the run to show.
        own_chosen: the number of the session's run to show.
        compare: runs to compare, each ``FILE`` or ``FILE#N``.
        ticked_changed: runs to overlay on the live plots, in the same form.
        library_wanted: the library should be shown, with names, tags and notes.
        counted: the number of runs.
        stop_wanted: the current run should stop.
        said: a passing message.
    """

    opened = Signal(object, int)
    own_chosen = Signal(int)
    compare = Signal(list)
    ticked_changed = Signal(list)
    library_wanted = Signal()
    counted = Signal(int)
    stop_wanted = Signal()
    said = Signal(str)

    def __init__(
        self,
        session: DashboardSource,
        palette: Palette,
        watch: Callable[[], LibraryWatcher] = LibraryWatcher,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__()
        self.setProperty("role", "panel")
        self._session = session
        self._own = SessionRuns(session)
        self._watch = watch
        self._watcher: LibraryWatcher | None = None
        self._clock = clock
        self._polled_at = float("-inf")
        self._shown: tuple[LibraryEntry, ...] = ()
        self._library: Library | None = None
        self._recorded: list[LibraryRow] = []
        self._laid: list[Path] = []
        self.list = RunsList(palette)
        self.empty = PlainLabel(EMPTY, role="muted", wraps=True)
        self.problem = PlainLabel(role="muted", wraps=True)
        self.compare_button = worded_button("Compare", TICK_TIP, self._compare)
        self.all_button = worded_button("All recordings…", "Name, tag, lock and delete recorded runs", self._all)
        self.stop_button = worded_button("", "", self.stop_wanted.emit, role="danger", tab_only=True)
        self._build()
        self.list.activated.connect(lambda index: self.open_row(self.list.runs.rows[index.row()]))
        self.list.runs.ticked_changed.connect(self._show_ticked)
        self._show_ticked()

    def _build(self) -> None:
        pages = QWidget()
        self._pages = QStackedLayout(pages)
        nothing = QWidget()
        in_column(self.empty, 1, parent=nothing, margins=(14, 14, 14, 14))
        self._pages.addWidget(self.list)
        self._pages.addWidget(nothing)
        buttons = in_row(self.compare_button, 1, self.all_button, margins=(10, 0, 10, 0), spacing=8)
        self.problem.setContentsMargins(10, 0, 10, 0)
        self.problem.hide()
        stop = in_row((self.stop_button, 1), margins=(10, 0, 10, 0))
        self.show_stop(None)
        in_column((pages, 1), self.problem, buttons, stop, parent=self, margins=(1, 4, 1, 10), spacing=8)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._polled_at = float("-inf")

    def begin(self) -> None:
        """Watch the recordings folder from now on, every second while the list is visible."""
        if self._watcher is None:
            self._watcher = self._watch()
            self._watcher.watch(self.isVisible())

    def show_stop(self, form_button: QPushButton | None) -> None:
        """Offer to stop the current run, with the text of the form's button; ``None`` if no run is active."""
        self.stop_button.setVisible(form_button is not None)
        if form_button is None:
            return
        self.stop_button.setEnabled(form_button.isEnabled())
        if self.stop_button.text() == form_button.text():
            return
        self.stop_button.setText(form_button.text())
        self.stop_button.setAccessibleName(form_button.accessibleName())
        self.stop_button.setToolTip(form_button.toolTip())
        self.stop_button.setMinimumHeight(form_button.minimumHeight())

    def refresh(self) -> None:
        """Show what is new; called by the window's timer."""
        if self._clock() - self._polled_at < POLL_S:
            return
        self._polled_at = self._clock()
        if self.isVisible():
            self.begin()
        if self._watcher is not None:
            self._watcher.watch(self.isVisible())
        own = self._own.entry()
        if self._watcher is not None:
            library = self._watcher.library
        else:
            library = Library()
        if library is not self._library:
            self._library = library
            self._take(library, own.path)
        rows = rows_of([own])
        self.counted.emit(len(rows) + len(self._recorded))
        if not self.isVisible():
            return
        # another session may have started later; sorting an almost sorted list is fast
        rows = sorted([*rows, *self._recorded], key=lambda row: row.began_s, reverse=True)
        self.list.show_rows(rows)
        self._pages.setCurrentIndex(0 if rows else 1)
        reading = self._watcher is not None and library.reading
        self.empty.setText(READING if reading else EMPTY)
        unread = sum(1 for entry in library.entries if entry.facts is None)
        said = library.problem
        if not said and rows and reading and unread:
            said = f"Reading {format_count(unread)} more…"
        self.problem.setText(said)
        self.problem.setVisible(bool(said))

    def _take(self, library: Library, own: Path) -> None:
        """Keep the rows of the recordings; this session's runs come from the session itself."""
        entries = tuple(entry for entry in library.entries if entry.path != own)
        if entries != self._shown:
            self._shown = entries
            self._recorded = rows_of(entries)

    def open_row(self, row: LibraryRow) -> None:
        """Show a run: in the plots if it belongs to this session, otherwise in a tab."""
        if row.run is None:
            self.said.emit(unreadable(row.entry))
        elif row.entry.path == (self._session.recording_path or NOWHERE):
            self.own_chosen.emit(row.run.number)
        else:
            self.opened.emit(row.entry.path, row.run.number)

    def ticked(self) -> list[LibraryRow]:
        """The ticked runs, the oldest first."""
        rows = [row for row in self.list.runs.rows if row.key in self.list.runs.ticked]
        return sorted(rows, key=lambda row: row.began_s)

    def _compare(self) -> None:
        rows = self.ticked()
        if 2 <= len(rows) <= MOST_RUNS:
            self.compare.emit(list(map(place_of, rows)))

    def _all(self) -> None:
        self.library_wanted.emit()

    def _show_ticked(self) -> None:
        count = len(self.list.runs.ticked)
        self.compare_button.setText(f"Compare {count} runs" if count > 1 else "Compare")
        self.compare_button.setEnabled(2 <= count <= MOST_RUNS)
        tip = COMPARE_TIP
        if count < 2:
            tip = TICK_TIP
        elif count > MOST_RUNS:
            tip = TOO_MANY
        self.compare_button.setToolTip(plain_tip(tip))
        laid = []
        if count > 1:
            laid = list(map(place_of, self.ticked()[:MOST_RUNS]))
        if laid != self._laid:
            self._laid = laid
            self.ticked_changed.emit(laid)

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.list.set_palette(palette)

    def close_watcher(self) -> bool:
        """Stop watching; false if the thread did not end in time."""
        return self._watcher is None or self._watcher.close()
