"""The recorded runs in a tab: their table, details of the selected one, and a line with the disk space that recordings
use and their limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication, QHideEvent, QKeySequence, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QMessageBox, QProgressBar, QPushButton, QStackedWidget, QWidget

from gpudash.session.recordings.library import Library, LibraryEntry, LibraryWatcher
from gpudash.system.settings import Settings
from gpudash.telemetry.comparing import MOST_RUNS
from gpudash.telemetry.recording.facts import RunWord
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.recording.retention import KEPT_S
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.document import Document
from gpudash.ui.recordings.library_details import Details
from gpudash.ui.recordings.library_table import LibraryRow, RunsTable, name_of, place_of, runs_of
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.labels import search_field, title_label, worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.notice import Notice
from gpudash.ui.widgets.plain_text import PlainLabel, message_box, plain_tip
from gpudash.ui.widgets.undo import Undoing
from gpudash.units import format_bytes

TITLE = "Recordings"
HEADING, TRASH_HEADING = "RECORDED RUNS", "DELETED RUNS"
TRASH_TIP = "Show what was deleted in the last 30 days, to restore it"

EMPTY = "Recorded runs appear here. Start a run (F5) to record one."
EMPTY_TRASH = "The trash is empty. Deleted recordings stay here for 30 days and can be restored."
READING = "Reading the recordings…"
NONE_FOUND = "No run matches the search."
COMPARE_TIP = "Overlay the ticked runs"
TOO_MANY = f"At most {MOST_RUNS} runs can be overlaid; tick fewer"

TICK = "Tick the runs to compare with “{name}”, then Compare."
NARROW_WINDOW_PX = 1500
"""Window width below which the details pane is narrow."""

KINDS = "Recordings (*.gpudash);;All files (*)"


class LibraryDocument(Document):
    """The recorded runs: open, compare, name, tag and annotate runs; lock, delete and restore their sessions.

    Args:
        library_watcher: watches the folder; closed with the document.
        undoing: the window's undo stack.
        settings: returns the current settings, for the limits.
        open_recording: opens a recording, optionally at one of its runs, counted from 1.
        compare: compares runs, given as ``FILE`` or ``FILE#N``.
        is_open: whether a recording is open in the window.
        start: starts a run; offered while there is no recording.
        palette: the colours in use.
    """

    title = TITLE
    pictured = "the list of runs"

    def __init__(
        self,
        library_watcher: LibraryWatcher,
        undoing: Undoing,
        palette: Palette,
        *,
        settings: Callable[[], Settings],
        open_recording: Callable[[Path, int | None], object],
        compare: Callable[[list[Path]], object],
        is_open: Callable[[Path], bool],
        start: Callable[[], object],
    ) -> None:
        super().__init__()
        self._library_watcher = library_watcher
        self._undoing = undoing
        self._settings, self._open, self._compare, self._is_open = settings, open_recording, compare, is_open
        # The library on display: the watcher makes a new object whenever anything changes.
        self._shown: Library | None = None
        self._offer = ""
        self.notice = Notice()
        self.search = search_field("Search name, date, workload, device, tags, notes…", "Search the runs")
        # Runs to tick once their recording has been read.
        self._to_tick: list[Path] = []
        self.table = RunsTable(palette)
        self.details = Details()
        self.disk = DiskLine()
        self._empty = PlainLabel(role="muted", wraps=True)
        self.start_button = worded_button("Start a run   F5", "Run what is in the workload panel, and record it", start)
        self._heading = title_label(HEADING)
        self._build()
        self.table.selectionModel().selectionChanged.connect(self._selection_changed)
        self.search.textChanged.connect(self._search)
        self.table.runs.ticked_changed.connect(self._selection_changed)
        self.details.said.connect(self._save_label)
        self.table.activated.connect(lambda _index: self.open_selected())
        undoing.changed.connect(self._withdraw_offer)
        self.setFocusProxy(self.search)
        self.setAccessibleName("Session library")
        self._show(force=True)

    def _build(self) -> None:
        self.search.setMaximumWidth(360)
        self.search.returnPressed.connect(self._into_table)
        self.group_button = QPushButton("By session")
        self.group_button.setCheckable(True)
        self.group_button.setProperty("role", "chip")
        self.group_button.setChecked(True)
        self.group_button.setToolTip("List runs under the sessions they belong to, or all runs in one list")
        self.group_button.toggled.connect(self._group)
        self.add_button = worded_button(
            "Add Files…", "List recordings from other folders, and tick them", self._add_files
        )
        self.open_button = worded_button(
            "Open",
            "Open the selected runs, each in its recording as a tab (Enter)",
            self.open_selected,
            role="primary",
        )
        self.compare_button = worded_button("Compare", COMPARE_TIP, self.compare)
        self.lock_button = worded_button(
            "Lock", "Keep the sessions of the selected runs from being deleted", self.lock_selected
        )
        self.delete_button = worded_button(
            "Delete",
            "Move the sessions of the selected runs to the trash, where they are kept for 30 days (Del)",
            self.delete,
        )
        self.restore_button = worded_button("Restore", "Restore the selected recordings", self.restore_selected)
        self.empty_button = worded_button(
            "Empty Trash…", "Permanently delete everything in the trash", self.ask_to_empty
        )
        self.trash_button = QPushButton("Show Trash")
        self.trash_button.setCheckable(True)
        self.trash_button.toggled.connect(lambda _shown: self._show(force=True))
        row = in_row(
            self._heading,
            (self.search, 4),
            1,
            self.group_button,
            self.add_button,
            self.open_button,
            self.compare_button,
            self.lock_button,
            self.delete_button,
            self.restore_button,
            self.empty_button,
            self.trash_button,
            spacing=8,
        )
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._layers = QStackedWidget()
        nothing = QWidget()
        in_column(1, self._empty, in_row(1, self.start_button, 1), 1, parent=nothing)
        self._layers.addWidget(nothing)
        self._layers.addWidget(self.table)
        middle = in_row((self._layers, 1), self.details, spacing=10)
        in_column(row, self.notice, (middle, 1), self.disk, parent=self, margins=(12, 8, 12, 8), spacing=8)
        self._build_menu()

    def _build_menu(self) -> None:
        """Create the table's context menu."""
        for text, tip, run, key in (
            ("Open", "Open the selected runs, each in its recording as a tab", self.open_selected, ""),
            ("Delete", "Move the sessions of the selected runs to the trash", self.delete_or_nothing, "Del"),
            ("Copy values", "Copy the selected rows, or all of them, as tab-separated text", self.copy_values, ""),
        ):
            action = QAction(text, self.table)
            action.setToolTip(plain_tip(tip))
            action.setShortcut(QKeySequence(key))
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            action.triggered.connect(lambda _checked=False, run=run: run())
            self.table.addAction(action)
        self.table.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)

    @property
    def in_trash(self) -> bool:
        """Whether the table shows the trash."""
        return self.trash_button.isChecked()

    @property
    def _entries(self) -> Sequence[LibraryEntry]:
        """The recordings that the table shows unless they are searched."""
        library = self._library_watcher.library
        return library.trash if self.in_trash else library.entries

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.details.set_narrow(self.width() < NARROW_WINDOW_PX)

    def showEvent(self, event: QShowEvent) -> None:
        # The folder is not scanned while the tab is hidden.
        self._library_watcher.watch(True)

    def hideEvent(self, event: QHideEvent) -> None:
        self._library_watcher.watch(False)

    def refresh(self) -> None:
        for answer in self._library_watcher.answers():
            self.notice.report(answer)
        self._show()

    def _show(self, *, force: bool = False) -> None:
        library = self._library_watcher.library
        # Called in every frame: only a new object means a change.
        if library is self._shown and not force:
            return
        self._shown = library
        entries = self._entries
        self.table.show_entries(entries)
        # After the rows exist, before anything that depends on ticks is shown.
        self._tick_newest()
        self.disk.show_library(library, self._settings())
        if library.problem:
            self.notice.report(library.problem)
        self._selection_changed()
        self._show_text(library, bool(entries))

    def _show_text(self, library: Library, there: bool) -> None:
        found = bool(self.table.shown())
        # The text takes the table's place; the search field stays.
        self._layers.setCurrentIndex(1 if found else 0)
        if there:
            text = NONE_FOUND
        elif library.reading:
            text = READING
        elif self.in_trash:
            text = EMPTY_TRASH
        else:
            text = EMPTY
        self._empty.setText(text)
        self.start_button.setVisible(self._empty.text() == EMPTY)

    def _search(self, text: str) -> None:
        self.table.runs.search(text)
        self._selection_changed()
        self._show_text(self._library_watcher.library, bool(self._entries))

    def _group(self, grouped: bool) -> None:
        self.table.runs.grouped = grouped
        self.table.runs.arrange()

    def _into_table(self) -> None:
        """Enter in the search field: go to the first run found."""
        shown = self.table.shown()
        # A heading is not a run; use it only if nothing else was found.
        first = next((row for row in shown if row.run is not None), shown[0] if shown else None)
        if first is not None:
            self.table.setFocus()
            self.table.select({first.key})

    def _selection_changed(self) -> None:
        chosen, own = self.table.selected_entries(), not self.in_trash
        self.details.show_rows(self.table.selected(), in_trash=self.in_trash)
        if own:
            heading, button_text, tip = HEADING, "Show Trash", TRASH_TIP
        else:
            heading, button_text, tip = TRASH_HEADING, "Show Recordings", "Show the recordings that were not deleted"
        self._heading.setText(heading)
        self.trash_button.setText(button_text)
        self.trash_button.setToolTip(plain_tip(tip))
        locked = bool(chosen) and all(entry.facts is not None and entry.facts.locked for entry in chosen)
        self.lock_button.setText("Unlock" if locked else "Lock")
        for button, wanted in (
            (self.open_button, own),
            (self.lock_button, own),
            (self.delete_button, own),
            (self.restore_button, not own),
        ):
            button.setVisible(wanted)
            button.setEnabled(bool(chosen))
        count = len(self._to_compare())
        self.compare_button.setVisible(own)
        self.compare_button.setEnabled(2 <= count <= MOST_RUNS)
        self.compare_button.setText(f"Compare {count} runs" if count > 1 else "Compare")
        self.compare_button.setToolTip(COMPARE_TIP if count <= MOST_RUNS else TOO_MANY)
        self.empty_button.setVisible(not own)
        self.empty_button.setEnabled(bool(self._library_watcher.library.trash))

    def open_selected(self) -> None:
        """Open the selected recordings, each at its first selected run.

        Recordings in the trash must be restored first, as they may be deleted soon.
        """
        chosen = self.table.selected_entries()
        if self.in_trash and chosen:
            if len(chosen) == 1:
                who = f"“{chosen[0].title}” is"
            else:
                who = f"{len(chosen)} recordings are"
            self.notice.report(f"{who} in the trash; restore first, then open.", "note")
            return
        # Reversed, so that the first of several selected runs of a recording stays in the dict.
        shown = {row.entry.path: row.run.number for row in reversed(self.table.selected()) if row.run is not None}
        for entry in chosen:
            self._open(entry.path, shown.get(entry.path))

    def compare(self) -> None:
        """Compare the ticked runs, the oldest as A; with fewer than two ticks, the selected runs."""
        rows = self._to_compare()
        if 2 <= len(rows) <= MOST_RUNS:
            self._compare(list(map(place_of, rows)))

    def _to_compare(self) -> list[LibraryRow]:
        ticked = self.table.runs.ticked
        rows = []
        for entry in () if self.in_trash else self._entries:
            rows += [LibraryRow(entry, run) for run in runs_of(entry) if (entry.path, run.number) in ticked]
        if len(rows) < 2:
            # Fewer than two ticks do not count: use the selection.
            rows = [row for row in self.table.selected() if row.run is not None and not row.entry.trashed]
        return sorted(rows, key=lambda row: row.began_s)

    def offer_to_compare(self, paths: Sequence[Path]) -> None:
        """Tick the newest run of each recording, from any folder, and explain how to compare them."""
        # Runs in the trash cannot be ticked.
        if self.in_trash:
            self.trash_button.click()
        self.search.clear()
        for path in paths:
            self._library_watcher.include(path)
        self._to_tick = list(paths)
        self._tick_newest()
        self.table.setFocus()

    def _add_files(self) -> None:
        """Choose recordings from elsewhere, list and tick them."""
        chosen = FileDialog.ask_to_open_several(self, "Add recordings", str(Path.home()), KINDS)
        self.offer_to_compare(list(map(Path, chosen)))

    def _tick_newest(self) -> None:
        """Tick the pending runs whose recording has been read."""
        for path in list(self._to_tick):
            rows = [row for row in self.table.shown() if row.run is not None and row.entry.path == path]
            if rows:
                newest = max(rows, key=lambda row: row.began_s)
                self._to_tick.remove(path)
                # Ticked, selected and scrolled into view, since the list may be long.
                self.table.runs.tick([newest.key], True)
                self.table.select({newest.key})
                self.table.scrollTo(self.table.currentIndex())
                self.notice.report(TICK.format(name=name_of(newest)), "note")

    def lock_selected(self) -> None:
        """Lock the selected recordings, or unlock them if all are locked."""
        chosen = self.table.selected_entries()
        locked = not all(entry.facts is not None and entry.facts.locked for entry in chosen)
        for entry in chosen:
            self._library_watcher.lock(entry.path, locked)

    def _save_label(self, row: LibraryRow, what: RunWord, text: str) -> None:
        """Name, tag or annotate a run; a session can only be named."""
        path, facts = row.entry.path, row.entry.facts
        if row.run is None:
            # Read the previous value now: undo must restore this one, whatever is written meanwhile.
            before, save = facts.title if facts is not None else "", partial(self._library_watcher.rename, path)
        else:
            before, save = getattr(row.run.label, what), partial(self._library_watcher.say, path, row.run.number, what)
        save(text)
        done = {"title": "Rename", "tags": "Change Tags of", "note": "Change Note of"}[what]
        self._undoing.push(f"{done} {name_of(row)}", partial(save, before), partial(save, text))

    def delete_or_nothing(self) -> None:
        """Del: move to the trash; does nothing for recordings already there."""
        if not self.in_trash:
            self.delete()

    def delete(self) -> None:
        """Move the selected recordings to the trash; a notice offers to undo it."""
        moved, problems = self._to_trash(self.table.selected_entries())
        if moved:
            moves = _Moves(self._move_to_trash, self._library_watcher.restore, moved)
            text = _named([entry for entry, _place in moved])
            self._undoing.push(f"Delete {text}", moves.back, moves.forward)
            if len(moved) > 1:
                who = f"{len(moved)} recordings"
            else:
                who = f"“{text}”"
            said = f"{who} moved to the trash."
            # Remembered to recognise the notice: the offer is withdrawn once Undo means another step.
            self._offer = " ".join([said, *problems])
            self.notice.report(self._offer, "note", button="Undo", run=self._undoing.undo)
            self.table.setFocus()
        elif problems:
            self.notice.report(" ".join(problems))
        self.refresh()

    def _withdraw_offer(self) -> None:
        """Close the notice after another step was made or undone: Undo would no longer match its text."""
        # Only this offer: any other notice stays.
        if self.notice.text == self._offer:
            self.notice.dismiss()

    def _to_trash(self, entries: Iterable[LibraryEntry]) -> tuple[list[tuple[LibraryEntry, Path]], list[str]]:
        moved, problems = [], []
        for entry in entries:
            try:
                moved.append((entry, self._move_to_trash(entry.path)))
            except RecordingError as error:
                problems.append(str(error))
        return moved, problems

    def _move_to_trash(self, path: Path) -> Path:
        """Move a recording to the trash; returns its new path.

        Raises:
            RecordingError: it is in use or cannot be moved; the message is one sentence.
        """
        # Checked for each move, including redo: a tab may have been opened since.
        if self._is_open(path):
            raise RecordingError(f"{path.stem} is open in a tab; close it first.")
        return self._library_watcher.delete(path)

    def restore_selected(self) -> None:
        """Restore the selected recordings from the trash."""
        restored, problems = [], []
        for entry in self.table.selected_entries():
            try:
                restored.append((entry, self._library_watcher.restore(entry.path)))
            except RecordingError as error:
                problems.append(str(error))
        if restored:
            moves = _Moves(
                self._move_to_trash, self._library_watcher.restore, [(entry, entry.path) for entry, _ in restored]
            )
            # Restoring may have added a number if the name was taken; from now on these are the original paths.
            moves.places = [place for _entry, place in restored]
            text = _named([entry for entry, _place in restored])
            self._undoing.push(f"Restore {text}", moves.forward, moves.back)
            self.said.emit(f"Restored {text}." if len(restored) == 1 else f"Restored {len(restored)} recordings.")
        if problems:
            self.notice.report(" ".join(problems))
        self.refresh()

    def ask_to_empty(self) -> None:
        """Confirm, as this cannot be undone, then delete everything in the trash."""
        count = len(self._library_watcher.library.trash)
        text = f"{count} recording{'s' * (count != 1)} and any reports in the trash will be deleted permanently."
        box = message_box(self, QMessageBox.Icon.Warning, "Empty Trash", text)
        agree = box.addButton("Empty Trash", QMessageBox.ButtonRole.DestructiveRole)
        # Cancel is the default, as this cannot be undone.
        box.setDefaultButton(box.addButton(QMessageBox.StandardButton.Cancel))
        agree.clicked.connect(self._library_watcher.empty_trash)
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.open()

    def copy_values(self) -> None:
        QGuiApplication.clipboard().setText(self.table.text())
        self.said.emit("Copied the list of runs.")

    def set_palette(self, palette: Palette) -> None:
        self.table.set_palette(palette)

    def close_document(self) -> None:
        self._library_watcher.close()


