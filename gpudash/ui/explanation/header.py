"""The top of an explanation, live and of a snapshot: the cause, the request, and what would have fitted."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from gpudash.telemetry.explanation import Explanation
from gpudash.ui.explanation.remedies import RemediesView
from gpudash.ui.widgets.labels import worded_label


class CauseHeader(QFrame):
    """A title with controls at its side, and sentences below.

    Args:
        controls: at the right of the title.
    """

    def __init__(self, controls: Sequence[QWidget], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.title = worded_label("title", wraps=False)
        self.headline = worded_label("figure-small")
        self.headline.setStyleSheet("font-size: 13pt")
        self.request = worded_label("muted")
        self.remedies = RemediesView()
        head = QHBoxLayout()
        head.setSpacing(8)
        head.addWidget(self.title, 1)
        for control in controls:
            head.addWidget(control)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 6, 10, 8)
        column.setSpacing(3)
        column.addLayout(head)
        for widget in (self.headline, self.request, self.remedies):
            column.addWidget(widget)

    def show_cause(self, found: Explanation, title: str) -> None:
        """Show the sentences of ``found`` under ``title``; whoever knows what they are for shows its remedies."""
        self.title.setText(title)
        self.headline.setText(found.headline)
        self.request.setText(found.request_words)
        self.request.setVisible(bool(found.request_words))
