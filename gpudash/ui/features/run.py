"""The Run menu: start, stop, free the cache, take a snapshot, attach, profile steps; and copying a run as Python."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import QModelIndex, Qt, QTimer
from PySide6.QtGui import QGuiApplication, QIntValidator
from PySide6.QtWidgets import QAbstractItemView, QDialog, QDialogButtonBox, QInputDialog, QLineEdit, QWidget

from gpudash.session.live.machine import program_of_run
from gpudash.session.live.running import DEFAULT_STEPS, MOST_STEPS
from gpudash.session.watching.attaching.candidates import Candidate, candidates
from gpudash.system.threads import started
from gpudash.telemetry.records import Event, Note, RunEnd, Topic
from gpudash.telemetry.runs import WATCH, RunView, run_of
from gpudash.ui.dashboard.banner import python_of, report_of
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.features.file import save_recording
from gpudash.ui.forms.last_form import LastForm, remember_form
from gpudash.ui.forms.run_progress import asks_nothing
from gpudash.ui.forms.start_button import name_of_stop
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, Table
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace
from gpudash.units import format_bytes

logger = logging.getLogger(__name__)


def commands(workspace: Workspace) -> list[Command]:
    """Handle actions of banners, panels and operator tabs; returns the commands of Run, and Copy as Python."""
    workspace.action.connect(partial(_handle_action, workspace))
    if workspace.live:
        _follow_form(workspace)
        workspace.dashboard.happened.connect(partial(_take_snapshot, workspace))
        workspace.dashboard.panel.snapshot_requested.connect(partial(save_snapshot, workspace))
    workspace.serve_dashboards(partial(serve_operators, workspace))
    copy = Command(
        "Edit",
        "Copy as Python",
        "Copy the run as a PyTorch program of at most 60 lines that needs nothing else",
        partial(copy_as_python, workspace),
        ("Ctrl+Shift+Y",),
        id="edit.copy_python",
        after="edit.copy_graph",
    )
    return [*(_run_commands(workspace) if workspace.live else ()), copy]


def _run_commands(workspace: Workspace) -> list[Command]:
    return [
        Command(
            "Run",
            "Start or Stop Run",
            "Start the workload, or stop it after its current operation",
            workspace.dashboard.panel.toggle,
            ("F5",),
            id="run.start",
            text=partial(_start_title, workspace),
            why_not=partial(_why_no_start, workspace),
            repeats=False,
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
            keywords="dump pickle",
            why_not=partial(_why_no_snapshot, workspace),
            separated=True,
        ),
        Command(
            "Run",
            "Attach to Process…",
            "Watch a running program: from inside if it lets gpudash in, otherwise from outside",
            partial(attach, workspace),
            id="run.attach",
            why_not=lambda: "A run is in progress; stop it first." if workspace.session.running else "",
        ),
        Command(
            "Run",
            "Profile Next Steps…",
            "Find the operators that take most time and memory in the next steps of a workload; profiling slows these "
            "down. Your own program is not profiled here.",
            partial(ask_for_profile, workspace),
            ("Shift+F5",),
            id="run.profile",
            why_not=partial(why_no_profile, workspace),
            separated=True,
        ),
    ]


def save_snapshot(workspace: Workspace) -> None:
    """Request a snapshot from the watched program; it opens when it has been written."""
    session = workspace.session.live
    if session is not None and workspace.attempt(session.save_snapshot):
        text = "Asked the program for a snapshot; it opens when it has been written."
        workspace.dashboard.status_line.report(text)


def attach(workspace: Workspace) -> None:
    """Choose a process and watch it."""
    session = workspace.session.live
    if session is None:
        return
    dialog = AttachDialog(
        lambda: candidates(session.store), lambda pid: workspace.attempt(lambda: session.attach(pid)), workspace
    )
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.open()


def _handle_action(workspace: Workspace, action: str, event: Event | None) -> None:
    """Handle the action of a button shown beside ``event``."""
    if action == "stop":
        if workspace.session.running:
            workspace.dashboard.panel.stop()
    elif action == "free_cache":
        _free_cache(workspace)
    elif action == "save_recording":
        save_recording(workspace)
    elif action == "explain":
        workspace.show_a_dashboard().explanation.explain(_run_of(workspace.target_dashboard, event))
    elif action == "use_python":
        _use_python(workspace, event)
    elif action == "simulate":
        _simulate(workspace, event)
    elif action == "open_report":
        report = report_of(event)
        if report is not None:
            workspace.open(report)


def _follow_form(workspace: Workspace) -> None:
    """Begin with what the form asked for last, and keep what it asks for at the end."""
    panel = workspace.dashboard.panel
    last = LastForm(panel, workspace.session)

    def choose() -> None:
        if last.choose_devices():
            # The cards, which are drawn by now, mark another one.
            workspace.dashboard.refresh_figures()

    def keep() -> None:
        # What a demo has put there is nobody's choice.
        if not workspace.playing_demo:
            remember_form(panel)

    workspace.dashboard.refreshed.connect(choose)
    workspace.closing.connect(keep)


def _run_of(dashboard: Dashboard, event: Event | None) -> RunView | None:
    """The run that ended with this event; ``None`` if it is not the end of a run."""
    if not isinstance(event, RunEnd):
        return None
    store = dashboard.session.store
    with store.lock:
        return run_of(store.runs, event.run_id)


def _use_python(workspace: Workspace, event: Event | None) -> None:
    """Run the failed script again, with the Python that has the module it lacked."""
    python = python_of(event)
    panel = workspace.dashboard.panel
    run = _run_of(workspace.dashboard, event)
    if python is None or run is None or workspace.session.running:
        return
    workspace.run_again(run)
    panel.script.set_script(replace(panel.script.script(), python=python))
    panel.toggle()


SIMULATED = "24 GiB"
"""Memory of the simulated GPU for a script whose form specifies none."""


def _simulate(workspace: Workspace, event: Event | None) -> None:
    """Run a script that failed without CUDA again, on a simulated GPU that appears as CUDA."""
    panel = workspace.dashboard.panel
    run = _run_of(workspace.dashboard, event)
    if run is None or workspace.session.running:
        return
    workspace.run_again(run)
    script = panel.script.script()
    panel.script.set_script(replace(script, simulate=script.simulate or SIMULATED, as_cuda=True))
    panel.toggle()


def _free_cache(workspace: Workspace) -> None:
    live = workspace.session.live
    if live is not None:
        live.free_cache()


def _take_snapshot(workspace: Workspace, event: Event) -> None:
    """Open the requested snapshot, or report why there is none."""
    if isinstance(event, Note) and event.topic == Topic.SNAPSHOT:
        path = event.details.get("path")
        if path is None:
            workspace.notice.report(event.text)
        else:
            workspace.open(Path(path))


def _start_title(workspace: Workspace) -> str:
    """What F5 does now."""
    session = workspace.session
    if not session.running:
        return "Start Run"
    stop = None
    if session.live is not None:
        stop = session.live.runs.stopping
    if stop is None:
        return "Stop Run"
    return f"{name_of_stop(stop)} Program"


def _why_no_start(workspace: Workspace) -> str:
    panel = workspace.dashboard.panel
    if workspace.session.running or panel.ready:
        return ""
    return panel.button.toolTip()


def _why_no_snapshot(workspace: Workspace) -> str:
    run = workspace.session.store.run
    if not workspace.session.running or run is None or run.workload != WATCH:
        return "No program of yours is running here."
    if asks_nothing(run):
        return "A process that is watched from outside cannot be asked."
    return ""


CODE_TIP = "Copy this run as a PyTorch program of at most 60 lines that needs nothing else (Ctrl+Shift+Y)"

COST = "Profiled steps are slower, and the run pauses while the profile is read."


def serve_operators(workspace: Workspace, dashboard: Dashboard) -> None:
    """Let a dashboard's operators tab profile its run and find its traces."""
    tab = dashboard.tabs.operators
    tab.set_commanding(dashboard.live)
    tab.recording = lambda: dashboard.session.recording_path
    tab.profile_requested.connect(lambda: ask_for_profile(workspace))
    tab.reported.connect(dashboard.status_line.report)
    dashboard.refreshed.connect(lambda: tab.refuse(why_no_profile(workspace)))
    button = worded_button("Copy as Python", CODE_TIP, partial(copy_as_python, workspace), role="chip", tab_only=True)
    dashboard.panel.add_action(button)
    dashboard.panel.changed.connect(lambda: button.setVisible(dashboard.panel.offers_workload))


