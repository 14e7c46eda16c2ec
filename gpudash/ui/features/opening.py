"""Opening files in a window: each in a tab."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFileDialog, QMenu

from gpudash.session.recordings.file_kinds import FoundFile, find_file
from gpudash.session.recordings.opener import OpenedRecording, OpenedReplay
from gpudash.settings import Settings
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.colours import Palette
from gpudash.ui.features.demo import list_samples
from gpudash.ui.recordings.document import RecordingDocument
from gpudash.ui.widgets.plain_text import plain_tip, without_mnemonics
from gpudash.ui.widgets.remembered import add_recent, forget_recent, recent_files

if TYPE_CHECKING:
    from gpudash.ui.snapshot.document import SnapshotDocument
    from gpudash.ui.window.main_window import MainWindow

KINDS = "Snapshots and recordings (*.pickle *.pkl *.snapshot *.json *.gz *.gpudash);;All files (*)"

STREAM, STREAM_TITLE = "-", "standard input"
"""Key and title of the tab that shows what is piped in."""

SCRIPT_SUFFIX = ".py"

JOIN_S = 0.5
"""Longest that closing waits for a recording that is being read."""


def snapshot_document(path: Path, palette: Palette) -> SnapshotDocument:
    """A document that reads the snapshot at ``path`` in a process of its own."""
    from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
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
        self._reading: list[OpenedRecording] = []

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
            if path.suffix == SCRIPT_SUFFIX and path.is_file() and self._window.session.live is not None:
                self._window.documents.show_dashboard()
                self._window.panel.take_script(path)
            else:
                self.open(path)

    def open(self, path: Path, *, remember: bool = True) -> bool:
        """Open a file, or the folder of an out-of-memory report; what cannot be opened is told in one sentence.

        Args:
            path: of the file or folder.
            remember: whether it is listed among those opened last.
        """
        notice = self._window.documents.notice
        try:
            found = find_file(path)
        except ValueError as error:
            notice.tell(str(error))
            return False
        notice.dismiss()
        if remember:
            add_recent(found.path)
        if self._window.documents.show_path(found.path):
            return True
        if found.kind == "recording":
            self._open_recording(found)
        else:
            self._open_snapshot(found)
        return True

    def open_unlisted(self, path: Path) -> None:
        """Open a file that is not for keeping: it is not among those opened last."""
        self.open(path, remember=False)

    def _open_snapshot(self, found: FoundFile) -> None:
        try:
            document = self.make_document(found.path, self._window.palette_)
        except (OSError, ValueError, RuntimeError) as error:
            self._window.documents.notice.tell(f"{found.title} cannot be opened: {error}")
            return
        self._window.documents.add(document, found.path, found.title)

    def _open_recording(self, found: FoundFile) -> None:
        opened = OpenedRecording(found.path, found.title)
        self._reading = [other for other in self._reading if not other.join(0)]
        self._reading.append(opened)
        self._add(RecordingDocument(opened, self._window.palette_, self._settings), found.path)

    def open_stream(self, stream: TextIO) -> None:
        """Show the JSON lines of a monitor in a tab, as they come."""
        from gpudash.session.recordings.incoming import Incoming

        try:
            opened = OpenedReplay(Incoming(stream), STREAM_TITLE)
        except (RecordingError, OSError) as error:
            self._window.documents.notice.tell(f"What is piped in cannot be shown: {error}")
            return
        self._add(RecordingDocument(opened, self._window.palette_, self._settings), STREAM)

    def open_fleet(self, address: str) -> None:
        """Show every GPU that the Prometheus server at ``address`` knows; what is no address is told."""
        from gpudash.ui.features.fleet import open_fleet

        open_fleet(self._window, address)

    def ask_for_server(self) -> None:
        """Ask for the address of a Prometheus server, and show its fleet."""
        from gpudash.ui.features.fleet import ask_for_server

        ask_for_server(self._window)

    def _settings(self) -> Settings:
        return self._window.session.settings

    def _add(self, document: RecordingDocument, key: Path | str) -> None:
        document.ready.connect(lambda: self._window.serve(document))
        document.refused.connect(lambda sentence: self._refuse(document, sentence))
        document.again.connect(self._window.run_again)
        self._window.documents.add(document, key, document.title)

    def _refuse(self, document: RecordingDocument, sentence: str) -> None:
        self._window.documents.close_document(document)
        self._window.documents.notice.tell(sentence)

    def close(self) -> bool:
        """Wait for what is being read; false when it did not end in time. Called when its documents are closed."""
        joined = [opened.join(JOIN_S) for opened in self._reading]
        self._reading.clear()
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
            name = without_mnemonics(f"{path.parent.name}/{path.name}")
            entry = QAction(f"&{number % 10}  {name}{'' if there else '  (missing)'}", menu)
            entry.setToolTip(
                plain_tip(str(path) if there else f"{path} is not there any more; choosing it takes it off the list")
            )
            entry.triggered.connect(lambda _checked=False, path=path: self._open_again(path))
            menu.insertAction(last, entry)
        if not files:
            entry = QAction("No file has been opened yet", menu)
            entry.setEnabled(False)
            menu.insertAction(last, entry)
            list_samples(menu, last, self.open)
        menu.insertSeparator(last)

    def _open_again(self, path: Path) -> None:
        if not self.open(path) and not path.exists():
            forget_recent(path)
