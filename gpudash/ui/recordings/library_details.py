"""What is known of the selected recordings, at the right of the table; one can be given a name here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QLineEdit, QSizePolicy, QVBoxLayout, QWidget

from gpudash.session.recordings.library import LibraryEntry
from gpudash.ui.recordings.library_words import details_of
from gpudash.ui.widgets.labels import title_label, worded_label
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_bytes

WIDTH_PX = 300

NOTHING = "Select a recording to see what is known of it. Enter opens it, Del moves it to the trash."
NOTHING_IN_TRASH = "Select a recording to see what is known of it. Restore brings it back to the others."


class Details(QFrame):
    """The pane.

    Signals:
        renamed: the title that was typed.
    """

    renamed = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.setFixedWidth(WIDTH_PX)
        self.title = QLineEdit()
        self.title.setAccessibleName("Name of the recording")
        self.title.setToolTip("What the recording is called here; its file keeps its name")
        self.title.editingFinished.connect(self._edited)
        self._words = worded_label("")
        self._words.setTextFormat(Qt.TextFormat.RichText)
        self._words.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._words.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        self._shown: Sequence[LibraryEntry] = ()
        heading = title_label("SELECTED RECORDING")
        self._called = PlainLabel("Name")
        self._called.setProperty("role", "muted")
        self._called.setBuddy(self.title)
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 12, 14, 12)
        column.setSpacing(6)
        for part in (heading, self._called, self.title):
            column.addWidget(part)
        column.addWidget(self._words, 1)
        self.show_entries(())

    def show_entries(self, entries: Sequence[LibraryEntry], *, in_trash: bool = False) -> None:
        """Show the selected recordings, which lie in the trash or do not."""
        before, self._shown = self._shown, entries
        single = entries[0] if len(entries) == 1 else None
        for part in (self._called, self.title):
            part.setVisible(single is not None)
        if single is None:
            size = sum(entry.bytes for entry in entries)
            nothing = NOTHING_IN_TRASH if in_trash else NOTHING
            self._words.setText(f"{len(entries)} recordings, {format_bytes(size)} on disk" if entries else nothing)
            return
        changeable = single.facts is not None and not (single.written or single.trashed or single.facts.damage)
        self.title.setReadOnly(not changeable)
        if not self.title.hasFocus() or [entry.path for entry in before] != [single.path]:
            self.title.setText(single.title)
        rows = "".join(
            f'<p style="margin: 0 0 7px 0">{escape(name)}<br><b>{_breakable(escape(value))}</b></p>'
            for name, value in details_of(single)
        )
        self._words.setText(rows)

    def _edited(self) -> None:
        if len(self._shown) == 1 and not self.title.isReadOnly() and self.title.text().strip() != self._shown[0].title:
            self.renamed.emit(self.title.text().strip())


def _breakable(text: str) -> str:
    """A path may be broken behind each folder, which Qt's labels do only where there is room to."""
    return text.replace("/", "/\u200b")
