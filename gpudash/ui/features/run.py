"""The Run menu: start, stop, free the cache, ask for a snapshot, attach; and what the banner's buttons do."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt

from gpudash.session.watching.attaching import candidates
from gpudash.telemetry.records import Event, Note
from gpudash.ui.dashboard.banner import report_of
from gpudash.ui.features.file import save_recording
from gpudash.ui.features.view import explain
from gpudash.ui.forms.run_progress import PID, WATCH
from gpudash.ui.window.attach_dialog import AttachDialog
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace


def commands(workspace: Workspace) -> list[Command]:
    """Carry out what the banners ask for, and open snapshots that were asked for; the commands of Run."""
    workspace.action.connect(partial(_answer_banner, workspace))
    if not workspace.live:
        return []
    workspace.dashboard.happened.connect(partial(_take_snapshot, workspace))
    return [
        Command(
            "Run",
            "Start or Stop Run",
            "Start the workload, or stop it after its current operation",
            workspace.dashboard.panel.toggle,
            ("F5",),
            id="run.start",
            text=lambda: "Stop Run" if workspace.session.running else "Start Run",
            why_not=partial(_why_no_start, workspace),
        ),
        Command(
            "Run",
            "Free Cache",
            "Give memory that is held but not used back",
            partial(_free_cache, workspace),
            id="run.free_cache",
        ),
        Command(
            "Run",
            "Save Snapshot Now",
            "Ask your own program for a snapshot of its GPU memory, and open it",
            partial(save_snapshot, workspace),
            ("Ctrl+Shift+M",),
            id="run.save_snapshot",
            why_not=partial(_why_no_snapshot, workspace),
            separated=True,
        ),
        Command(
            "Run",
            "Attach to Process…",
            "Watch a process that runs already, from outside",
            partial(attach, workspace),
            id="run.attach",
            why_not=lambda: "A run is in progress; stop it first." if workspace.session.running else "",
        ),
    ]


def save_snapshot(workspace: Workspace) -> None:
    """Ask the program that is watched for a snapshot; it opens when it has been written."""
    session = workspace.session.live
    if session is not None and workspace.attempt(session.save_snapshot):
        words = "Asked the program for a snapshot; it opens when it has been written."
        workspace.dashboard.status_line.tell(words)


def attach(workspace: Workspace) -> None:
    """Ask for a process, and watch it."""
    session = workspace.session.live
    if session is None:
        return
    dialog = AttachDialog(
        lambda: candidates(session.store), lambda pid: workspace.attempt(lambda: session.attach(pid)), workspace
    )
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.open()


def _answer_banner(workspace: Workspace, action: str) -> None:
    if action == "stop":
        if workspace.session.running:
            workspace.dashboard.panel.toggle()
    elif action == "free_cache":
        _free_cache(workspace)
    elif action == "save_recording":
        save_recording(workspace)
    elif action == "explain":
        explain(workspace)
    elif action == "open_report":
        report = report_of(workspace.meant_dashboard.banner.shown)
        if report is not None:
            workspace.open(report)


def _free_cache(workspace: Workspace) -> None:
    live = workspace.session.live
    if live is not None:
        live.free_cache()


def _take_snapshot(workspace: Workspace, event: Event) -> None:
    """Open the snapshot that was asked for, or tell why there is none."""
    if isinstance(event, Note) and event.topic == "snapshot":
        path = event.details.get("path")
        if path is None:
            workspace.notice.tell(event.text)
        else:
            workspace.open(Path(path))


def _why_no_start(workspace: Workspace) -> str:
    panel = workspace.dashboard.panel
    return "" if workspace.session.running or panel.ready else panel.button.toolTip()


def _why_no_snapshot(workspace: Workspace) -> str:
    run = workspace.session.store.run
    if not workspace.session.running or run is None or run.workload != WATCH:
        return "No program of yours is running here."
    return "A process that is watched from outside cannot be asked." if PID in run.spec else ""
