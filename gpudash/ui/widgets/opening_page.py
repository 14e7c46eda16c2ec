"""The page a document shows until its file is read: the progress, or why it was refused."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLabel, QProgressBar, QPushButton, QVBoxLayout, QWidget

from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel

REFUSED_TIP = (
    'A snapshot is written by torch.cuda.memory._dump_snapshot("snapshot.pickle"), after '
    "torch.cuda.memory._record_memory_history() for its history."
)

READ_ADVICE = "The file is read in a process of its own. No data leaves this computer."

MB = 1_000_000

WIDTH = 560
"""Width of the text column, in logical pixels."""


class OpeningPage(QWidget):
    """Progress in numbers with Cancel, then nothing or a sentence.

    Args:
        name: file name.
        advice: text while the file is read.
        refused_advice: text below the sentence of a refusal.

    Signals:
        cancelled: do not open the file, or the refusal was dismissed.
    """

    cancelled = Signal()

    def __init__(
        self,
        name: str,
        advice: str = READ_ADVICE,
        parent: QWidget | None = None,
        *,
        refused_advice: str = REFUSED_TIP,
    ) -> None:
        super().__init__(parent)
        self._name = name
        self._refused_advice = refused_advice
        self.title = PlainLabel(f"Opening {name}", role="figure-small")
        self.label = PlainLabel("Starting the reader…", role="muted", wraps=True, selectable=True)
        self.advice = PlainLabel(advice, role="muted", wraps=True, selectable=True)
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setRange(0, 0)
        self.bar.setAccessibleName(f"Progress of opening {name}")
        self.button = QPushButton("Cancel   Esc")
        self.button.setToolTip("Do not open the file (Esc)")
        self.button.clicked.connect(self.cancelled)
        buttons = in_row(1, self.button, 1)
        inner = QWidget()
        inner.setFixedWidth(WIDTH)
        column = QVBoxLayout(inner)
        column.setSpacing(10)
        for widget in (self.title, self.bar, self.label, self.advice):
            column.addWidget(widget)
        column.addLayout(buttons)
        outer = QVBoxLayout(self)
        outer.addStretch(2)
        outer.addWidget(inner, 0, Qt.AlignmentFlag.AlignHCenter)
        outer.addStretch(3)

    def show_progress(self, done: int, total: int) -> None:
        """Show how many bytes of how many were read; a total of 0 is unknown."""
        if total <= 0:
            return
        self.bar.setRange(0, 1000)
        self.bar.setValue(min(1000, done * 1000 // total))
        text = progress_text(done, total)
        _write(self.label, text)
        self.bar.setAccessibleDescription(text)

    def show_work(self, text: str) -> None:
        """Show what is being done with the file now that it is read."""
        self.bar.setRange(0, 0)
        _write(self.label, text)

    def show_refusal(self, sentence: str) -> None:
        """Show why the file was not opened."""
        self.title.setText(f"{self._name} was not opened")
        _write(self.label, sentence)
        self.label.setProperty("role", "error")
        self.label.style().unpolish(self.label)
        self.label.style().polish(self.label)
        _write(self.advice, self._refused_advice)
        self.bar.hide()
        self.button.setText("Close   Esc")
        self.button.setToolTip("Close this tab (Esc)")


def _write(label: QLabel, text: str) -> None:
    """Set a label's text and the height it needs."""
    label.setText(text)
    label.setMinimumHeight(label.heightForWidth(WIDTH - 24))


def progress_text(done: int, total: int) -> str:
    """ "312 of 940 MB"; in kB if the total is below ten MB."""
    if total >= 10 * MB:
        size, unit = (MB, "MB")
    else:
        size, unit = (1000, "kB")
    return f"{done // size} of {-(-total // size)} {unit}"
