"""Labels, buttons, search fields and text shortening that several parts of the window use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QLabel, QLayout, QLineEdit, QPushButton, QSizePolicy, QWidget

from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip


def title_label(text: str) -> QLabel:
    """The title of a panel."""
    return PlainLabel(text, role="title")


def worded_label(role: str, *, wraps: bool = True) -> PlainLabel:
    """A label with selectable text, styled for ``role``."""
    return _worded(PlainLabel(), role, wraps=wraps)


def wrapping_label(role: str) -> WrappingLabel:
    """A label with selectable text that wraps to any width, styled for ``role``."""
    return _worded(WrappingLabel(), role, wraps=True)


Label = TypeVar("Label", bound=QLabel)


def _worded(label: Label, role: str, *, wraps: bool) -> Label:
    label.setProperty("role", role)
    label.setWordWrap(wraps)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
    return label


def worded_button(
    text: str, tip: str, act: Callable[[], object], *, role: str = "", name: str = "", tab_only: bool = False
) -> QPushButton:
    """A button whose tooltip says what it does.

    Args:
        text: what it shows.
        tip: tooltip.
        act: called by a click.
        role: role in the style sheet.
        name: accessible name, if not the text.
        tab_only: a click leaves the focus where it is.
    """
    button = QPushButton(text)
    button.setToolTip(plain_tip(tip))
    button.clicked.connect(lambda _checked=False: act())
    if role:
        button.setProperty("role", role)
    if name:
        button.setAccessibleName(name)
    if tab_only:
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    return button


def set_role(widget: QWidget, role: str) -> None:
    """Set the role of a widget and apply the style sheet again."""
    if widget.property("role") == role:
        return
    widget.setProperty("role", role)
    polish_again(widget)


def polish_again(*widgets: QWidget) -> None:
    """Apply the style sheet again, after a change of a property by which it selects."""
    for widget in widgets:
        widget.style().unpolish(widget)
        widget.style().polish(widget)


def search_field(placeholder: str, name: str, tip: str = "") -> QLineEdit:
    """A line edit that searches or filters what is shown; ``name`` is its accessible name."""
    field = QLineEdit()
    field.setPlaceholderText(placeholder)
    field.setAccessibleName(name)
    field.setToolTip(plain_tip(tip))
    field.setClearButtonEnabled(True)
    return field


def discard(widgets: list[QWidget], layout: QLayout) -> None:
    """Remove ``widgets`` from ``layout``, delete them, and empty the list.

    The caller keeps the references: items taken from a layout are wrappers that outlive their widgets.
    """
    for widget in widgets:
        layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()
    widgets.clear()


def fitting_text(text: str, metrics: QFontMetrics, room: float) -> str:
    """As many words from the start of ``text`` as fit into ``room`` pixels, but at least the first."""
    for count in range(len(text.split(" ")), 1, -1):
        beginning = first_words(text, count)
        if metrics.horizontalAdvance(beginning) <= room:
            return beginning
    return first_words(text, 1)


def wrapped_text(text: str, metrics: QFontMetrics, room: float) -> str:
    """``text`` in lines that fit into ``room`` pixels; longer words are broken as by `with_line_breaks`."""
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
"""Logical pixels; in less room, no word is broken: a label that has not been laid out has no real width."""

BREAKS = "(,.=/_)"
"""A word that is too long is broken after one of these, if it has one in a suitable place."""


def with_line_breaks(text: str, metrics: QFontMetrics, room: float) -> str:
    """``text`` with newlines within each word that is wider than ``room`` pixels, such as a line of code."""
    return " ".join("\n".join(_pieces(word, metrics, room)) for word in text.split(" "))


def _pieces(word: str, metrics: QFontMetrics, room: float) -> Iterator[str]:
    while len(word) > 1 and metrics.horizontalAdvance(word) > room:
        fitting = next((n for n in range(len(word) - 1, 1, -1) if metrics.horizontalAdvance(word[:n]) <= room), 1)
        end = next((n for n in range(fitting, fitting // 2, -1) if word[n - 1] in BREAKS), fitting)
        yield word[:end]
        word = word[end:]
    yield word


class WrappingLabel(PlainLabel):
    """A label that wraps its text, also within words that are wider than the label.

    Attributes:
        full_text: the text as set, without the inserted newlines.
    """

    full_text = ""

    def setText(self, text: str) -> None:
        self.full_text = text
        self._break()

    def setWordWrap(self, on: bool) -> None:
        super().setWordWrap(on)
        self._break()

    def minimumSizeHint(self) -> QSize:
        """Computed as for short words: a word that is not broken yet must not widen the layout."""
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
    """The first ``count`` words of ``text``, without the punctuation that joins them to the next."""
    return " ".join(text.split(" ")[:count]).rstrip(" ·,")
