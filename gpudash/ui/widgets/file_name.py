"""The name of a file that is to be written, with its suffix, where the user left that out."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QMessageBox, QWidget

from gpudash.ui.widgets.plain_text import message_box


def completed(parent: QWidget, title: str, chosen: str, suffix: str) -> Path | None:
    """The file that a dialog answered with, ``suffix`` added where it has none; ``None`` when nothing is to be written.

    The dialog has asked about a file of the name that was typed. One of the name that was completed is asked for here.
    """
    if not chosen:
        return None
    path = Path(chosen)
    if path.suffix:
        return path
    path = path.with_name(path.name + suffix)
    if path.exists():
        question = f"{path} exists already. Replace it?"
        yes, no = QMessageBox.StandardButton.Yes, QMessageBox.StandardButton.No
        box = message_box(parent, QMessageBox.Icon.Question, title, question)
        box.setStandardButtons(yes | no)
        box.setDefaultButton(no)
        if box.exec() != yes:
            return None
    return path
