"""The button below the workload panel: starts a run, and stops it."""

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
    """What the button says of a program, by the signal that it sends next; ``stop``: how far its end has come."""
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
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # after a click Space still means the view, not Stop

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
        """Show what can be done.

        Args:
            running: whether a run is on.
            stopping: whether it has been asked to stop.
            program: whether it is a program of the user's.
            stop: how far its end has come.
            outside: whether that ran already, and is only watched.
            ready: whether a run can be started.
            anyway: whether it is predicted that it will not fit.
            start_tip: what starting would do, or why it cannot be done.
        """
        if outside:
            self._say("■  Stop watching   F5", "Stop watching", "Look away from the process, which runs on (F5)")
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
            role = ""  # it can be done, and is not what is advised
        if self.property("role") != role:
            self.setProperty("role", role)
            self.style().unpolish(self)
            self.style().polish(self)

    def _say(self, text: str, name: str, tip: str) -> None:
        self.setText(text)
        self.setAccessibleName(name)
        self.setToolTip(plain_tip(tip))
