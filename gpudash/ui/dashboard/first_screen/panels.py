"""The common frame of the first screen's panels: a large title, a sentence, and the content below."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLayout, QVBoxLayout, QWidget

from gpudash.ui.dashboard.first_screen.rows import EDGE_PX, RowList
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel

MARGINS = (10, 10, 10, 12)


class StartPanel(QFrame):
    """A panel with a title and a sentence; subclasses add their content to `column`."""

    def __init__(self, title: str, sentence: str) -> None:
        super().__init__()
        self.setProperty("role", "panel")
        self.setAccessibleName(title)
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(*MARGINS)
        self.column.setSpacing(6)
        self.add(PlainLabel(title, role="figure"))
        self.add(PlainLabel(sentence, role="muted", wraps=True))

    def add(self, part: QWidget | QLayout, share: int = 0) -> None:
        """Add a widget or layout below the others, aligned with the text of list rows.

        Args:
            part: widget or layout to add.
            share: stretch factor.
        """
        self.column.addLayout(in_row((part, 1), margins=(EDGE_PX, 0, EDGE_PX, 0)), share)

    def add_list(self, rows: RowList, share: int) -> None:
        """Add a list below the others; its rows extend beyond their text on both sides."""
        self.column.addWidget(rows, share)


def heading(left: PlainLabel, right: PlainLabel) -> QHBoxLayout:
    """The heading of a list: its name, and what its figures mean."""
    left.setProperty("role", "title")
    right.setProperty("role", "legend")
    right.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
    return in_row(left, (right, 1), margins=(0, 4, 0, 0), spacing=8)
