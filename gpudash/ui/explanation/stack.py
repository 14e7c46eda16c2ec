"""The stack of a call site: the user's own lines first in sight, library lines folded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QCheckBox, QFrame, QPlainTextEdit, QPushButton, QWidget

from gpudash.memory.explaining.call_sites import SourceLine, no_source
from gpudash.telemetry.explanation import Owner, StackLine
from gpudash.ui.widgets.labels import title_label
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel

EMPTY = "No stack was recorded for these blocks."

SOURCE_COLUMN = 56
"""Minimum column of the source text beside each place."""


class StackPanel(QFrame):
    """Shows one stack as text that can be selected and copied.

    Args:
        source: reads the program's lines, shown beside the stack's.
    """

    def __init__(self, parent: QWidget | None = None, source: SourceLine = no_source) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self._source = source
        self._stack: tuple[StackLine, ...] = ()
        self._shown: list[StackLine | None] = []
        self._place = PlainLabel(role="muted")
        self.library = QCheckBox("library lines")
        self.library.setToolTip("Show the lines of torch and of the standard library too")
        self.library.toggled.connect(self._show)
        self.copy_button = QPushButton("Copy stack")
        self.copy_button.setToolTip("Copy every line of the stack")
        self.copy_button.clicked.connect(self.copy)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setProperty("role", "code")
        self.text.setAccessibleName("Stack of the selected row")
        self.text.setMinimumHeight(64)
        self.head = in_row(title_label("STACK"), (self._place, 1), self.library, self.copy_button)
        in_column(self.head, (self.text, 1), parent=self, margins=(10, 6, 10, 8), spacing=4)

    def show_owner(self, owner: Owner | None) -> None:
        """Show the stack of ``owner``."""
        if owner is None or owner.file is None:
            place = ""
        else:
            place = f"of {owner.name} in {owner.file}"
        self.show_stack(() if owner is None else owner.stack, place)

    def show_stack(self, stack: Sequence[StackLine], place: str) -> None:
        """Show ``stack``, innermost line first; ``place`` says what it belongs to."""
        self._stack = tuple(stack)
        self._place.setText(place)
        self._show()

    def copy(self) -> None:
        """Copy the whole stack to the clipboard."""
        QGuiApplication.clipboard().setText("\n".join(map(_text, self._stack)))

    def line_in_front(self) -> StackLine | None:
        """The line of the user's code at the text cursor, else the first one; ``None`` if there is none."""
        at = self.text.textCursor().blockNumber()
        chosen = None
        if at < len(self._shown):
            chosen = self._shown[at]
        if chosen is not None:
            return chosen
        return next((line for line in self._stack if not line.is_library), None)

    def _show(self) -> None:
        self.copy_button.setEnabled(bool(self._stack))
        rows = [(_text(line), line) for line in self._stack] if self.library.isChecked() else _folded(self._stack)
        self._shown = [line for _text_of, line in rows]
        text = "\n".join(self._with_source(text, line) for text, line in rows)
        if text != self.text.toPlainText() or not text:
            self.text.setPlainText(text or EMPTY)

    def _with_source(self, text: str, line: StackLine | None) -> str:
        if line is None:
            source = ""
        else:
            source = self._source(line.file, line.line).strip()
        if source:
            return f"{text:<{SOURCE_COLUMN}}  │ {source}"
        return text


def folded(stack: Sequence[StackLine]) -> list[str]:
    """The lines of the user's own code, with library lines between them replaced by their count."""
    return [text for text, _line in _folded(stack)]


def _folded(stack: Sequence[StackLine]) -> list[tuple[str, StackLine | None]]:
    lines: list[tuple[str, StackLine | None]] = []
    for is_library, run in groupby(stack, key=lambda line: line.is_library):
        found = list(run)
        if is_library:
            lines.append((f"    … {len(found)} library {'line' if len(found) == 1 else 'lines'}", None))
        else:
            lines += [(_text(line), line) for line in found]
    return lines


def _text(line: StackLine) -> str:
    return f"{line.file}:{line.line} in {line.name}"
