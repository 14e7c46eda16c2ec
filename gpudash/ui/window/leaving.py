"""What closing the window asks first: whether a run that has gone on for a while is to end with it."""

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
"""Seconds a run has been on from which closing asks: what is shorter is soon done again."""

STOP, KEEP = "Stop and close", "Keep running"


class Leaving(QObject):
    """Asks for a window whether it may close.

    The window can be used meanwhile, so that it can be asked to close again, which closes it. Where the run ends before
    the answer, nothing is at stake any more: the question goes, and the window stays with the run's result.

    Args:
        workspace: of the window.
        leave: closes the window, whatever runs.
        exits: commands that ask to close; their keys do so in the question too.
    """

    def __init__(self, workspace: Workspace, leave: Callable[[], object], exits: Sequence[QAction]) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._leave, self._exits = leave, exits
        self._run: RunView | None = None
        self._name = ""
        self._box: QMessageBox | None = None
        self._just_opened = QTimer(self)
        self._just_opened.setSingleShot(True)
        workspace.refreshed.connect(self._follow)
        workspace.closing.connect(self._withdraw)

    def asks(self) -> bool:
        """Whether the window has to wait for an answer, which closes it; asks where nothing is asked yet."""
        if self._box is not None:
            return self._just_opened.isActive()  # the second half of a double click says nothing more
        run = self._at_stake()
        if run is not None:
            self._ask(run)
        return run is not None

    def _at_stake(self) -> RunView | None:
        """The run that closing would cut short: not one that was asked to stop already, unless
        it is a program, which may be saving; nor a program that ran before, which runs on, nor the demo's."""
        workspace = self._workspace
        session = workspace.session.live
        if session is None or not session.running or workspace.playing_demo:
            return None
        if workspace.dashboard.panel.stopping and session.runs.stopping is None:
            return None
        with session.store.lock:
            run = session.store.run
            if run is None or not run.running or PID in run.spec or session.clock() - run.began_s < UNASKED_S:
                return None
            self._name = workspace.dashboard.run_name(run)
            if run.workload != WATCH and self._name == given_name(run.workload, run.device, run.spec):
                where = badged_devices(run.device, run.spec)
                self._name = f"{run.workload.capitalize()} on {where}"  # what differs from the default is no subject
            return run

    def _ask(self, run: RunView) -> None:
        window, self._run = self._workspace.window(), run
        # nobody sees the question of a minimised window
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
        """Say the run's name, and how long it has gone by now."""
        session = self._workspace.session.live
        assert session is not None and self._run is not None and self._box is not None
        kept = "Its recording is kept."
        if session.recording is None:
            kept = "It is not being recorded."
        length = _length(session.clock() - self._run.began_s)
        what = "Closing the window stops it."
        if self._run.workload == WATCH:
            what = closing_text(session.runs.stopping)
        text = f"{self._name} has been running for {length}. {what} {kept}"
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
    """What closing the window does to a program, in sentences; ``stop``: how far its end has come."""
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
