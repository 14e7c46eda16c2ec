"""Labels, buttons and shortened words that several parts of the window use."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QLabel, QLayout, QPushButton, QSizePolicy, QWidget

from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip


def title_label(words: str) -> QLabel:
    """The title of a pane."""
    label = PlainLabel(words)
    label.setProperty("role", "title")
    return label


def worded_label(role: str, *, wraps: bool = True) -> QLabel:
    """A label whose words can be selected, in the look of ``role``."""
    label = PlainLabel()
    label.setProperty("role", role)
    label.setWordWrap(wraps)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
    return label


def worded_button(words: str, tip: str, act: Callable[[], object]) -> QPushButton:
    """A button that says in its tooltip what it does."""
    button = QPushButton(words)
    button.setToolTip(plain_tip(tip))
    button.clicked.connect(lambda _checked=False: act())
    return button


def discard(widgets: list[QWidget], layout: QLayout) -> None:
    """Take ``widgets`` out of ``layout`` for good and empty the list.

    They are known by reference: what a layout gives out of itself is an item whose wrapper outlives it.
    """
    for widget in widgets:
        layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()
    widgets.clear()


def whole_words(text: str, metrics: QFontMetrics, room: float) -> str:
    """As many words from the beginning of ``text`` as fit into ``room`` pixels, and always the first."""
    for count in range(len(text.split(" ")), 1, -1):
        words = first_words(text, count)
        if metrics.horizontalAdvance(words) <= room:
            return words
    return first_words(text, 1)


def first_words(text: str, count: int) -> str:
    """The first ``count`` words of ``text``, without what joins them to the next."""
    return " ".join(text.split(" ")[:count]).rstrip(" ·,")
