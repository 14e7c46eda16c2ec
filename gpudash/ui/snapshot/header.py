"""The top of the document: the cause in words, what would have fitted, and what can be taken along."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QFrame, QHBoxLayout, QMenu, QPushButton, QVBoxLayout, QWidget

from gpudash.memory.explanation import Explanation
from gpudash.ui.explanation_remedies import Remedies
from gpudash.ui.labels import worded_button, worded_label

EXPORTS = (
    ("csv", "Table in front as CSV…", "Save the rows of the table in front"),
    ("png", "Page as picture…", "Save what is seen as a PNG"),
    ("html", "Report as HTML…", "Save the whole explanation as one file that opens in a browser"),
)


class SnapshotHeader(QFrame):
    """Sentences and buttons.

    Signals:
        copy_requested: the report shall be copied.
        export_requested: "csv", "png" or "html".
        device_chosen: a place in the list of devices.
    """

    copy_requested = Signal()
    export_requested = Signal(str)
    device_chosen = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.title = worded_label("title", wraps=False)
        self.headline = worded_label("figure-small")
        self.headline.setStyleSheet("font-size: 13pt")
        self.request = worded_label("muted")
        self.device = QComboBox()
        self.device.setAccessibleName("Device of the snapshot")
        self.device.setToolTip("The snapshot holds the memory of several devices")
        self.device.activated.connect(self.device_chosen)
        self.copy = worded_button("Copy report", "Copy the whole explanation as text", self.copy_requested.emit)
        self.export = QPushButton("Export")
        self.export.setToolTip("Save the table, the picture or a report")
        menu = QMenu(self.export)
        menu.setToolTipsVisible(True)
        for kind, words, tip in EXPORTS:
            action = menu.addAction(words)
            action.setToolTip(tip)
            action.triggered.connect(lambda _checked=False, kind=kind: self.export_requested.emit(kind))
        self.export.setMenu(menu)
        self.remedies = Remedies()
        head = QHBoxLayout()
        head.setSpacing(8)
        head.addWidget(self.title, 1)
        for control in (self.device, self.copy, self.export):
            head.addWidget(control)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 6, 10, 8)
        column.setSpacing(3)
        column.addLayout(head)
        for widget in (self.headline, self.request, self.remedies):
            column.addWidget(widget)

    def show_devices(self, names: Sequence[str], chosen: int) -> None:
        """Offer devices; the choice is absent where there is one."""
        self.device.clear()
        self.device.addItems(list(names))
        self.device.setCurrentIndex(chosen)
        self.device.setVisible(len(names) > 1)

    def show_explanation(self, found: Explanation, title: str) -> None:
        """Show what ``found`` says under ``title``."""
        self.title.setText(title)
        self.headline.setText(found.headline)
        self.request.setText(found.request_words)
        self.request.setVisible(bool(found.request_words))
        remedies = found.remedies if found.requested_bytes is not None else ()
        self.remedies.show_remedies(remedies, found.remedies_note)