def why_no_profile(workspace: Workspace) -> str:
    """Why no steps can be profiled now; "" if they can."""
    if not workspace.session.running:
        return "No run is in progress."
    watching = workspace.dashboard.panel.watching
    if watching:
        return "Steps of your own program are not profiled here; use torch.profiler in it."
    return ""


def ask_for_profile(workspace: Workspace) -> None:
    """Ask for the number of steps, profile them, and show the operators tab."""
    session, dashboard = workspace.session.live, workspace.dashboard
    if session is None:
        return
    steps, wanted = QInputDialog.getInt(
        workspace, "Profile Next Steps", f"Steps to profile. {COST}", DEFAULT_STEPS, 1, MOST_STEPS
    )
    if wanted and workspace.attempt(lambda: session.profile(steps)):
        dashboard.status_line.report(f"Profiling the next {steps} steps…" if steps > 1 else "Profiling the next step…")
        dashboard.tabs.show_operators()
        if dashboard.tabs.collapsed:
            dashboard.toggle_tables()


def copy_as_python(workspace: Workspace) -> None:
    """Copy what the panel would run, or the run in the current recording, as a plain PyTorch program."""
    dashboard = workspace.target_dashboard

    def copied() -> None:
        session = dashboard.session
        with session.store.lock:
            run = session.store.run
        if session.live is not None:
            spec = dashboard.panel.spec()
            if spec is None:
                raise ValueError("The panel does not contain a workload that can be shown as a program.")
            text = session.live.machine.program_of(spec, dashboard.panel.device_name)
        elif run is not None:
            text = program_of_run(run.workload, run.spec, run.device, session.devices())
        else:
            raise ValueError("This recording has no run.")
        QGuiApplication.clipboard().setText(text)
        dashboard.status_line.report(f"Copied a program of {text.count(chr(10))} lines.")

    workspace.attempt(copied)


