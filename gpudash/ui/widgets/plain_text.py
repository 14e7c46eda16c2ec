"""Showing foreign strings verbatim: Qt interprets a text as HTML as soon as it looks like HTML.

Names of devices, functions, files, processes and labels come from recordings, snapshots, servers and scripts. A label
that took ``<img src="/dev/zero">`` for an image would read that file until memory is exhausted. So every label of the
window is a `PlainLabel`, and every tooltip, title and menu entry that is not a constant goes through one of these
functions.
"""

from __future__ import annotations

from html import escape

from PySide6.QtGui import Qt
from PySide6.QtWidgets import QLabel, QMessageBox, QWidget

LONGEST_TEXT = 20_000
"""Maximum number of characters shown of a text; about a screenful."""


def shortened(text: str) -> str:
    """``text``, with an ellipsis in place of everything beyond `LONGEST_TEXT`."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}…"


class PlainLabel(QLabel):
    """A label whose text is never HTML.

    Args:
        role: role in the style sheet.
        wraps: whether the text wraps.
        selectable: whether the text can be selected with the mouse.
    """

    def __init__(
        self,
        text: str = "",
        parent: QWidget | None = None,
        *,
        role: str = "",
        wraps: bool = False,
        selectable: bool = False,
    ) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(text)
        if role:
            self.setProperty("role", role)
        if wraps:
            self.setWordWrap(True)
        if selectable:
            self.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)

    def setText(self, text: str) -> None:
        """Show ``text``, cut to `LONGEST_TEXT`: laying out megabytes would freeze the window for minutes."""
        super().setText(shortened(text))


def plain_tip(text: str) -> str:
    """``text`` as a tooltip. Tooltips have no text format, so what looks like HTML is escaped."""
    text = shortened(text)
    if Qt.mightBeRichText(text):
        return f'<p style="white-space: pre-wrap">{escape(text)}</p>'
    return text


def without_mnemonics(text: str) -> str:
    """``text`` for a button, a tab or a menu, where a single ``&`` would underline the next letter."""
    return text.replace("&", "&&")


def plain_title(text: str) -> str:
    """``text`` as a window title, in which ``[*]`` would mean "modified" and a newline would cut it off."""
    return " ".join(text.split()).replace("[*]", "[*][*]")


def plain_notification(text: str) -> str:
    """``text`` for desktop notifications: most servers read HTML, others show entities literally."""
    return text.replace("<", "‹").replace(">", "›").replace("&", "＆")


def message_box(parent: QWidget | None, icon: QMessageBox.Icon, title: str, text: str) -> QMessageBox:
    """A message box with ``text``, without buttons so far."""
    box = QMessageBox(icon, title, "", QMessageBox.StandardButton.NoButton, parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setText(shortened(text))
    return box
