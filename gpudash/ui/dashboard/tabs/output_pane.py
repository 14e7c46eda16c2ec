"""The output of the user's own program: its newest lines, followed until the user scrolls up to read."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRect, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QGuiApplication,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QTextCursor,
    QTextDocument,
)
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from gpudash.session.watching.output.log import OutputLine, OutputLog
from gpudash.ui.colours import DARK, Palette
from gpudash.ui.widgets.labels import search_field, worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_count

MOST_LINES = 10_000
"""Maximum number of lines kept for scrolling back."""

LINES_A_FRAME = 500
"""Maximum number of lines added per refresh, so that a flood of output does not freeze the window."""

STDOUT, STDERR, LEFT_OUT = 0, 1, 2
"""Kinds of lines, stored as the state of the text block."""

EMPTY = "What your own program prints appears here: choose My script at the left and press Start."

SILENT = "The program has printed nothing yet."

ELSEWHERE = "This program was running already: what it prints stays where it was started."

GUTTER_PX = 34
"""Width of the column with the stream's name."""


class OutputPane(QWidget):
    """The lines, with controls above to search, copy and follow them.

    Signals:
        reported: a passing message for the status line.
    """

    reported = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._program = ""
        self._number = 0
        self._behind = 0
        self._left_out = 0
        self._following = True
        self.text = OutputText()
        self.search = search_field("Find", "Find in the output", "Enter finds the next, Shift+Enter the one before")
        self.search.setMaximumWidth(240)
        self._matches = PlainLabel(role="muted")
        self.status = PlainLabel(role="muted")
        tip = "Show the newest lines again (End)"
        self.follow_button = worded_button("Follow", tip, self.follow, role="chip", tab_only=True)
        tip = "Copy every line that is kept; Ctrl+C copies the selected ones"
        copy = worded_button("Copy all", tip, self.copy_all, role="chip", tab_only=True)
        head = in_row(
            self.search, self._matches, 1, self.status, self.follow_button, copy, margins=(8, 3, 8, 3), spacing=8
        )
        in_column(head, (self.text, 1), parent=self, margins=(0, 0, 0, 0), spacing=0)
        self.search.textChanged.connect(self._search_changed)
        self.search.installEventFilter(self)
        self.text.verticalScrollBar().valueChanged.connect(self._scrolled)
        self._show_status()

    @property
    def following(self) -> bool:
        """Whether the newest lines are shown as they arrive."""
        return self._following

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.text.set_palette(palette)

    def begin(self, program: str = "", *, elsewhere: bool = False) -> None:
        """Clear the lines for another program.

        Args:
            program: its name, shown above the lines: the plots may show another run.
            elsewhere: whether it prints to the terminal it was started from, so that no lines will arrive here.
        """
        self.text.clear()
        self.text.setPlaceholderText(ELSEWHERE if elsewhere else SILENT)
        self._program = program
        self._number = self._behind = self._left_out = 0
        self._following = True
        self._show_status()

    def refresh(self, log: OutputLog) -> None:
        """Show new output; nothing is added while the user reads further up."""
        lines, following, lost = log.since(self._number)
        if not self._following:
            self._behind = len(lines) + lost
            self._show_status()
            return
        skipped = max(0, len(lines) - MOST_LINES)
        taken = lines[skipped : skipped + LINES_A_FRAME]
        self._number = following - len(lines) + skipped + len(taken)
        self._behind = 0
        self.add(taken, lost + skipped)

    def add(self, lines: Sequence[OutputLine], lost: int = 0) -> None:
        """Show ``lines``, after a note that ``lost`` lines were left out."""
        entries = []
        if lost:
            entries = [(f"… {_left_out(lost)}", LEFT_OUT)]
        self._left_out += lost
        entries += [(line.text, STDERR if line.stream == "stderr" else STDOUT) for line in lines]
        if entries:
            self.text.add(entries)
            if self._following:
                self._to_end()
        self._show_status()

    def follow(self) -> None:
        """Show the newest lines as they arrive."""
        self._following = True
        self._behind = 0
        self._to_end()
        self._show_status()

    def copy(self) -> None:
        """Copy the selected lines, or all if none are selected."""
        if self.text.textCursor().hasSelection():
            self.text.copy()
        else:
            self.copy_all()

    def copy_all(self) -> None:
        """Copy every line that is kept."""
        QGuiApplication.clipboard().setText(self.text.toPlainText())
        self.reported.emit(f"Copied {_lines(self.text.line_count)}")

    def find_next(self, *, backward: bool = False) -> bool:
        """Select the next line that contains the search text, wrapping around at the end; false if there is none."""
        text = self.search.text()
        if not text:
            return False
        if backward:
            flags = QTextDocument.FindFlag.FindBackward
        else:
            flags = QTextDocument.FindFlag(0)
        self._stop_following()
        if self.text.find(text, flags):
            return True
        self.text.moveCursor(QTextCursor.MoveOperation.End if backward else QTextCursor.MoveOperation.Start)
        return self.text.find(text, flags)

    def eventFilter(self, watched: object, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self.find_next(backward=bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier))
                return True
            if event.key() == Qt.Key.Key_Escape:
                self.search.clear()
                self.text.setFocus()
                return True
        return False

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_End:
            self.follow()
        else:
            super().keyPressEvent(event)

    def _search_changed(self) -> None:
        text = self.search.text()
        count = 0
        if text:
            count = self.text.toPlainText().lower().count(text.lower())
        found = "not found"
        if count:
            found = f"{format_count(count)} found"
        self._matches.setText(found if text else "")
        if count:
            self.text.moveCursor(QTextCursor.MoveOperation.End)
            self.find_next(backward=True)

    def _scrolled(self, value: int) -> None:
        if value < self.text.verticalScrollBar().maximum():
            if not self.text.adding:
                self._stop_following()
        elif not self._following and not self.text.textCursor().hasSelection():
            self.follow()

    def _stop_following(self) -> None:
        self._following = False
        self._show_status()

    def _to_end(self) -> None:
        bar = self.text.verticalScrollBar()
        bar.setValue(bar.maximum())

    def _show_status(self) -> None:
        left_out = ""
        if self._left_out:
            left_out = _left_out(self._left_out)
        if self._following:
            state = ""
        elif self._behind:
            state = f"Paused, {_lines(self._behind)} behind"
        else:
            state = "Paused"
        text = " · ".join(filter(None, (self._program, left_out, state)))
        self.status.setText(text)
        self.follow_button.setVisible(not self._following)


