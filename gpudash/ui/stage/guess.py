"""The field where a number is guessed, in large type and with its unit."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from gpudash.session.demo.scenes import SceneQuestion
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel

MOST_TYPED = 20
"""Maximum length of a guess: a number and its unit."""


class GuessEntry(QWidget):
    """Accepts a number. If the text is not one, `problem` says why and the field asks again.

    Signals:
        guessed: the number, in the question's unit.
        skipped: the learner wants to see the answer.
    """

    guessed = Signal(float)
    skipped = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""
        self._question: SceneQuestion | None = None
        self.field = QLineEdit()
        self.field.setMaxLength(MOST_TYPED)
        self.field.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.field.setPlaceholderText("your guess")
        self.field.installEventFilter(self)
        self.unit = PlainLabel()
        in_row(self.field, self.unit, parent=self, margins=(0, 0, 0, 0))
        self.hide()

    def begin(self, question: SceneQuestion) -> None:
        """Show the question's field and focus it."""
        self._question = question
        self.problem = ""
        self.field.clear()
        self.field.setAccessibleName(f"{question.text} Your guess in {question.unit}")
        self.unit.setText(question.unit)
        self.show()
        self.field.setFocus()

    def set_pixels(self, size: int) -> None:
        """Set the font size in pixels."""
        self.field.setStyleSheet(f"font-size: {size}px;")
        self.unit.setStyleSheet(f"font-size: {size}px;")
        self.field.setFixedWidth(9 * size)

    def accept(self) -> None:
        """Accept the text as the guess; an empty field is ignored."""
        if self._question is None or not self.field.text().strip():
            self.field.setFocus()
            return
        try:
            guess = self._question.read(self.field.text())
        except ValueError as error:
            self.problem = str(error)
            self.field.setAccessibleDescription(self.problem)
            self.field.setFocus()
            self.field.selectAll()
            return
        self.problem = ""
        self.guessed.emit(guess)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Enter submits the guess; in an empty field, Space and Right skip it, as they do elsewhere on the stage."""
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self.accept()
                return True
            if event.key() in (Qt.Key.Key_Space, Qt.Key.Key_Right) and not self.field.text():
                self.skipped.emit()
                return True
        return False
