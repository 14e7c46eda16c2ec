"""The page a document shows until its file is read: the progress, or why it was refused."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLabel, QProgressBar, QWidget

from gpudash.ui.widgets.labels import set_role, worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
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
        *,
        refused_advice: str = REFUSED_TIP,
    ) -> None:
        super().__init__()
        self._name = name
        self._refused_advice = refused_advice
        self.title = PlainLabel(f"Opening {name}", role="figure-small")
        self.label = PlainLabel("Starting the reader…", role="muted", wraps=True, selectable=True)
        self.advice = PlainLabel(advice, role="muted", wraps=True, selectable=True)
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setRange(0, 0)
        self.bar.setAccessibleName(f"Progress of opening {name}")
        self.button = worded_button("Cancel   Esc", "Do not open the file (Esc)", self.cancelled.emit)
        inner = QWidget()
        inner.setFixedWidth(WIDTH)
        buttons = in_row(1, self.button, 1)
        in_column(self.title, self.bar, self.label, self.advice, buttons, parent=inner, spacing=10)
        in_column(2, in_row(1, inner, 1), 3, parent=self)

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
        set_role(self.label, "error")
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
