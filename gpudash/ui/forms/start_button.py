"""The button below the workload panel, which starts and stops a run."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget

from gpudash.session.watching.program import StopProgress
from gpudash.ui.widgets.plain_text import plain_tip

STOP_TIPS = {
    "Stop": "Interrupt the program by SIGINT, as Ctrl+C does; it may take as long as it needs (F5)",
    "Terminate": "Send the program SIGTERM, at which most programs end without saving (F5)",
    "Kill": "Send the program SIGKILL, which ends it at once: what it has not saved is lost (F5)",
}


def name_of_stop(stop: StopProgress | None) -> str:
    """Text of the button for a program, named for the signal it sends next; ``stop`` is the progress so far."""
    if stop is None:
        return "Stop"
    if stop.next == "SIGTERM":
        return "Terminate"
    return "Kill"


class StartButton(QPushButton):
    """Says what a press does now."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setMinimumHeight(32)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # no click focus: Space must still pause the view

    def show_state(
        self,
        *,
        running: bool,
        stopping: bool,
        program: bool,
        stop: StopProgress | None,
        outside: bool,
        ready: bool,
        anyway: bool,
        start_tip: str,
    ) -> None:
        """Show what a press does.

        Args:
            running: whether a run is going on.
            stopping: whether it was asked to stop.
            program: whether it is the user's program.
            stop: progress of stopping the program.
            outside: whether the program was already running and is only watched.
            ready: whether a run can be started.
            anyway: whether the run is predicted not to fit.
            start_tip: what starting would do, or why it is impossible.
        """
        if outside:
            self._say("■  Stop watching   F5", "Stop watching", "Stop watching the process, which keeps running (F5)")
        elif program:
            name = name_of_stop(stop)
            self._say(f"■  {name}   F5", f"{name} the program", STOP_TIPS[name])
        elif running:
            text = ("Stopping…" if stopping else "■  Stop run   F5", "Stop run")
            self._say(*text, "Stop after the current operation (F5)")
        else:
            name = "Start run"
            if anyway:
                name = "Start anyway"
            self._say(f"▶  {name}   F5", name, start_tip)
        self.setEnabled(not stopping or program if running else ready)
        role = "primary"
        if running:
            role = "danger"
        elif anyway:
            role = ""  # possible, but not recommended
        if self.property("role") != role:
            self.setProperty("role", role)
            self.style().unpolish(self)
            self.style().polish(self)

    def _say(self, text: str, name: str, tip: str) -> None:
        self.setText(text)
        self.setAccessibleName(name)
        self.setToolTip(plain_tip(tip))