def _named(entries: Sequence[LibraryEntry]) -> str:
    """One recording by its name, several by their number."""
    if len(entries) == 1:
        return entries[0].title
    return f"{len(entries)} Recordings"


BAR_PX = 180
PARTS = 1000
"""Range of the bar; Qt's 32 bits are too few for bytes."""


class DiskLine(QWidget):
    """The number and size of the recordings and their limits, as text and as a bar."""

    def __init__(self) -> None:
        super().__init__()
        self.label, self.trash_label = PlainLabel(role="muted"), PlainLabel(role="muted")
        self.bar = QProgressBar()
        self.bar.setRange(0, PARTS)
        self.bar.setTextVisible(False)
        self.bar.setFixedWidth(BAR_PX)
        in_row(self.bar, self.label, 1, self.trash_label, parent=self, margins=(2, 0, 2, 0), spacing=12)

    def show_library(self, library: Library, settings: Settings) -> None:
        """Show the figures of ``library`` with the limits from ``settings``."""
        limit = settings.recordings_bytes
        # The limit that is closer to being reached counts.
        share = max(library.bytes / limit if limit else 1.0, len(library.entries) / settings.recordings_count)
        self.bar.setValue(round(PARTS * min(share, 1.0)))
        size = f"{format_bytes(library.bytes)} of {format_bytes(limit)}"  # as a pair, a few MiB would read as 0
        self.label.setText(f"{len(library.entries)} of {settings.recordings_count} recordings, {size}")
        tip = "Beyond either limit, the oldest unlocked recordings are moved to the trash when a session begins"
        for part in (self.bar, self.label):
            part.setToolTip(plain_tip(tip))
        self.bar.setAccessibleName(f"Disk space used by recordings: {self.label.text()}")
        days = round(KEPT_S / 86400)
        there = "empty"
        if library.trash:
            there = f"{len(library.trash)}, {format_bytes(library.trash_bytes)}"
        self.trash_label.setText(f"Trash: {there}; kept for {days} days")


