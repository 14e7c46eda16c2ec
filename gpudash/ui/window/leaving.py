"""What closing the window asks first: whether to stop a program, or a run that has been running for some time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QMessageBox

from gpudash.devices.names import badged_devices
from gpudash.session.recordings.run_names import given_name
from gpudash.session.watching.program import SHUTDOWN_S, TERMINATE_S, StopProgress
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.ui.forms.attached_page import PID
from gpudash.ui.widgets.plain_text import message_box
from gpudash.ui.window.workspace import Workspace
from gpudash.units import format_duration, format_left

UNASKED_S = 10.0
"""Seconds after which closing asks about a run: a shorter one is quickly repeated. A program is always asked about:
what the user's own script has written or sent by then is not known here."""

STOP, KEEP = "Stop and close", "Keep running"


class Leaving(QObject):
    """Asks whether the window may close.

    The window stays usable meanwhile; closing it again closes it without an answer. If the run ends first, the
    question disappears, and the window stays open with the result.

    Args:
        workspace: the window's workspace.
        leave: closes the window, whatever is running.
        exits: actions that close the window; their keys work in the question too.
    """

    def __init__(self, workspace: Workspace, leave: Callable[[], object], exits: Sequence[QAction]) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._leave, self._exits = leave, exits
        self._run: RunView | None = None
        self._name = ""
        self._box: QMessageBox | None = None
        self._just_opened = QTimer(self, singleShot=True)
        workspace.refreshed.connect(self._follow)
        workspace.closing.connect(self._withdraw)

    def asks(self) -> bool:
        """Whether closing must wait for an answer; asks if no question is open yet."""
        if self._box is not None:
            return self._just_opened.isActive()  # the second click of a double click is no answer
        run = self._at_stake()
        if run is not None:
            self._ask(run)
        return run is not None

    def _at_stake(self) -> RunView | None:
        """The run that closing would stop. It does not count if it was asked to stop already (unless it is a program,
        which may be saving), if it is a program that was attached to, which keeps running, or if it is the demo's."""
        workspace = self._workspace
        session = workspace.session.live
        if session is None or not session.running or workspace.playing_demo:
            return None
        if workspace.dashboard.panel.stopping and session.runs.stopping is None:
            return None
        with session.store.lock:
            run = session.store.run
            if run is None or not run.running or PID in run.spec:
                return None
            if run.workload != WATCH and session.clock() - run.began_s < UNASKED_S:
                return None
            self._name = workspace.dashboard.runs.name(run)
            if run.workload != WATCH and self._name == given_name(run.workload, run.device, run.spec):
                where = badged_devices(run.device, run.spec)
                # A name made of changed settings cannot be the subject of a sentence.
                self._name = f"{run.workload.capitalize()} on {where}"
            return run

    def _ask(self, run: RunView) -> None:
        window, self._run = self._workspace.window(), run
        # a question over a minimised window would not be seen
        window.setWindowState(window.windowState() & ~Qt.WindowState.WindowMinimized)
        box = self._box = message_box(window, QMessageBox.Icon.Warning, "Close gpudash", "")
        stop = box.addButton(STOP, QMessageBox.ButtonRole.DestructiveRole)
        keep = box.addButton(KEEP, QMessageBox.ButtonRole.RejectRole)
        box.setDefaultButton(keep)
        box.setEscapeButton(keep)
        box.setModal(False)
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.addActions(self._exits)
        stop.clicked.connect(lambda: self._leave())
        box.finished.connect(self._forget)
        self._show_length()
        box.show()
        self._just_opened.start(QApplication.doubleClickInterval())

    def _show_length(self) -> None:
        """Show the run's name, and how long it has been running."""
        session = self._workspace.session.live
        assert session is not None and self._run is not None and self._box is not None
        kept = "Its recording is kept."
        if session.recording_path is None:
            kept = "It is not being recorded."
        since = session.clock() - self._run.began_s
        length = f"has been running for {_length(since)}"
        if since < UNASKED_S:
            length = "is running"
        what = "Closing the window stops it."
        if self._run.workload == WATCH:
            what = closing_text(session.runs.stopping)
        text = f"{self._name} {length}. {what} {kept}"
        if self._box.text() != text:
            self._box.setText(text)

    def _follow(self) -> None:
        if self._box is None or self._run is None:
            return
        session = self._workspace.session
        with session.store.lock:
            on = session.running and self._run.running
        if on:
            self._show_length()
        else:
            self._withdraw()
            self._workspace.report(f"{self._name} has ended; the window stays open.")

    def _withdraw(self) -> None:
        if self._box is not None:
            self._box.close()

    def _forget(self) -> None:
        self._box = self._run = None


def closing_text(stop: StopProgress | None) -> str:
    """How closing the window affects a program, in sentences; ``stop`` is how far stopping it has come."""
    if stop is None:
        return (
            "Closing the window interrupts it, as Ctrl+C does (SIGINT). If it is still running "
            f"{SHUTDOWN_S:.0f} s later it is terminated (SIGTERM), and after another {TERMINATE_S:.0f} s killed "
            "(SIGKILL)."
        )
    if stop.next == "SIGTERM":
        return (
            f"It has been asked to stop. If it is still running {SHUTDOWN_S:.0f} s after the window closes, it is "
            f"terminated (SIGTERM), and after another {TERMINATE_S:.0f} s killed (SIGKILL)."
        )
    return f"It is being terminated. If it is still running {TERMINATE_S:.0f} s after the window closes, it is killed."


def _length(seconds: float) -> str:
    """14 s, 2 min, 3 h 10 min."""
    if 60 <= round(seconds) < 3600:
        return f"{round(seconds) // 60} min"
    if seconds < 60:
        return format_left(seconds)
    return format_duration(seconds)
