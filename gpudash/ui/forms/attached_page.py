"""The process being watched, shown in place of the form: a process that was already running has nothing to choose."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from gpudash.session.watching.request import program_name
from gpudash.telemetry.runs import RunView
from gpudash.ui.widgets.labels import wrapping_label
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel

PID = "pid"
"""Key in the spec of a run for a process that was already running."""

TITLE, SUMMARY = "ATTACHED TO", "A program that was already running. It keeps running unchanged when you stop."

ENTERING = "Looking for a way to see inside…"

LONGEST_COMMAND = 600
"""Maximum number of characters of a command that are shown."""

LABEL_PX = 70


class AttachedPage(QWidget):
    """Shows the process of a run that was attached to, and how it is watched."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        grid = QGridLayout()
        grid.setContentsMargins(0, 4, 0, 4)
        grid.setHorizontalSpacing(10)
        grid.setVerticalSpacing(6)
        grid.setColumnMinimumWidth(0, LABEL_PX)
        grid.setColumnStretch(1, 1)
        self._values = {name: wrapping_label("") for name in ("Program", "Process", "Command")}
        for row, (name, value) in enumerate(self._values.items()):
            value.setAccessibleName(name)
            grid.addWidget(PlainLabel(name, role="muted"), row, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(value, row, 1)
        self._seen = wrapping_label("muted")
        in_column(PlainLabel(SUMMARY, role="muted", wraps=True), grid, self._seen, parent=self, margins=(0, 0, 0, 0))

    @property
    def text(self) -> str:
        """The text shown, line by line."""
        lines = [f"{name} {value.full_text}" for name, value in self._values.items()]
        return "\n".join([*lines, self._seen.full_text])

    def show_run(self, run: RunView) -> None:
        """Show what is known about the process of ``run``."""
        given = run.spec.get("command")
        command = []
        if isinstance(given, Sequence) and not isinstance(given, str):
            command = list(map(str, given))
        program, joined = "not known", shlex.join(command)
        if command and command[0]:
            program = program_name(command)
        if len(joined) > LONGEST_COMMAND:
            joined = f"{joined[:LONGEST_COMMAND]}…"
        shown = {"Program": program, "Process": str(run.spec.get(PID)), "Command": joined}
        for name, text in shown.items():
            if self._values[name].full_text != text:
                self._values[name].setText(text)
        seen = next((note.text for note in reversed(run.notes) if "way" in note.details), ENTERING)
        if self._seen.full_text != seen:
            self._seen.setText(seen)
