"""The commands about profiles and programs: profile the next steps, and a run as plain Python."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QInputDialog, QVBoxLayout

from gpudash.session.live.profiles import DEFAULT_STEPS, MOST_STEPS
from gpudash.session.live.programs import program_of_run
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

CODE_TIP = "Copy this run as a PyTorch program of at most 60 lines that needs nothing else (Ctrl+Shift+Y)"

COST = "Profiled steps are slower, and the run waits while what was recorded is read."


def commands(workspace: Workspace) -> list[Command]:
    """Let the tabs of operators and the panels ask for what is here; the commands."""
    workspace.serve_dashboards(partial(serve_operators, workspace))
    profile = Command(
        "Run",
        "Profile Next Steps…",
        "Find the operators that take most time and memory in the next steps of a workload; slows those down. "
        "Your own program is not profiled here.",
        partial(ask_for_profile, workspace),
        ("Shift+F5",),
        id="run.profile",
        after="run.attach",
        why_not=partial(why_no_profile, workspace),
        separated=True,
    )
    return [
        *((profile,) if workspace.live else ()),
        Command(
            "Edit",
            "Copy as Python",
            "Copy the run as a PyTorch program of at most 60 lines that needs nothing else",
            partial(copy_as_python, workspace),
            ("Ctrl+Shift+Y",),
            id="edit.copy_python",
            after="edit.copy_graph",
        ),
    ]


def serve_operators(workspace: Workspace, dashboard: Dashboard) -> None:
    """Let the tab of a dashboard profile its run, and find its traces."""
    tab = dashboard.tabs.operators
    tab.set_commanding(dashboard.live)
    tab.recording = lambda: dashboard.session.recording
    tab.profile_requested.connect(lambda: ask_for_profile(workspace))
    tab.told.connect(dashboard.status_line.tell)
    dashboard.refreshed.connect(lambda: tab.refuse(why_no_profile(workspace)))
    button = worded_button("Copy as Python", CODE_TIP, lambda: copy_as_python(workspace))
    button.setProperty("role", "chip")
    button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    rows = dashboard.panel.layout()
    assert isinstance(rows, QVBoxLayout)
    rows.insertWidget(rows.count() - 1, button, 0, Qt.AlignmentFlag.AlignRight)
    dashboard.panel.changed.connect(lambda: button.setVisible(not dashboard.panel.watching))


def why_no_profile(workspace: Workspace) -> str:
    """Why no steps can be profiled now; "" when they can."""
    if not workspace.session.running:
        return "No run is in progress."
    watching = workspace.dashboard.panel.watching
    return "Steps of your own program are not profiled here; use torch.profiler in it." if watching else ""


def ask_for_profile(workspace: Workspace) -> None:
    """Ask how many steps, and profile them; the tab with the operators comes to the front."""
    session, dashboard = workspace.session.live, workspace.dashboard
    if session is None:
        return
    steps, wanted = QInputDialog.getInt(
        workspace, "Profile Next Steps", f"Steps to profile. {COST}", DEFAULT_STEPS, 1, MOST_STEPS
    )
    if wanted and workspace.attempt(lambda: session.profile(steps)):
        dashboard.status_line.tell(f"Profiling the next {steps} steps…" if steps > 1 else "Profiling the next step…")
        dashboard.tabs.show_operators()
        if dashboard.tabs.collapsed:
            dashboard.toggle_tables()


def copy_as_python(workspace: Workspace) -> None:
    """Copy what the panel would run, or the run of the recording in front, as a plain PyTorch program."""
    dashboard = workspace.meant_dashboard

    def copied() -> None:
        session = dashboard.session
        with session.store.lock:
            run = session.store.run
        if session.live is not None:
            spec = dashboard.panel.spec()
            if spec is None:
                raise ValueError("What the panel holds is no workload that could be shown as a program.")
            text = session.live.machine.program_of(spec, dashboard.panel.device_name)
        elif run is not None:
            text = program_of_run(run.workload, run.spec, run.device, session.devices())
        else:
            raise ValueError("Nothing was run in this recording.")
        QGuiApplication.clipboard().setText(text)
        dashboard.status_line.tell(f"Copied a program of {text.count(chr(10))} lines.")

    workspace.attempt(copied)