PROCESS_COLUMNS = (
    Column("PID", right=True),
    Column("GPU memory", right=True, tip="On all GPUs together, where the driver reports it"),
    Column("memory", right=True, tip="Resident"),
    Column("command", wide=True),
)
WHAT = (
    "Programs with Python 3.14 or newer, or started with GPUDASH_AGENT=1, are watched from inside: steps, stacks, "
    "allocator. Others show only memory, processor time, GPU memory and their end. "
    "Stop detaches and leaves the program as it was."
)
SEARCHING = "Looking for processes…"
NONE = "No Python program of yours is running, and no process holds GPU memory; type a PID below."

POLL_MS = 50
SIZE = (760, 420)


class AttachDialog(QDialog):
    """Lists processes and accepts a PID.

    Args:
        find: finds processes; called in a thread.
        attach: called with the PID; returning false keeps the dialog open.
    """

    def __init__(
        self, find: Callable[[], Sequence[Candidate]], attach: Callable[[int], bool], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Attach to Process")
        self._find = find
        self._attach = attach
        self._found: Sequence[Candidate] | None = None
        self._problem = ""
        self.table = Table("Processes", PROCESS_COLUMNS, SEARCHING)
        self.table.view.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.view.clicked.connect(self._chosen)
        self.table.view.activated.connect(self._activated)
        self.table.view.selectionModel().currentRowChanged.connect(self._chosen)
        self.pid = QLineEdit()
        self.pid.setValidator(QIntValidator(1, 2**31 - 1, self))
        self.pid.setAccessibleName("PID")
        self.pid.setToolTip("Number of the process, as ps and nvidia-smi show it")
        self.pid.setMaximumWidth(140)
        self.pid.textChanged.connect(self._pid_changed)
        label = PlainLabel("PID")
        label.setBuddy(self.pid)
        what = PlainLabel(WHAT, role="muted", wraps=True)
        self.buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel, self)
        self._button = self.buttons.addButton("Attach", QDialogButtonBox.ButtonRole.AcceptRole)
        self._button.setDefault(True)
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        bottom = in_row(label, self.pid, 1, self.buttons)
        in_column(what, (self.table, 1), bottom, parent=self)
        self.resize(*SIZE)
        self.pid.setFocus()
        self._pid_changed()
        self._thread = started("gpudash-processes", self._list_processes)
        self._timer = QTimer(self, interval=POLL_MS)
        self._timer.timeout.connect(self.poll)
        self._timer.start()

    def _list_processes(self) -> None:
        try:
            self._found = self._find()
        except Exception as error:
            logger.exception("the processes could not be listed")
            self._problem = f"The processes could not be listed ({type(error).__name__}: {error}); type the PID below."

    def poll(self) -> None:
        """Show the processes once they have been listed."""
        if self._thread.is_alive():
            return
        self._timer.stop()
        self.table.set_empty_text(self._problem or NONE)
        self.table.show_rows(list(map(_row, self._found or ())))

    def accept(self) -> None:
        """Attach, and close if that succeeded."""
        if self.pid.hasAcceptableInput() and self._attach(int(self.pid.text())):
            super().accept()

    def done(self, result: int) -> None:
        self._timer.stop()
        self._thread.join(1.0)
        super().done(result)

    def _chosen(self, index: QModelIndex) -> None:
        if self._found is not None and index.isValid():
            self.pid.setText(str(self._found[index.row()].pid))

    def _activated(self, index: QModelIndex) -> None:
        self._chosen(index)
        self.accept()

    def _pid_changed(self) -> None:
        ready = self.pid.hasAcceptableInput()
        self._button.setEnabled(ready)
        self._button.setToolTip("Watch this process" if ready else "Choose a process, or type its number")


def _row(candidate: Candidate) -> Sequence[str]:
    gpu = ""
    if candidate.gpu_bytes is not None:
        gpu = format_bytes(candidate.gpu_bytes)
    return (str(candidate.pid), gpu, format_bytes(candidate.memory_bytes), " ".join(candidate.command.split()))
