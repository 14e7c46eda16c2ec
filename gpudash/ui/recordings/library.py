"""The session library in a tab, with a line that says how much room the recordings take of what the settings
allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication, QHideEvent, QKeySequence, QShowEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLineEdit,
    QMessageBox,
    QProgressBar,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from gpudash.session.recordings.library import Librarian, Library, LibraryEntry
from gpudash.settings import Settings
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.recording.retention import KEPT_S
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.document import Document
from gpudash.ui.recordings.library_details import Details
from gpudash.ui.recordings.library_table import RecordingsTable
from gpudash.ui.recordings.library_trash import Moves
from gpudash.ui.recordings.library_words import named
from gpudash.ui.widgets.labels import title_label, worded_button
from gpudash.ui.widgets.notice import Notice
from gpudash.ui.widgets.plain_text import PlainLabel, message_box, plain_tip
from gpudash.ui.widgets.undo import Undoing
from gpudash.units import format_bytes

TITLE = "Recordings"
HEADING, TRASH_HEADING = "RECORDED SESSIONS", "DELETED SESSIONS"
TRASH_TIP = "Show what was deleted in the last 30 days, to bring it back"

EMPTY = "Every session that is recorded appears here. Start a run (F5), and it is recorded while it runs."
EMPTY_TRASH = "The trash is empty. What is deleted lies here for 30 days and can be restored."
READING = "Reading the recordings…"
NONE_FOUND = "No recording holds these words."


class LibraryDocument(Document):
    """The recorded sessions: open, compare, lock, rename, delete and restore them.

    Args:
        librarian: watches the folder; it is closed with the document.
        undoing: the window's stack of what can be undone.
        settings: gives the settings in force, for the limits.
        open_recording: opens a recording.
        compare: compares recordings; ``None`` leaves the button out.
        is_open: whether a recording is open in the window.
        start: starts a run, which is offered while there is no recording.
        palette: colours in force.
    """

    title = TITLE

    def __init__(
        self,
        librarian: Librarian,
        undoing: Undoing,
        palette: Palette,
        *,
        settings: Callable[[], Settings],
        open_recording: Callable[[Path], object],
        compare: Callable[[list[Path]], object] | None,
        is_open: Callable[[Path], bool],
        start: Callable[[], object],
    ) -> None:
        super().__init__()
        self._librarian = librarian
        self._undoing = undoing
        self._settings, self._open, self._compare, self._is_open = settings, open_recording, compare, is_open
        self._shown: Library | None = None
        self._offer = ""
        self.notice = Notice()
        self.search = QLineEdit()
        self.table = RecordingsTable(palette)
        self.details = Details()
        self.disk = DiskLine()
        self._empty = PlainLabel()
        self.start_button = worded_button(
            "Start a run   F5", "Run what the workload panel holds; it is recorded", start
        )
        self._heading = title_label(HEADING)
        self._build()
        self.table.selectionModel().selectionChanged.connect(self._selection_changed)
        self.search.textChanged.connect(self._search)
        self.details.renamed.connect(self._rename)
        self.table.activated.connect(lambda _index: self.open_selected())
        undoing.changed.connect(self._withdraw_offer)
        self.setFocusProxy(self.search)
        self.setAccessibleName("Session library")
        self._show(force=True)

    def _build(self) -> None:
        self.search.setPlaceholderText("Search date, workload, device, status…")
        self.search.setAccessibleName("Search the recordings")
        self.search.setClearButtonEnabled(True)
        self.search.setMaximumWidth(360)
        self.search.returnPressed.connect(self._into_table)
        self.open_button = worded_button("Open", "Open the selected recordings as tabs (Enter)", self.open_selected)
        self.open_button.setProperty("role", "primary")
        self.compare_button = worded_button("Compare", "Lay the selected recordings over one another", self.compare)
        self.lock_button = worded_button("Lock", "Keep the selected recordings from being deleted", self.lock_selected)
        self.delete_button = worded_button(
            "Delete", "Move the selected recordings to the trash, where they are kept for 30 days (Del)", self.delete
        )
        self.restore_button = worded_button("Restore", "Bring the selected recordings back", self.restore_selected)
        self.empty_button = worded_button("Empty Trash…", "Delete what is in the trash for good", self.ask_to_empty)
        self.trash_button = QPushButton("Show Trash")
        self.trash_button.setCheckable(True)
        self.trash_button.toggled.connect(lambda _shown: self._show(force=True))
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self._heading)
        row.addWidget(self.search, 1)
        row.addStretch(1)
        own = (self.open_button, self.compare_button, self.lock_button, self.delete_button)
        for button in (*own, self.restore_button, self.empty_button, self.trash_button):
            row.addWidget(button)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty.setProperty("role", "muted")
        self._empty.setWordWrap(True)
        self._layers = QStackedWidget()
        nothing = QWidget()
        words = QVBoxLayout(nothing)
        words.addStretch(1)
        words.addWidget(self._empty)
        words.addWidget(self.start_button, alignment=Qt.AlignmentFlag.AlignHCenter)
        words.addStretch(1)
        self._layers.addWidget(nothing)
        self._layers.addWidget(self.table)
        middle = QHBoxLayout()
        middle.setSpacing(10)
        middle.addWidget(self._layers, 1)
        middle.addWidget(self.details)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 8, 12, 8)
        column.setSpacing(8)
        column.addLayout(row)
        column.addWidget(self.notice)
        column.addLayout(middle, 1)
        column.addWidget(self.disk)
        self._build_menu()

    def _build_menu(self) -> None:
        """The table's own menu, of a right click or the menu key."""
        for words, tip, run, key in (
            ("Open", "Open the selected recordings as tabs", self.open_selected, ""),
            ("Delete", "Move the selected recordings to the trash", self.delete_or_nothing, "Del"),
            ("Copy values", "Copy the selected rows, or all of them, as tab-separated text", self.copy_values, ""),
        ):
            action = QAction(words, self.table)
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

    def showEvent(self, event: QShowEvent) -> None:
        self._librarian.watch(True)

    def hideEvent(self, event: QHideEvent) -> None:
        self._librarian.watch(False)

    def refresh(self) -> None:
        for answer in self._librarian.answers():
            self.notice.tell(answer)
        self._show()

    def _show(self, *, force: bool = False) -> None:
        library = self._librarian.library
        if library is self._shown and not force:
            return
        self._shown = library
        entries = library.trash if self.in_trash else library.entries
        self.table.show_entries(entries)
        self.disk.show_library(library, self._settings())
        if library.problem:
            self.notice.tell(library.problem)
        self._selection_changed()
        self._show_words(library, bool(entries))

    def _show_words(self, library: Library, there: bool) -> None:
        found = self.table.found.rowCount() > 0
        self._layers.setCurrentIndex(1 if found else 0)
        nothing = EMPTY_TRASH if self.in_trash else EMPTY
        self._empty.setText(NONE_FOUND if there else READING if library.reading else nothing)
        self.start_button.setVisible(self._empty.text() == EMPTY)

    def _search(self, text: str) -> None:
        self.table.found.search(text)
        self._selection_changed()
        self._show_words(self._librarian.library, bool(self.table.found.sourceModel().rowCount()))

    def _into_table(self) -> None:
        """Enter in the search box: to the first recording that was found."""
        shown = self.table.shown()
        if shown:
            self.table.setFocus()
            self.table.select({shown[0].path})

    def _selection_changed(self) -> None:
        chosen = self.table.selected()
        own = not self.in_trash
        self.details.show_entries(chosen, in_trash=self.in_trash)
        self._heading.setText(HEADING if own else TRASH_HEADING)
        self.trash_button.setText("Show Trash" if own else "Show Recordings")
        self.trash_button.setToolTip(TRASH_TIP if own else "Show the recordings that were not deleted")
        locked = bool(chosen) and all(entry.facts is not None and entry.facts.locked for entry in chosen)
        self.lock_button.setText("Unlock" if locked else "Lock")
        for button, wanted, least in (
            (self.open_button, own, 1),
            (self.compare_button, own and self._compare is not None, 2),
            (self.lock_button, own, 1),
            (self.delete_button, own, 1),
            (self.restore_button, not own, 1),
        ):
            button.setVisible(wanted)
            button.setEnabled(len(chosen) >= least)
        self.empty_button.setVisible(not own)
        self.empty_button.setEnabled(bool(self._librarian.library.trash))

    def open_selected(self) -> None:
        """Open the selected recordings; those in the trash are to be restored first, for they may be gone tomorrow."""
        chosen = self.table.selected()
        if self.in_trash and chosen:
            who = f"“{chosen[0].title}” lies" if len(chosen) == 1 else f"{len(chosen)} recordings lie"
            self.notice.tell(f"{who} in the trash; restore first, then open.", "note")
            return
        for entry in chosen:
            self._open(entry.path)

    def compare(self) -> None:
        """Compare the selected recordings."""
        paths = [entry.path for entry in self.table.selected()]
        if self._compare is not None and len(paths) > 1:
            self._compare(paths)

    def lock_selected(self) -> None:
        """Lock the selected recordings, or unlock them where all are locked."""
        chosen = self.table.selected()
        locked = not all(entry.facts is not None and entry.facts.locked for entry in chosen)
        for entry in chosen:
            self._librarian.lock(entry.path, locked)

    def _rename(self, title: str) -> None:
        (entry,) = self.table.selected()
        before = entry.facts.title if entry.facts is not None else ""
        path = entry.path
        self._librarian.rename(path, title)
        self._undoing.push(
            f"Rename of {entry.title}",
            partial(self._librarian.rename, path, before),
            partial(self._librarian.rename, path, title),
        )

    def delete_or_nothing(self) -> None:
        """Del: what lies in the trash already is left there."""
        if not self.in_trash:
            self.delete()

    def delete(self) -> None:
        """Move the selected recordings to the trash; the notice offers the way back."""
        moved, problems = self._to_trash(self.table.selected())
        if moved:
            moves = Moves(self._move_to_trash, self._librarian.restore, moved)
            words = named([entry for entry, _place in moved])
            self._undoing.push(f"Delete of {words}", moves.back, moves.forth)
            who = f"{len(moved)} recordings" if len(moved) > 1 else f"“{words}”"
            said = f"{who} moved to the trash."
            self._offer = " ".join([said, *problems])
            self.notice.tell(self._offer, "note", button="Undo", run=self._undoing.undo)
            self.table.setFocus()
        elif problems:
            self.notice.tell(" ".join(problems))
        self.refresh()

    def _withdraw_offer(self) -> None:
        """Undo would mean something else than the notice says, once another step was made or taken back."""
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
        """Move a recording to the trash; returns its place there.

        Raises:
            RecordingError: one sentence, when it is in use or cannot be moved.
        """
        if self._is_open(path):
            raise RecordingError(f"{path.stem} is open in a tab; close it first.")
        return self._librarian.delete(path)

    def restore_selected(self) -> None:
        """Bring the selected recordings back from the trash."""
        restored, problems = [], []
        for entry in self.table.selected():
            try:
                restored.append((entry, self._librarian.restore(entry.path)))
            except RecordingError as error:
                problems.append(str(error))
        if restored:
            moves = Moves(self._move_to_trash, self._librarian.restore, [(entry, entry.path) for entry, _ in restored])
            moves.places = [place for _entry, place in restored]
            words = named([entry for entry, _place in restored])
            self._undoing.push(f"Restore of {words}", moves.forth, moves.back)
            self.said.emit(f"Restored {words}." if len(restored) == 1 else f"Restored {len(restored)} recordings.")
        if problems:
            self.notice.tell(" ".join(problems))
        self.refresh()

    def ask_to_empty(self) -> None:
        """Ask, for this cannot be undone, and delete what is in the trash."""
        count = len(self._librarian.library.trash)
        words = f"{count} recording{'s' * (count != 1)} and any reports in the trash are deleted for good."
        box = message_box(self, QMessageBox.Icon.Warning, "Empty Trash", words)
        agree = box.addButton("Empty Trash", QMessageBox.ButtonRole.DestructiveRole)
        box.setDefaultButton(box.addButton(QMessageBox.StandardButton.Cancel))
        agree.clicked.connect(self._librarian.empty_trash)
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.open()

    def copy_values(self) -> None:
        QGuiApplication.clipboard().setText(self.table.text())
        self.said.emit("Copied the list of recordings.")

    def copy_picture(self) -> None:
        QGuiApplication.clipboard().setPixmap(self.grab())
        self.said.emit("Copied a picture of the list of recordings.")

    def set_palette(self, palette: Palette) -> None:
        self.table.set_palette(palette)

    def close_document(self) -> None:
        self._librarian.close()


