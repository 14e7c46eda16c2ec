"""The button that starts a run and stops it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget


class StartButton(QPushButton):
    """Says what a press does now."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setMinimumHeight(32)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # after a click Space still means the view, not Stop

    def show_state(
        self, *, running: bool, stopping: bool, program: bool, outside: bool, ready: bool, start_tip: str
    ) -> None:
        """Show what can be done.

        Args:
            running: whether a run is on.
            stopping: whether it has been asked to stop.
            program: whether it is a program of the user's.
            outside: whether that ran already, and is only watched.
            ready: whether a run can be started.
            start_tip: what starting would do, or why it cannot be done.
        """
        if outside:
            self._say("■  Stop watching   F5", "Stop watching", "Look away from the process, which runs on (F5)")
        elif program:
            words = ("■  End it now   F5", "End the program now") if stopping else ("■  Stop   F5", "Stop the program")
            self._say(*words, "Interrupt the program as Ctrl+C does; pressed again, end it (F5)")
        elif running:
            words = ("Stopping…" if stopping else "■  Stop run   F5", "Stop run")
            self._say(*words, "Stop after the current operation (F5)")
        else:
            self._say("▶  Start run   F5", "Start run", start_tip)
        self.setEnabled(not stopping or program if running else ready)
        role = "danger" if running else "primary"
        if self.property("role") != role:
            self.setProperty("role", role)
            self.style().unpolish(self)
            self.style().polish(self)

    def _say(self, text: str, name: str, tip: str) -> None:
        self.setText(text)
        self.setAccessibleName(name)
        self.setToolTip(tip)
