"""The dialog for what ssh asks when it logs in to a machine. The answer goes to ssh alone: it is never stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QDialog, QDialogButtonBox, QLineEdit, QWidget

from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel, plain_title

if TYPE_CHECKING:
    from gpudash.session.remote import SshQuestion

WIDTH = 460
"""Logical pixels; a host key question from ssh takes three lines at this width."""

NOT_KEPT = "The answer goes to ssh alone and is not kept."

NOT_ACCEPTED = "The previous answer was not accepted."

ACCEPT = {"secret": "Log In", "text": "Answer", "confirm": "Yes", "told": ""}
"""Label of the button that answers each kind of question."""


class LoginDialog(QDialog):
    """Shows ssh's prompt verbatim, with a field if it takes an answer. Closing the dialog declines to answer.

    Args:
        machine: name of the machine.
        question: what ssh asks; it is answered or declined when the dialog closes.
    """

    def __init__(self, machine: str, question: SshQuestion, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(plain_title(f"Log In to {machine}"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.question = question
        self.label = PlainLabel(question.prompt.strip(), wraps=True, selectable=True)
        self.again = PlainLabel(NOT_ACCEPTED, role="warn", wraps=True)
        self.again.setVisible(question.again)
        self.field = QLineEdit()
        self.field.setAccessibleName("Answer for ssh")
        self.field.setToolTip(NOT_KEPT)
        self.label.setBuddy(self.field)
        self.shown = QCheckBox("show what is typed")
        self.shown.toggled.connect(self._show_typed)
        kind = question.kind
        self.field.setVisible(kind in ("secret", "text"))
        self.shown.setVisible(kind == "secret")
        self._show_typed(kind == "text")
        note = PlainLabel(NOT_KEPT, role="muted", wraps=True)
        note.setVisible(kind == "secret")
        self.buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel, self)
        if ACCEPT[kind]:
            button = self.buttons.addButton(ACCEPT[kind], QDialogButtonBox.ButtonRole.AcceptRole)
            button.setDefault(True)
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        in_column(self.label, self.again, self.field, self.shown, note, self.buttons, parent=self, spacing=10)
        self.setMinimumWidth(WIDTH)
        self.field.setFocus()

    def _show_typed(self, shown: bool) -> None:
        if shown:
            mode = QLineEdit.EchoMode.Normal
        else:
            mode = QLineEdit.EchoMode.Password
        self.field.setEchoMode(mode)

    def done(self, result: int) -> None:
        if result == QDialog.DialogCode.Accepted:
            self.question.answer(self.field.text())
        else:
            self.question.refuse()
        self.field.clear()
        super().done(result)