BAR_PX = 180
PARTS = 1000
"""Steps of the bar; Qt counts in 32 bits, too few for bytes."""


class DiskLine(QWidget):
    """Number and size of the recordings beside their limits, as words and as a bar."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.words, self.trash_words = PlainLabel(), PlainLabel()
        for label in (self.words, self.trash_words):
            label.setProperty("role", "muted")
        self.bar = QProgressBar()
        self.bar.setRange(0, PARTS)
        self.bar.setTextVisible(False)
        self.bar.setFixedWidth(BAR_PX)
        row = QHBoxLayout(self)
        row.setContentsMargins(2, 0, 2, 0)
        row.setSpacing(12)
        row.addWidget(self.bar)
        row.addWidget(self.words)
        row.addStretch(1)
        row.addWidget(self.trash_words)

    def show_library(self, library: Library, settings: Settings) -> None:
        """Show the figures of ``library`` against the limits in ``settings``."""
        limit = settings.recordings_bytes
        share = max(library.bytes / limit if limit else 1.0, len(library.entries) / settings.recordings_count)
        self.bar.setValue(round(PARTS * min(share, 1.0)))
        size = f"{format_bytes(library.bytes)} of {format_bytes(limit)}"
        self.words.setText(f"{len(library.entries)} of {settings.recordings_count} recordings, {size}")
        tip = "Beyond either limit the oldest recordings that are not locked go to the trash when a session begins"
        for part in (self.bar, self.words):
            part.setToolTip(plain_tip(tip))
        self.bar.setAccessibleName(f"Room taken by recordings: {self.words.text()}")
        days = round(KEPT_S / 86400)
        there = f"{len(library.trash)}, {format_bytes(library.trash_bytes)}" if library.trash else "empty"
        self.trash_words.setText(f"Trash: {there}; kept for {days} days")
