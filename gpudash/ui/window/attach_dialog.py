"""The dialog that asks which running process to watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from PySide6.QtCore import QModelIndex, QTimer
from PySide6.QtGui import QIntValidator
from PySide6.QtWidgets import QAbstractItemView, QDialog, QDialogButtonBox, QHBoxLayout, QLineEdit, QVBoxLayout
from PySide6.QtWidgets import QWidget as Widget

from gpudash.session.watching.attaching import Candidate
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.tables import Column, Table
from gpudash.units import format_bytes

COLUMNS = (
    Column("PID", right=True),
    Column("GPU memory", right=True, tip="On all GPUs together, where the driver reports it"),
    Column("memory", right=True, tip="Resident"),
    Column("command", wide=True),
)
WHAT = (
    "A process that runs already is watched from outside: its memory, processor time and GPU memory, and its end. Its "
    "allocator, steps and output cannot be seen; start the program as My script to see them."
)
LOOKING = "Looking for processes…"
NONE = "No Python program of yours is running, and no process holds GPU memory; a PID can be typed below."

POLL_MS = 50
SIZE = (760, 420)


class AttachDialog(QDialog):
    """Lists processes and takes a PID.

    Args:
        find: looks for processes, in a thread.
        attach: given the PID; false keeps the dialog open.
    """

    def __init__(
        self, find: Callable[[], Sequence[Candidate]], attach: Callable[[int], bool], parent: Widget | None = None
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Attach to Process")
        self._find = find
        self._attach = attach
        self._found: Sequence[Candidate] | None = None
        self._problem = ""
        self.table = Table("Processes", COLUMNS, LOOKING)
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
        what = PlainLabel(WHAT)
        what.setProperty("role", "muted")
        what.setWordWrap(True)
        self.buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        self._button = self.buttons.addButton("Attach", QDialogButtonBox.ButtonRole.AcceptRole)
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        bottom = QHBoxLayout()
        bottom.addWidget(label)
        bottom.addWidget(self.pid)
        bottom.addStretch(1)
        bottom.addWidget(self.buttons)
        rows = QVBoxLayout(self)
        rows.addWidget(what)
        rows.addWidget(self.table, 1)
        rows.addLayout(bottom)
        self.resize(*SIZE)
        self._pid_changed()
        self._thread = threading.Thread(target=self._look, name="gpudash-processes", daemon=True)
        self._thread.start()
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self.poll)
        self._timer.start()

    def _look(self) -> None:
        try:
            self._found = self._find()
        except Exception as error:
            self._problem = f"The processes could not be listed ({type(error).__name__}: {error}); type the PID below."

    def poll(self) -> None:
        """Show the processes once they have been found."""
        if self._thread.is_alive():
            return
        self._timer.stop()
        self.table.set_empty_words(self._problem or NONE)
        self.table.show_rows([_row(candidate) for candidate in self._found or ()])

    def accept(self) -> None:
        """Attach, and close where that worked."""
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
    gpu = "" if candidate.gpu_bytes is None else format_bytes(candidate.gpu_bytes)
    return (str(candidate.pid), gpu, format_bytes(candidate.memory_bytes), candidate.command)
