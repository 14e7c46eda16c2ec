"""The top of the explanation: the cause, the request, and what would have fitted."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from gpudash.devices import SIMULATED_PRODUCT, shown_name
from gpudash.memory.explanation import Explanation
from gpudash.ui.explanation_remedies import Remedies
from gpudash.ui.labels import worded_button, worded_label
from gpudash.units import format_clock


class ExplanationHeader(QFrame):
    """Sentences and buttons.

    Signals:
        applied: the `Remedy` to run again with.
        copy_requested: the report shall be copied.
        closed: back to the plots.
    """

    applied = Signal(object)
    copy_requested = Signal()
    closed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.title = worded_label("title", wraps=False)
        self.headline = worded_label("figure-small")
        self.headline.setStyleSheet("font-size: 13pt")
        self.request = worded_label("muted")
        self.remedies = Remedies()
        self.remedies.applied.connect(self.applied)
        self._copy = worded_button("Copy report", "Copy the whole explanation as text", self.copy_requested.emit)
        self._close = worded_button("Back to the plots   Esc", "Leave the explanation (Esc)", self.closed.emit)
        head = QHBoxLayout()
        head.addWidget(self.title, 1)
        head.addWidget(self._copy)
        head.addWidget(self._close)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 6, 10, 8)
        column.setSpacing(3)
        column.addLayout(head)
        column.addWidget(self.headline)
        column.addWidget(self.request)
        column.addWidget(self.remedies)

    def show_explanation(self, found: Explanation, *, commanding: bool, looking: bool, rank: int | None = None) -> None:
        """Show what ``found`` says.

        Args:
            commanding: whether a remedy can be applied here.
            looking: whether remedies are still looked for.
            rank: whose memory it is, in a run with ranks.
        """
        whose = "" if rank is None else f"rank {rank} on "
        what = "MEMORY AT" if found.requested_bytes is None else "OUT OF MEMORY AT"
        product = "" if found.product in ("", SIMULATED_PRODUCT) else f" · {found.product}"
        self.title.setText(f"{what} {format_clock(found.time_s)} · {whose}{shown_name(found.device)}{product}")
        self.headline.setText(found.headline)
        self.request.setText(found.request_words)
        self.remedies.show_remedies(found.remedies, found.remedies_note, commanding=commanding, looking=looking)
        self.remedies.setVisible(found.requested_bytes is not None)
