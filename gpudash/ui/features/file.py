"""The File menu's commands for files: open, reopen, close, save the recording, exit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from gpudash.session.recordings.file_kinds import FoundFile
from gpudash.ui.dashboard.document import Document
from gpudash.ui.features.help import sample_entries
from gpudash.ui.widgets.file_dialog import FileDialog, completed
from gpudash.ui.widgets.plain_text import plain_tip, without_mnemonics
from gpudash.ui.widgets.remembered import forget_recent, recent_files
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.session.recordings.opener import OpenedRecording, OpenedReplay
    from gpudash.ui.recordings.document import RecordingDocument

RECENT_MENU = "File/Open Recent"

KINDS = (
    "Scripts, models, snapshots, traces and recordings (*.py *.pickle *.pkl *.snapshot *.json *.gz *.gpudash)"
    ";;All files (*)"
)

STREAM, STREAM_TITLE = "-", "standard input"
"""Key and title of the tab that shows standard input."""

SAVE, SAVE_ALL = "Save Recording As…", "Save All Recordings…"

JOIN_S = 0.5
"""How long closing waits for a recording that is being read."""


def commands(workspace: Workspace) -> list[Command]:
    """Let the workspace open recordings, snapshots and traces; returns the commands for files."""
    recordings = _Recordings(workspace)
    workspace.openers["recording"] = recordings.read
    workspace.openers["snapshot"] = partial(_snapshot, workspace)
    workspace.openers["scalars"] = recordings.read_scalars
    workspace.openers["trace"] = partial(_trace, workspace)
    workspace.at_close(recordings.close)
    save = Command(
        "File",
        SAVE,
        "Save a copy of the current recording, up to now",
        partial(save_recording, workspace),
        ("Ctrl+Shift+S",),
        id="file.save_recording",
        after="file.close_document",
        why_not=partial(_why_no_saving, workspace),
        text=lambda: SAVE_ALL if workspace.front is not None and workspace.front.save is not None else SAVE,
    )
    return [
        Command(
            "File",
            "Open…",
            "Open a script, a model's config.json, a memory snapshot, a torch.profiler trace or a recording",
            partial(ask_for_file, workspace),
            ("Ctrl+O",),
            id="file.open",
        ),
        Command(
            RECENT_MENU,
            "Clear Recent Files",
            "Clear the list of recent files",
            lambda: forget_recent(),
            id="file.clear_recent",
            above=partial(_recent_entries, workspace),
        ),
        Command(
            "File",
            "Close Document",
            "Close the current document",
            workspace.close_front,
            ("Ctrl+W",),
            id="file.close_document",
            why_not=partial(_why_no_close, workspace),
        ),
        save,
        Command(
            "File",
            "Exit",
            "Stop the run, close the recording and exit",
            lambda: workspace.window().close(),
            ("Ctrl+Q",),
            id="file.exit",
            separated=True,
            role=QAction.MenuRole.QuitRole,
        ),
    ]


def ask_for_file(workspace: Workspace) -> None:
    """Choose a file and open it."""
    newest = next(iter(recent_files()), None)
    if newest is not None:
        start = str(newest.parent)
    else:
        start = str(Path.home())
    chosen = FileDialog.ask_to_open(workspace, "Open", start, KINDS)
    if chosen:
        workspace.open_dropped([Path(chosen)])


def open_stream(workspace: Workspace, stream: TextIO) -> None:
    """Show a monitor's JSON lines in a tab as they arrive."""
    from gpudash.session.recordings.opener import OpenedReplay
    from gpudash.session.remote.stream import Incoming
    from gpudash.telemetry.recording.recorder import RecordingError

    try:
        file = OpenedReplay(Incoming(stream), STREAM_TITLE)
    except (RecordingError, OSError) as error:
        workspace.notice.report(f"Standard input cannot be shown: {error}")
        return
    document = _recording(workspace, file)
    workspace.add(document, STREAM, document.title)


