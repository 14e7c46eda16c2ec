"""Help > Log: the end of gpudash's log, as plain text."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication, QTextCursor
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QPlainTextEdit, QWidget

from gpudash.session.live.bug_report import newest_log
from gpudash.system.folders import log_file
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel

SHOWN_BYTES = 500_000
"""Bytes of the log to show; a log file has at most twice as many."""

SIZE = (980, 640)
"""Initial size in logical pixels."""

EMPTY = "Nothing has been logged yet."


class LogView(QDialog):
    """The log, scrolled to its newest record. Belongs to Qt's thread.

    Attributes:
        text: the log.
        problem: why there is no log; hidden otherwise.
        buttons: "Copy All", "Show in Folder", "Refresh" and "Close".
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Log")
        where = PlainLabel(str(log_file()), role="muted", wraps=True, selectable=True)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setUndoRedoEnabled(False)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setProperty("role", "code")
        self.text.setPlaceholderText(EMPTY)
        self.text.setAccessibleName("Log")
        self.problem = PlainLabel(wraps=True)
        self.buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        for title, act in (("Copy All", self.copy), ("Show in Folder", _show_folder), ("Refresh", self.refresh)):
            button = self.buttons.addButton(title, QDialogButtonBox.ButtonRole.ActionRole)
            button.clicked.connect(act)
        self.buttons.rejected.connect(self.reject)
        in_column(where, (self.text, 1), self.problem, self.buttons, parent=self)
        room = self.screen().availableSize()
        self.resize(QSize(*SIZE).boundedTo(room))
        self.refresh()

    def refresh(self) -> None:
        """Read the log again and show its end."""
        try:
            text, problem = newest_log(SHOWN_BYTES), ""
        except OSError as error:
            text, problem = "", f"The log cannot be read: {error.strerror}."
        self.text.setPlainText(text)
        self.text.moveCursor(QTextCursor.MoveOperation.End)
        self.text.moveCursor(QTextCursor.MoveOperation.StartOfLine)
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))

    def copy(self) -> None:
        """Copy the text shown."""
        QGuiApplication.clipboard().setText(self.text.toPlainText())


def _show_folder() -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(log_file().parent)))
