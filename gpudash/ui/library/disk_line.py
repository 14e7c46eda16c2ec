"""The line below the table: how much room the recordings take of what the settings allow, and the trash."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QWidget

from gpudash.session.library import Library
from gpudash.settings import Settings
from gpudash.telemetry.trash import KEPT_S
from gpudash.units import format_bytes

BAR_PX = 180
PARTS = 1000
"""Steps of the bar; Qt counts in 32 bits, too few for bytes."""


class DiskLine(QWidget):
    """Number and size of the recordings beside their limits, as words and as a bar."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.words, self.trash_words = QLabel(), QLabel()
        for label in (self.words, self.trash_words):
            label.setProperty("role", "muted")
        self.bar = QProgressBar()
        self.bar.setRange(0, PARTS)
        self.bar.setTextVisible(False)
        self.bar.setFixedWidth(BAR_PX)
        row = QHBoxLayout(self)
        row.setContentsMargins(2, 0, 2, 0)
        row.setSpacing(12)
        row.addWidget(self.bar)
        row.addWidget(self.words)
        row.addStretch(1)
        row.addWidget(self.trash_words)

    def show_library(self, library: Library, settings: Settings) -> None:
        """Show the figures of ``library`` against the limits in ``settings``."""
        limit = settings.recordings_bytes
        share = max(library.bytes / limit if limit else 1.0, len(library.entries) / settings.recordings_count)
        self.bar.setValue(round(PARTS * min(share, 1.0)))
        size = f"{format_bytes(library.bytes)} of {format_bytes(limit)}"
        self.words.setText(f"{len(library.entries)} of {settings.recordings_count} recordings, {size}")
        tip = "Beyond either limit the oldest recordings that are not locked go to the trash when a session begins"
        for part in (self.bar, self.words):
            part.setToolTip(tip)
        self.bar.setAccessibleName(f"Room taken by recordings: {self.words.text()}")
        days = round(KEPT_S / 86400)
        there = f"{len(library.trash)}, {format_bytes(library.trash_bytes)}" if library.trash else "empty"
        self.trash_words.setText(f"Trash: {there}; kept for {days} days")
