"""Three hints after the first run, each tied to something to do and gone for good once it has been done."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

HINTS: Mapping[str, str] = {
    "measure": "Drag in a plot to measure",
    "pause": "Space pauses the view; recording goes on",
    "mark": "M marks a moment",
}
"""What is to be done → how it is said."""


class Hints(QFrame):
    """A line with what has not been tried yet; hidden until `offer`.

    Args:
        done: names of `HINTS` that were done before.

    Signals:
        learned: the name of a hint has been done, for the first time.
        refused: no hint is wanted any more.
    """

    learned = Signal(str)
    refused = Signal()

    def __init__(self, done: Collection[str] = (), parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._done = {name for name in done if name in HINTS}
        self._offered = False
        self.setProperty("role", "panel")
        title = QLabel("TRY")
        title.setProperty("role", "title")
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 3, 8, 3)
        row.setSpacing(14)
        row.addWidget(title)
        self._labels = {name: QLabel(words) for name, words in HINTS.items()}
        for label in self._labels.values():
            label.setTextFormat(Qt.TextFormat.PlainText)
            row.addWidget(label)
        row.addStretch(1)
        self.close_button = QPushButton("×")
        self.close_button.setProperty("role", "chip")
        self.close_button.setAccessibleName("Show no hints")
        self.close_button.setToolTip("Show no hints; Preferences brings them back")
        self.close_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.close_button.clicked.connect(self._refuse)
        row.addWidget(self.close_button)
        self._show()

    @property
    def open(self) -> tuple[str, ...]:
        """Names of the hints that have not been done."""
        return tuple(name for name in HINTS if name not in self._done)

    def offer(self, offered: bool = True) -> None:
        """Show what has not been done, or show nothing for the time being."""
        self._offered = offered
        self._show()

    def take(self, name: str) -> None:
        """Learn that a hint has been done, whether or not it was shown."""
        if name not in self._done:
            self._done.add(name)
            self._show()
            self.learned.emit(name)

    def _refuse(self) -> None:
        self.offer(False)
        self.refused.emit()

    def _show(self) -> None:
        for name, label in self._labels.items():
            label.setVisible(name not in self._done)
        self.setVisible(self._offered and bool(self.open))
        self.setAccessibleName("; ".join(HINTS[name] for name in self.open))
