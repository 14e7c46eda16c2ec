"""The head of the overview: how large the fleet is, how full, who answers, and what is wrong with the answers."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

TRYING = "It is asked again by itself; nothing has to be done here once it answers."


class ProblemStrip(QFrame):
    """Says in place what is wrong; hidden while nothing is."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "banner")
        self.sentence = PlainLabel()
        self.sentence.setWordWrap(True)
        self.sentence.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 12, 6)
        row.addWidget(self.sentence, 1)
        self.hide()

    def tell(self, sentences: Iterable[str]) -> None:
        """Say these, each once; nothing when there are none."""
        words = " ".join(f"{text.rstrip('.')}." for text in dict.fromkeys(sentences) if text)
        if self.sentence.text() != words:
            self.sentence.setText(words)
            self.setAccessibleName(words)
        self.setVisible(bool(words))


class FleetHeader(QWidget):
    """Two lines, and a strip below them while something is wrong."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.total = PlainLabel()
        self.total.setProperty("role", "figure")
        self.total.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.source = PlainLabel()
        self.source.setProperty("role", "muted")
        self.source.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        for label in (self.total, self.source):
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.problem = ProblemStrip()
        row = QHBoxLayout()
        row.addWidget(self.total, 1)
        row.addWidget(self.source)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        column.addLayout(row)
        column.addWidget(self.problem)

    def show_size(self, words: str) -> None:
        """Say how large and how full the fleet is."""
        if self.total.text() != words:
            self.total.setText(words)
            self.total.setToolTip(plain_tip(words))

    def show_source(self, words: str) -> None:
        """Say who answers, and how old the newest answer is."""
        if self.source.text() != words:
            self.source.setText(words)

    def show_problem(self, sentence: str, since: str) -> None:
        """Say what is wrong, in place; "" when nothing is.

        Args:
            sentence: what is wrong.
            since: of when the figures are that are still shown; "" when there are none.
        """
        shown = f"What is shown is of {since}" if since else ""
        self.problem.tell([sentence, shown, TRYING] if sentence else [])
