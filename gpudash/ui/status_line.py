"""The line at the bottom: what is recorded, how fast the machine is read, what that costs, which driver and torch."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSizePolicy, QWidget

from gpudash.session import Status
from gpudash.units import format_bytes


TOLD_SHOWN_MS = 5000
"""How long a passing message stays."""


class StatusLine(QWidget):
    """Two labels: the session at the left, the machine at the right; the left one gives way."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._left, self._right = QLabel(), QLabel()
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 3, 12, 3)
        row.setSpacing(16)
        for label, side in ((self._left, Qt.AlignmentFlag.AlignLeft), (self._right, Qt.AlignmentFlag.AlignRight)):
            label.setProperty("role", "muted")
            label.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._left.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        row.addWidget(self._left, 1)
        row.addWidget(self._right)
        self._words = ""
        self._told = ""
        self._forget = QTimer(self)
        self._forget.setSingleShot(True)
        self._forget.setInterval(TOLD_SHOWN_MS)
        self._forget.timeout.connect(lambda: self.tell(""))

    def tell(self, text: str) -> None:
        """Say ``text`` at the left for a while, such as "Copied 312 rows"."""
        self._told = text
        if text:
            self._forget.start()
        self._elide()

    def show_status(self, status: Status | None, view: str, gpu_problem: str | None, loading: str) -> None:
        """Show the session's figures.

        Args:
            status: ``None`` for a recording that is looked at.
            view: "Live", or how far the view is behind.
            gpu_problem: why no GPU can be used.
            loading: what is still being loaded, or "".
        """
        parts = [view]
        if status is not None:
            if status.recording is not None:
                parts.append(f"● recording {status.recording.name}  {format_bytes(status.recording_bytes)}")
                self._left.setToolTip(str(status.recording))
            else:
                parts.append("not recording")
            parts.append(
                f"sampling {status.rate_hz:g} Hz · {status.missed} missed · "
                f"{status.own_cpu_ratio * 100:.1f} % of one core"
            )
        words = "   ".join(parts)
        if words != self._words:
            self._words = words
            self._elide()
        right = [
            part
            for part in (
                f"NVML {status.driver}" if status and status.driver else gpu_problem,
                loading or (status.torch if status else None),
            )
            if part
        ]
        text = " · ".join(right)
        self._right.setToolTip(text)
        limit = max(160, self.width() * 11 // 20)
        text = self._right.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, limit)
        if self._right.text() != text:
            self._right.setText(text)

    def resizeEvent(self, event: object) -> None:
        self._elide()

    def _elide(self) -> None:
        room = max(60, self._left.width())
        self._left.setText(
            self._left.fontMetrics().elidedText(self._told or self._words, Qt.TextElideMode.ElideRight, room)
        )