def save_recording(workspace: Workspace) -> None:
    """Choose a file and save a copy of the current recording; for an overview, copies of all of them."""
    front = workspace.front
    if front is not None and front.save is not None:
        front.save()
        return
    session, title = workspace.target.session, "Save Recording As"
    suffix = ".gpudash"
    name = f"gpudash{suffix}"
    if session.recording_path:
        name = session.recording_path.with_suffix(suffix).name
    chosen = FileDialog.ask_to_save(workspace, title, name, f"Recordings (*{suffix})")
    path = completed(workspace, title, chosen, suffix)
    if path is not None:
        workspace.attempt(lambda: session.save_recording(path))


class _Recordings:
    """Opens recordings, each in a thread of its own."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._reading: list[OpenedRecording] = []

    def read(self, file: FoundFile) -> Document:
        """A document that reads a recording."""
        from gpudash.session.recordings.opener import OpenedRecording

        return self._read(OpenedRecording(file.path, file.title))

    def read_scalars(self, file: FoundFile) -> Document:
        """A document that reads a TensorBoard log like a recording."""
        from gpudash.session.recordings.opener import OpenedRecording
        from gpudash.session.trackers.tensorboard_log import TensorBoardReplay

        return self._read(OpenedRecording(file.path, file.title, read=TensorBoardReplay))

    def _read(self, file: OpenedRecording) -> Document:
        self._reading = [other for other in self._reading if not other.join(0)]
        self._reading.append(file)
        return _recording(self._workspace, file)

    def close(self) -> bool:
        """Wait for readers after their documents were closed; false if one did not end in time."""
        joined = [file.join(JOIN_S) for file in self._reading]
        self._reading.clear()
        return all(joined)


def _recording(workspace: Workspace, file: OpenedRecording | OpenedReplay) -> RecordingDocument:
    from gpudash.ui.recordings.document import RecordingDocument

    document = RecordingDocument(file, workspace.colours, lambda: workspace.session.settings)
    document.ready.connect(lambda: workspace.serve(document))
    document.refused.connect(lambda sentence: refuse(workspace, document, sentence))
    document.again.connect(workspace.run_again)
    return document


def refuse(workspace: Workspace, document: Document, sentence: str) -> None:
    """Close a document that cannot be shown, and report why."""
    workspace.close_document(document)
    workspace.notice.report(sentence)


def _snapshot(workspace: Workspace, file: FoundFile) -> Document:
    """A document that reads a snapshot in a separate process."""
    from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
    from gpudash.ui.snapshot.document import SnapshotDocument

    return SnapshotDocument(OpenedSnapshot(file.path), workspace.colours)


def _trace(workspace: Workspace, file: FoundFile) -> Document:
    """A document that reads a torch.profiler trace in a separate process."""
    from gpudash.session.trackers.trace_opener import OpenedTrace
    from gpudash.ui.snapshot.trace_document import TraceDocument

    return TraceDocument(OpenedTrace(file.path), workspace.colours)


def _why_no_saving(workspace: Workspace) -> str:
    if workspace.front is not None:
        return workspace.front.why_no_saving
    if workspace.live:
        return ""
    return "Nothing is measured here; switch to a recording."


def _why_no_close(workspace: Workspace) -> str:
    if not workspace.count:
        return "No document is open."
    if workspace.front is not None:
        return ""
    return "The dashboard stays open."


def _recent_entries(workspace: Workspace, menu: QMenu) -> list[QAction]:
    """The recent files, with missing ones marked. If there are none, the demo's recordings."""
    entries = []
    for number, path in enumerate(recent_files(), 1):
        there = path.exists()
        name = without_mnemonics(f"{path.parent.name}/{path.name}")
        entry = QAction(f"&{number % 10}  {name}{'' if there else '  (missing)'}", menu)
        if there:
            text = str(path)
        else:
            text = f"{path} no longer exists; choosing it removes it from the list"
        entry.setToolTip(plain_tip(text))
        entry.triggered.connect(lambda _checked=False, path=path: _open_again(workspace, path))
        entries.append(entry)
    if entries:
        return entries
    nothing = QAction("No file has been opened yet", menu)
    nothing.setEnabled(False)
    return [nothing, *sample_entries(workspace, menu)]


def _open_again(workspace: Workspace, path: Path) -> None:
    if not workspace.open(path) and not path.exists():
        forget_recent(path)
