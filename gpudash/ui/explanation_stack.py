"""The stack of a call site: the user's own lines first in sight, library lines folded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from PySide6.QtGui import QFontDatabase, QGuiApplication
from PySide6.QtWidgets import QCheckBox, QFrame, QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from gpudash.memory.explanation import Owner, StackLine

EMPTY = "No stack was recorded for these blocks."


class StackPanel(QFrame):
    """Shows one stack as text that can be selected and copied."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self._owner: Owner | None = None
        self._title = QLabel("4  STACK")
        self._title.setProperty("role", "title")
        self._place = QLabel()
        self._place.setProperty("role", "muted")
        self.library = QCheckBox("library lines")
        self.library.setToolTip("Show the lines of torch and of the standard library too")
        self.library.toggled.connect(self._show)
        self.copy_button = QPushButton("Copy stack")
        self.copy_button.setToolTip("Copy every line of the stack")
        self.copy_button.clicked.connect(self.copy)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self.text.setAccessibleName("Stack of the selected row")
        self.text.setMinimumHeight(64)
        head = QHBoxLayout()
        head.addWidget(self._title)
        head.addWidget(self._place, 1)
        head.addWidget(self.library)
        head.addWidget(self.copy_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 6, 10, 8)
        column.setSpacing(4)
        column.addLayout(head)
        column.addWidget(self.text, 1)

    def show_owner(self, owner: Owner | None) -> None:
        """Show the stack of ``owner``."""
        self._owner = owner
        self._show()

    def copy(self) -> None:
        """Put the whole stack on the clipboard."""
        stack = () if self._owner is None else self._owner.stack
        QGuiApplication.clipboard().setText("\n".join(map(_words, stack)))

    def _show(self) -> None:
        owner = self._owner
        self._place.setText("" if owner is None or owner.file is None else f"of {owner.name} in {owner.file}")
        stack = () if owner is None else owner.stack
        self.copy_button.setEnabled(bool(stack))
        lines = list(map(_words, stack)) if self.library.isChecked() else folded(stack)
        self.text.setPlainText("\n".join(lines) or EMPTY)


def folded(stack: Sequence[StackLine]) -> list[str]:
    """The lines of the user's own code, those of libraries between them counted."""
    lines: list[str] = []
    for is_library, run in groupby(stack, key=lambda line: line.is_library):
        found = list(run)
        if is_library:
            lines.append(f"    … {len(found)} library {'line' if len(found) == 1 else 'lines'}")
        else:
            lines += map(_words, found)
    return lines


def _words(line: StackLine) -> str:
    return f"{line.file}:{line.line} in {line.name}"
