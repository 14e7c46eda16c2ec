"""The row below the form of the user's script: a button that predicts it, the progress, and why there is no result."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QPushButton, QWidget

from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

SHOWN_PARTS = 3
"""How much of an interpreter's path is shown: ".venv/bin/python"."""

PREDICT = "Predict"
AGAIN = "Predict again"
STOP = "Stop predicting"
UNASKED = "See what it needs before it runs. No GPU is used, and nothing that it writes is kept."
TIP = (
    "Run the script on tensors without numbers, with a card that does not exist standing in for CUDA, until three "
    "steps of its optimizer or the batches of an inference have passed. What it writes is held back."
)


class ScriptPrediction(QWidget):
    """Offers a prediction, and shows its progress.

    Signals:
        requested: predict the script.
        stopped: stop predicting it.
        python_wanted: predict it with this interpreter.
    """

    requested = Signal()
    stopped = Signal()
    python_wanted = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._following = False
        self.text = PlainLabel(UNASKED, role="muted", wraps=True)
        self.button = QPushButton(PREDICT)
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.button.setToolTip(plain_tip(TIP))
        self.button.clicked.connect(self._press)
        self._python = ""
        self.use_python = QPushButton()
        self.use_python.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.use_python.clicked.connect(lambda: self.python_wanted.emit(self._python))
        self.use_python.hide()
        row = in_row(self.button, self.use_python, 1, margins=(0, 0, 0, 0), spacing=8)
        # The text below: with its length the button would move away from the pointer.
        in_column(row, self.text, parent=self, margins=(0, 0, 0, 0), spacing=4)

    def show_unasked(self, *, ready: bool) -> None:
        """Offer a prediction; ``ready`` is whether there is a script that can be run."""
        self._show(UNASKED, "muted", ready=ready)

    def show_following(self, name: str, seconds: float) -> None:
        """Show that ``name`` is being predicted, and for how long."""
        self._show(f"Predicting {name}: {seconds:.0f} s.", "muted", label=STOP)

    def show_answered(self, *, ready: bool) -> None:
        """Show that there is a result, displayed elsewhere; it can be requested again if ``ready``."""
        self._show("", "muted", ready=ready, label=AGAIN)

    def show_problem(self, message: str, remedy: str, python: str = "") -> None:
        """Show why there is no result, and offer another interpreter, if any."""
        self._show(f"{message} {remedy}".strip(), "warn")
        if python:
            self._python = python
            self.use_python.setText(f"Use {'/'.join(Path(python).parts[-SHOWN_PARTS:])}")
            self.use_python.setToolTip(plain_tip(python))
            self.use_python.show()

    def _show(self, text: str, role: str, *, ready: bool = True, label: str = PREDICT) -> None:
        self._following = label == STOP
        self.use_python.hide()
        if (self.text.text(), self.button.text(), self.button.isEnabled()) == (text, label, ready):
            return
        self.text.setText(text)
        self.text.setVisible(bool(text))
        if self.text.property("role") != role:
            self.text.setProperty("role", role)
            self.text.style().unpolish(self.text)
            self.text.style().polish(self.text)
        self.button.setText(label)
        self.button.setEnabled(ready)

    def _press(self) -> None:
        if self._following:
            self.stopped.emit()
        else:
            self.requested.emit()
