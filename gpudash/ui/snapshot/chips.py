"""What narrows the panes, as chips that can be taken away one by one, and the search."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QWidget

from gpudash.memory.explanation import short
from gpudash.ui.snapshot.selection import Selection
from gpudash.ui.snapshot.study import Study

NAMES = ("moment", "category", "path")
"""Chips in their order; two moments are one chip."""


class Chips(QWidget):
    """A row of buttons and a field.

    Signals:
        removed: the name of the field of `Selection` whose chip was clicked.
        searched: the text that is searched for.
    """

    removed = Signal(str)
    searched = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        self.buttons: dict[str, QPushButton] = {}
        self._field = ""
        for name in NAMES:
            button = QPushButton()
            button.setProperty("role", "chip")
            button.setToolTip("Take this back (Esc)")
            button.clicked.connect(lambda _checked=False, name=name: self._remove(name))
            button.hide()
            row.addWidget(button)
            self.buttons[name] = button
        self.search = QLineEdit()
        self.search.setPlaceholderText("Search stacks   /")
        self.search.setAccessibleName("Search stacks and categories")
        self.search.setToolTip("Only blocks with this text in their stack or category (/)")
        self.search.setClearButtonEnabled(True)
        self.search.setFixedWidth(190)
        self.search.textChanged.connect(lambda text: self.searched.emit(text.strip()))
        row.addWidget(self.search)

    def show_selection(self, selection: Selection, study: Study) -> None:
        """Show what narrows the panes."""
        self._field = "moment" if selection.compared is None else "compared"
        self._show("moment", moment_words(selection, study))
        self._show("category", selection.category)
        self._show("path", path_words(selection))
        if selection.search != self.search.text().strip():
            self.search.setText(selection.search)

    def _show(self, name: str, words: str) -> None:
        button = self.buttons[name]
        button.setText(f"{words}  ×")
        button.setAccessibleName(f"Take back {words}")
        button.setVisible(bool(words))

    def _remove(self, name: str) -> None:
        self.removed.emit(self._field if name == "moment" else name)


def moment_words(selection: Selection, study: Study) -> str:
    """The chosen moment or moments; "" for the snapshot's own."""
    moment = study.moment_of(selection)
    if selection.compared is not None:
        return f"{study.words(selection.compared)} to {study.words(moment)}"
    return "" if selection.moment is None else study.words(moment)


def path_words(selection: Selection) -> str:
    """The line beneath which blocks were allocated."""
    if not selection.path:
        return ""
    file, line, name = selection.path[-1]
    return f"{short(file)}:{line} {name}" if file else name
