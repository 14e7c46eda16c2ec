"""The fourth part of an explanation: the user's script with the change beside it, or else the stack."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from gpudash.memory.explaining.annotated_source import read_source, source_files
from gpudash.telemetry.explanation import Explanation, Owner
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.change import ChangePanel
from gpudash.ui.explanation.own_program import OwnProgram
from gpudash.ui.explanation.source_view.editor import open_in_editor
from gpudash.ui.explanation.source_view.source import SourcePanel
from gpudash.ui.explanation.stack import StackPanel
from gpudash.ui.widgets.layouts import in_halves

SHARES = (1900, 1000)
"""Initial widths of the source and of the change."""

MOST_STACK_PX = 240
"""Maximum height of the stack in logical pixels; a taller page gives the rest to the table and the curve."""


class ProgramPanel(QWidget):
    """Source and change, or the stack; if there is a source, buttons switch between them.

    Signals:
        sourced: whether there is a source now, which needs more room.
    """

    sourced = Signal(bool)

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.stack = StackPanel()
        self.source = SourcePanel(palette)
        self.change = ChangePanel()
        self.source_button = QPushButton("Source")
        self.source_button.setToolTip("Show the source of the program instead of the call stack")
        self.stack.head.addWidget(self.source_button)
        self.halves = in_halves((self.source, 19), (self.change, 10), across=True)
        self.halves.setSizes(SHARES)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.halves)
        layout.addWidget(self.stack)
        self._found: Explanation | None = None
        self._program: OwnProgram | None = None
        self._files: list[str] = []
        self.source.stack_wanted.connect(lambda: self._show_stack(True))
        self.source_button.clicked.connect(lambda: self._show_stack(False))
        self.source.file_chosen.connect(self._show_file)
        self.change.edit_wanted.connect(self._edit)
        self._show_stack(True)
        self.source_button.hide()

    @property
    def text(self) -> QPlainTextEdit:
        """The text view that is shown."""
        if self.halves.isHidden():
            return self.stack.text
        return self.source.view

    def show_program(self, found: Explanation, program: OwnProgram | None) -> bool:
        """Show the source of the user's program, or the stack for anything else; return whether there is a source."""
        self._found = found
        self._program = program
        change = None
        if not (program is None or program.offer is None):
            change = program.offer.remedy
        files: list[str] = []
        if program is not None:
            known = source_files(found, change, program.folder)
            files = [file for file in known if read_source(found, file, change, program.folder) is not None]
        self._files = files
        self.source.show_files(files)
        self.source_button.setVisible(bool(files))
        if files:
            self._show_file(files[0])
            self.change.show_offer(None if program is None else program.offer, found)
        self._show_stack(not files)
        self.sourced.emit(bool(files))
        return bool(files)

    def show_owner(self, owner: Owner | None) -> None:
        """Highlight a call site in the stack and in the source."""
        self.stack.show_owner(owner)
        if owner is None or owner.line is None or owner.file not in self._files:
            return
        source = self.source.view.source
        if source is None or source.file != owner.file:
            self._show_file(owner.file)
        place = self.source.view.place_of(owner.line)
        if place is not None:
            self.source.view.look_at(place)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.source.view.set_palette(palette)

    def _show_stack(self, shown: bool) -> None:
        focused = self.text.hasFocus() or self.source.stack_button.hasFocus() or self.source_button.hasFocus()
        self.stack.setVisible(shown)
        self.halves.setVisible(not shown)
        if focused:
            self.text.setFocus(Qt.FocusReason.OtherFocusReason)

    def _show_file(self, file: str) -> None:
        program = self._program
        if self._found is None or program is None:
            return
        change = None
        if program.offer is not None:
            change = program.offer.remedy
        source = read_source(self._found, file, change, program.folder)
        if source is not None:
            self.source.show_source(source)

    def _edit(self) -> None:
        source = self.source.view.source
        if source is not None:
            self.change.say(open_in_editor(source.file, self.source.view.line_in_front()))