class _Moves:
    """Recordings that were moved to the trash together, and how to undo and redo that.

    Args:
        delete: moves a recording to the trash; returns its path there.
        restore: moves a recording from its path in the trash to another; returns the path it got.
        moved: each recording before the move, with its path in the trash.
    """

    def __init__(
        self,
        delete: Callable[[Path], Path],
        restore: Callable[[Path, Path], Path],
        moved: list[tuple[LibraryEntry, Path]],
    ) -> None:
        self._delete, self._restore = delete, restore
        self.places = [entry.path for entry, _place in moved]
        self._trashed = [place for _entry, place in moved]

    def back(self) -> None:
        """Move all out of the trash.

        Raises:
            RecordingError: a sentence for each one that cannot be moved; the others are moved.
        """
        # The paths of the last move, not of the first: each move may have added a number to a name.
        trashed_places = zip(self._trashed, self.places, strict=True)
        self.places = _moved([partial(self._restore, trashed, place) for trashed, place in trashed_places])

    def forward(self) -> None:
        """Move all into the trash.

        Raises:
            RecordingError: a sentence for each one that cannot be moved; the others are moved.
        """
        self._trashed = _moved([partial(self._delete, place) for place in self.places])


def _moved(moves: Iterable[Callable[[], Path]]) -> list[Path]:
    """Perform every move; returns the new paths."""
    # Try all: one that fails must not prevent the others.
    places, problems = [], []
    for move in moves:
        try:
            places.append(move())
        except RecordingError as error:
            problems.append(str(error))
    if problems:
        raise RecordingError(" ".join(problems))
    return places
