"""Labels and buttons as the pages that explain memory use them."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton, QSizePolicy


def title_label(words: str) -> QLabel:
    """The title of a pane."""
    label = QLabel(words)
    label.setProperty("role", "title")
    return label


def worded_label(role: str, *, wraps: bool = True) -> QLabel:
    """A label whose words can be selected, in the look of ``role``."""
    label = QLabel()
    label.setProperty("role", role)
    label.setWordWrap(wraps)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
    return label


def worded_button(words: str, tip: str, act: Callable[[], object]) -> QPushButton:
    """A button that says in its tooltip what it does."""
    button = QPushButton(words)
    button.setToolTip(tip)
    button.clicked.connect(lambda _checked=False: act())
    return button
