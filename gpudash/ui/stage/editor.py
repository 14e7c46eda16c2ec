"""The editor for *my three lines*: the lines in large type, and the size of the card they run on."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QFontDatabase, QIntValidator, QKeyEvent
from PySide6.QtWidgets import QFrame, QLineEdit, QPlainTextEdit

from gpudash.session.demo.lines import problem_of
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import MIB

LARGEST_MIB = 1_048_576


class LinesEditor(QFrame):
    """The editor, laid over the code.

    Signals:
        accepted: run these lines on a card of this many bytes.
        rejected: keep the lines as they were.
    """

    accepted = Signal(str, object)
    rejected = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("role", "panel")
        self.text = QPlainTextEdit()
        self.text.setAccessibleName("Lines of PyTorch")
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setTabChangesFocus(False)
        self.text.installEventFilter(self)
        self.text.textChanged.connect(lambda: self._say(""))
        self.card = PlainLabel("Simulated card of")
        self.unit = PlainLabel("MiB")
        self.limit = QLineEdit()
        self.limit.setValidator(QIntValidator(1, LARGEST_MIB, self.limit))
        self.limit.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.limit.setAccessibleName("Memory of the simulated card in MiB")
        self.limit.installEventFilter(self)
        self.problem = PlainLabel(role="error", wraps=True)
        self.problem.hide()
        self.run = worded_button("Run   Ctrl+Enter", "", self._accept, role="primary")
        self.cancel = worded_button("Cancel   Esc", "", self.rejected.emit)
        row = in_row(self.card, self.limit, self.unit, 1, self.cancel, self.run)
        self._mono = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()
        self._pixels = (0, 0)
        in_column(self.text, self.problem, row, parent=self, margins=(8, 8, 8, 8), spacing=6)
        self.hide()

    def begin(self, source: str, limit: int) -> None:
        """Show the lines and focus the editor."""
        self.text.setPlainText(source)
        self.limit.setText(str(max(1, limit // MIB)))
        self._say("")
        self.show()
        self.raise_()
        self.text.setFocus()
        cursor = self.text.textCursor()
        cursor.movePosition(cursor.MoveOperation.End)
        self.text.setTextCursor(cursor)

    def set_pixels(self, code: int, controls: int) -> None:
        """Set the font sizes in pixels."""
        if (code, controls) == self._pixels:
            return
        self._pixels = (code, controls)
        self.text.setStyleSheet(f"font-family: '{self._mono}'; font-size: {code}px;")
        sheet = f"font-size: {controls}px;"
        for part in (self.run, self.cancel, self.limit, self.card, self.unit):
            part.setStyleSheet(sheet)
        self.problem.setStyleSheet(f"{sheet} font-weight: bold;")
        self.limit.setFixedWidth(5 * controls)

    def _accept(self) -> None:
        if not self.limit.hasAcceptableInput():
            self.limit.setFocus()
            self.limit.selectAll()
            return
        source = "\n".join(self.text.toPlainText().rstrip().splitlines())
        self._say(problem_of(source))
        if self.problem.text():
            self.text.setFocus()
            return
        self.accepted.emit(source, int(self.limit.text()) * MIB)

    def _say(self, problem: str) -> None:
        """Show why the lines cannot be run, or nothing."""
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))
        self.text.setAccessibleDescription(problem)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Ctrl+Enter runs and Esc cancels, wherever the focus is."""
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            entered = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
            if entered and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
                self._accept()
                return True
            if event.key() == Qt.Key.Key_Escape:
                self.rejected.emit()
                return True
        return False