class OutputText(QPlainTextEdit):
    """The lines, with "err" beside those from standard error."""

    def __init__(self) -> None:
        super().__init__()
        self._palette = DARK
        self.adding = False
        self.setReadOnly(True)
        self.setAcceptDrops(False)
        self.setUndoRedoEnabled(False)
        self.setMaximumBlockCount(MOST_LINES)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setProperty("role", "code")
        self.setPlaceholderText(EMPTY)
        self.setAccessibleName("Output of the program")
        self.setTabChangesFocus(True)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setViewportMargins(GUTTER_PX, 0, 0, 0)
        self._gutter = _Gutter(self)
        self.updateRequest.connect(self._scroll_gutter)

    @property
    def line_count(self) -> int:
        """Number of lines kept."""
        if self.document().isEmpty():
            return 0
        return self.blockCount()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self._gutter.update()

    def add(self, entries: Sequence[tuple[str, int]]) -> None:
        """Append (line, kind) pairs; the selection and the scroll position stay."""
        self.adding = True
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        for text, state in entries:
            cursor.movePosition(QTextCursor.MoveOperation.End)
            if not (self.document().isEmpty() and cursor.block().userState() < 0):
                cursor.insertBlock()
            cursor.insertText(text)
            cursor.block().setUserState(state)
        cursor.endEditBlock()
        self.adding = False

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        inside = self.contentsRect()
        self._gutter.setGeometry(QRect(inside.left(), inside.top(), GUTTER_PX, inside.height()))

    def _scroll_gutter(self, area: QRect, by: int) -> None:
        if by:
            self._gutter.scroll(0, by)
        else:
            self._gutter.update(0, area.y(), self._gutter.width(), area.height())

    def paint_gutter(self, event: QPaintEvent) -> None:
        """Paint "err" beside every visible line from standard error."""
        painter = QPainter(self._gutter)
        painter.fillRect(event.rect(), QColor(self._palette.field))
        small = self.font()
        small.setPointSizeF(max(6.0, small.pointSizeF() * 0.85))
        painter.setFont(small)
        block = self.firstVisibleBlock()
        top = self.blockBoundingGeometry(block).translated(self.contentOffset()).top()
        while block.isValid() and top <= event.rect().bottom():
            height = self.blockBoundingRect(block).height()
            if block.userState() == STDERR and block.isVisible():
                place = QRect(0, round(top), GUTTER_PX - 8, round(height))
                painter.setPen(QColor(self._palette.warn))
                painter.drawText(place, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, "err")
                painter.fillRect(GUTTER_PX - 5, round(top) + 1, 2, round(height) - 2, QColor(self._palette.warn))
            block, top = block.next(), top + height
        painter.end()


class _Gutter(QWidget):
    """The column left of the lines."""

    def __init__(self, text: OutputText) -> None:
        super().__init__(text)
        self._text = text

    def sizeHint(self) -> QSize:
        return QSize(GUTTER_PX, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        self._text.paint_gutter(event)


def _lines(count: int) -> str:
    if count == 1:
        return "1 line"
    return f"{format_count(count)} lines"


def _left_out(count: int) -> str:
    return f"{_lines(count)} {'was' if count == 1 else 'were'} left out"
