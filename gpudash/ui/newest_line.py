"""The newest line that the user's own program has printed, where its output is not in sight."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFontDatabase, QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from gpudash.session.output_log import OutputLine


class NewestLine(QLabel):
    """One line at the right, shortened to its room; the tooltip has it whole."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._line: OutputLine | None = None
        self.setProperty("role", "muted")
        self.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def show_line(self, line: OutputLine | None) -> None:
        """Show ``line``; nothing for ``None``."""
        if line == self._line:
            return
        self._line = line
        words = "" if line is None else f"The program's newest line, on {line.stream}: {line.text}"
        self.setToolTip(words)
        self.setAccessibleName(words)
        self._fit()

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        text = "" if self._line is None else self._line.text.strip()
        room = self.width() - self.contentsMargins().left() - self.contentsMargins().right()
        self.setText(self.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, max(0, room)))
