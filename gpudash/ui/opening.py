"""Opening files in a window: a snapshot in a tab, a recording in a window of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFileDialog, QMenu

from gpudash.session import Replay
from gpudash.session.files import FoundFile, find_file
from gpudash.telemetry.recorder import RecordingError
from gpudash.ui.remembered import add_recent, forget_recent, recent_files
from gpudash.ui.theme import Palette

if TYPE_CHECKING:
    from gpudash.ui.main_window import MainWindow
    from gpudash.ui.snapshot.document import SnapshotDocument

KINDS = "Snapshots and recordings (*.pickle *.pkl *.snapshot *.json *.gz *.gpudash);;All files (*)"

SCRIPT_SUFFIX = ".py"

JOIN_S = 0.5
"""Longest that closing waits for a recording that is being read."""


def snapshot_document(path: Path, palette: Palette) -> SnapshotDocument:
    """A document that reads the snapshot at ``path`` in a process of its own."""
    from gpudash.session.snapshot_opener import OpenedSnapshot
    from gpudash.ui.snapshot.document import SnapshotDocument

    return SnapshotDocument(OpenedSnapshot(path), palette)


class Opening:
    """Finds out what a file is, and shows it.

    Args:
        window: where snapshots become tabs, and what cannot be opened is told.
        make_document: a document for a snapshot file.
    """

    def __init__(
        self, window: MainWindow, make_document: Callable[[Path, Palette], SnapshotDocument] = snapshot_document
    ) -> None:
        self._window = window
        self.make_document = make_document
        self._loading: list[LoadingRecording] = []
        self._windows: list[MainWindow] = []

    def ask(self) -> None:
        """Ask for a file and open it."""
        newest = next(iter(recent_files()), None)
        start = str(newest.parent) if newest is not None else str(Path.home())
        chosen, _kind = QFileDialog.getOpenFileName(self._window, "Open", start, KINDS)
        if chosen:
            self.open(Path(chosen))

    def open_dropped(self, paths: Iterable[Path]) -> None:
        """Open what was dropped; a Python file becomes the script to run."""
        for path in paths:
            if path.suffix == SCRIPT_SUFFIX and path.is_file() and not isinstance(self._window.session, Replay):
                self._window.documents.show_dashboard()
                self._window.panel.take_script(path)
            else:
                self.open(path)

    def open(self, path: Path) -> bool:
        """Open a file, or the folder of an out-of-memory report; what cannot be opened is told in one sentence."""
        notice = self._window.documents.notice
        try:
            found = find_file(path)
        except ValueError as error:
            notice.tell(str(error))
            return False
        notice.dismiss()
        add_recent(found.path)
        if found.kind == "recording":
            notice.tell(f"Reading {found.title}…", "note")
            self._loading.append(LoadingRecording(found))
        elif not self._window.documents.show_path(found.path):
            self._open_snapshot(found)
        return True

    def _open_snapshot(self, found: FoundFile) -> None:
        try:
            document = self.make_document(found.path, self._window.palette_)
        except (OSError, ValueError, RuntimeError) as error:
            self._window.documents.notice.tell(f"{found.title} cannot be opened: {error}")
            return
        self._window.documents.add(document, found.path, found.title)

    def refresh(self) -> None:
        """Show the recordings that have been read."""
        for loading in [loading for loading in self._loading if loading.done]:
            self._loading.remove(loading)
            self._window.documents.notice.dismiss()
            if loading.replay is None:
                self._window.documents.notice.tell(loading.problem)
            else:
                self._show_recording(loading.replay)

    def _show_recording(self, replay: Replay) -> None:
        from gpudash.ui.picture import show_run  # it draws windows, and so imports this module

        window = self._window.recording_window(replay)
        window.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        window.destroyed.connect(lambda: self._forget(window))
        self._windows.append(window)
        window.show()
        show_run(window)

    def _forget(self, window: MainWindow) -> None:
        if window in self._windows:
            self._windows.remove(window)

    @property
    def windows(self) -> tuple[MainWindow, ...]:
        """The windows of opened recordings."""
        return tuple(self._windows)

    def set_palette(self, palette: Palette) -> None:
        """Draw the opened recordings in other colours."""
        for window in self._windows:
            window.set_palette(palette)

    def close(self) -> bool:
        """Close the windows of recordings; false when one was still being read and could not be waited for."""
        for window in list(self._windows):
            window.close()
        self._windows.clear()
        joined = [loading.join(JOIN_S) for loading in self._loading]
        self._loading.clear()
        return all(joined)

    def fill_recent(self, menu: QMenu, last: QAction) -> None:
        """List the files opened last in ``menu``, above ``last``; one that is gone says so."""
        for action in menu.actions():
            if action is last:
                break
            menu.removeAction(action)
            action.deleteLater()
        files = recent_files()
        for number, path in enumerate(files, 1):
            there = path.exists()
            name = f"{path.parent.name}/{path.name}".replace("&", "&&")
            entry = QAction(f"&{number % 10}  {name}{'' if there else '  (missing)'}", menu)
            entry.setToolTip(str(path) if there else f"{path} is not there any more; choosing it takes it off the list")
            entry.triggered.connect(lambda _checked=False, path=path: self._open_again(path))
            menu.insertAction(last, entry)
        if not files:
            entry = QAction("No file has been opened yet", menu)
            entry.setEnabled(False)
            menu.insertAction(last, entry)
        menu.insertSeparator(last)

    def _open_again(self, path: Path) -> None:
        if not self.open(path) and not path.exists():
            forget_recent(path)


class LoadingRecording:
    """A recording that is being read by a thread, which ends by itself.

    Attributes:
        replay: the recording, once it has been read.
        problem: one sentence, when it cannot be.
    """

    def __init__(self, found: FoundFile) -> None:
        self._found = found
        self.replay: Replay | None = None
        self.problem = ""
        self._thread = threading.Thread(target=self._load, name="gpudash-open-recording", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        try:
            self.replay = Replay(self._found.path)
        except RecordingError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"{self._found.title} cannot be read ({type(error).__name__}: {error})."

    @property
    def done(self) -> bool:
        """Whether there is an answer."""
        return not self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; false when it did not end in time."""
        self._thread.join(timeout_s)
        return self.done
