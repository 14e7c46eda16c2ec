"""Strings that are not ours, shown as they are: Qt takes a text for HTML as soon as it looks like some.

Names of devices, functions, files, processes and labels come from recordings, snapshots, servers and scripts. A label
that took ``<img src="/dev/zero">`` for an image would read that file until memory is gone. Every label of the window is
therefore a `PlainLabel`, and every tooltip, title and menu entry that is not a constant passes one of these functions.
"""

from __future__ import annotations

from html import escape

from PySide6.QtGui import Qt
from PySide6.QtWidgets import QLabel, QMessageBox, QWidget

LONGEST_TEXT = 20_000
"""Characters of a text that are shown, a screen full."""


def shortened(text: str) -> str:
    """``text``, with an ellipsis in place of what is beyond `LONGEST_TEXT`."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}…"


class PlainLabel(QLabel):
    """A label whose text is never HTML.

    Args:
        role: which of the style sheet's looks it has.
        wraps: whether its words go on in further lines.
        selectable: whether they can be selected with the mouse.
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
        """Show ``text``, of one of megabytes only the beginning: laying it out would take the window minutes."""
        super().setText(shortened(text))


def plain_tip(text: str) -> str:
    """``text`` as a tooltip that reads the same: tooltips have no text format, what looks like HTML is escaped."""
    text = shortened(text)
    if Qt.mightBeRichText(text):
        return f'<p style="white-space: pre-wrap">{escape(text)}</p>'
    return text


def without_mnemonics(text: str) -> str:
    """``text`` for a button, a tab or a menu, where a single ``&`` would underline what follows."""
    return text.replace("&", "&&")


def plain_title(text: str) -> str:
    """``text`` as a window's title, in which ``[*]`` would stand for "changed" and a line's end would cut it."""
    return " ".join(text.split()).replace("[*]", "[*][*]")


def plain_notification(text: str) -> str:
    """``text`` for the desktop's notifications: most read HTML, others show entities as they are."""
    return text.replace("<", "‹").replace(">", "›").replace("&", "＆")


def message_box(parent: QWidget | None, icon: QMessageBox.Icon, title: str, text: str) -> QMessageBox:
    """A box that says ``text``, without buttons as yet."""
    box = QMessageBox(icon, title, "", QMessageBox.StandardButton.NoButton, parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setText(shortened(text))
    return box
