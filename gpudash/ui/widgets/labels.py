"""Labels, buttons, search fields and shortened words that several parts of the window use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QLabel, QLayout, QLineEdit, QPushButton, QSizePolicy, QWidget

from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip


def title_label(text: str) -> QLabel:
    """The title of a pane."""
    return PlainLabel(text, role="title")


def worded_label(role: str, *, wraps: bool = True) -> PlainLabel:
    """A label whose words can be selected, in the look of ``role``."""
    return _worded(PlainLabel(), role, wraps=wraps)


def wrapping_label(role: str) -> WrappingLabel:
    """A label whose words can be selected and are read whole in a narrow place too, in the look of ``role``."""
    return _worded(WrappingLabel(), role, wraps=True)


Label = TypeVar("Label", bound=QLabel)


def _worded(label: Label, role: str, *, wraps: bool) -> Label:
    label.setProperty("role", role)
    label.setWordWrap(wraps)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
    return label


def worded_button(text: str, tip: str, act: Callable[[], object]) -> QPushButton:
    """A button that says in its tooltip what it does."""
    button = QPushButton(text)
    button.setToolTip(plain_tip(tip))
    button.clicked.connect(lambda _checked=False: act())
    return button


def set_role(widget: QWidget, role: str) -> None:
    """Give a widget another of the style sheet's looks."""
    if widget.property("role") == role:
        return
    widget.setProperty("role", role)
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def search_field(placeholder: str, name: str, tip: str = "") -> QLineEdit:
    """A field that what is shown is searched or narrowed by; ``name`` is read out to who cannot see it."""
    field = QLineEdit()
    field.setPlaceholderText(placeholder)
    field.setAccessibleName(name)
    field.setToolTip(plain_tip(tip))
    field.setClearButtonEnabled(True)
    return field


def discard(widgets: list[QWidget], layout: QLayout) -> None:
    """Take ``widgets`` out of ``layout`` for good and empty the list.

    They are known by reference: what a layout gives out of itself is an item whose wrapper outlives it.
    """
    for widget in widgets:
        layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()
    widgets.clear()


def fitting_text(text: str, metrics: QFontMetrics, room: float) -> str:
    """As many words from the beginning of ``text`` as fit into ``room`` pixels, and always the first."""
    for count in range(len(text.split(" ")), 1, -1):
        beginning = first_words(text, count)
        if metrics.horizontalAdvance(beginning) <= room:
            return beginning
    return first_words(text, 1)


def wrapped_text(text: str, metrics: QFontMetrics, room: float) -> str:
    """``text`` in lines that fit into ``room`` pixels; longer words are broken, as `with_line_breaks` does."""
    lines: list[str] = []
    for word in with_line_breaks(text, metrics, room).replace("\n", " \n").split(" "):
        longer = word
        if lines:
            longer = f"{lines[-1]} {word}"
        if word.startswith("\n"):
            lines.append(word[1:])
        elif lines and metrics.horizontalAdvance(longer) > room:
            lines.append(word)
        else:
            lines[-1:] = [longer]
    return "\n".join(lines)


LEAST_PIECE_PX = 60
"""Logical pixels below which no word is broken: a label that has not been laid out has no width to go by."""

BREAKS = "(,.=/_)"
"""Behind these a word that is too long goes on in the next line, where one of them is."""


def with_line_breaks(text: str, metrics: QFontMetrics, room: float) -> str:
    """``text`` with a new line within each word that is wider than ``room`` pixels, such as a line of a program."""
    return " ".join("\n".join(_pieces(word, metrics, room)) for word in text.split(" "))


def _pieces(word: str, metrics: QFontMetrics, room: float) -> Iterator[str]:
    while len(word) > 1 and metrics.horizontalAdvance(word) > room:
        fitting = next((n for n in range(len(word) - 1, 1, -1) if metrics.horizontalAdvance(word[:n]) <= room), 1)
        end = next((n for n in range(fitting, fitting // 2, -1) if word[n - 1] in BREAKS), fitting)
        yield word[:end]
        word = word[end:]
    yield word


class WrappingLabel(PlainLabel):
    """A label whose words wrap, also within one that is wider than the label is.

    Attributes:
        full_text: as it was given, without the ends of lines that break it.
    """

    full_text = ""

    def setText(self, text: str) -> None:
        self.full_text = text
        self._break()

    def setWordWrap(self, on: bool) -> None:
        super().setWordWrap(on)
        self._break()

    def minimumSizeHint(self) -> QSize:
        """As for words that are short: one that is not broken yet must not make the place wider than it is."""
        hint = super().minimumSizeHint()
        if self.wordWrap():
            return hint.boundedTo(QSize(LEAST_PIECE_PX, hint.height()))
        return hint

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._break()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._break()

    def _break(self) -> None:
        broken = self.full_text
        if self.wordWrap():
            broken = with_line_breaks(self.full_text, self.fontMetrics(), max(LEAST_PIECE_PX, self.width()))
        if broken != self.text():
            super().setText(broken)


def first_words(text: str, count: int) -> str:
    """The first ``count`` words of ``text``, without what joins them to the next."""
    return " ".join(text.split(" ")[:count]).rstrip(" ·,")
