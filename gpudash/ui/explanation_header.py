"""The top of the explanation: the cause, the request, and what would have fitted."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QMenu, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from gpudash.devices import shown_name
from gpudash.memory.estimate_words import price
from gpudash.memory.explanation import Explanation, Remedy
from gpudash.units import format_bytes, format_clock

SHOWN_REMEDIES = 4
"""Remedies with a button of their own; the others are in the menu behind them."""

LOOKING = "Looking for what would have fitted…"


class ExplanationHeader(QFrame):
    """Sentences and buttons.

    Signals:
        applied: the `Remedy` to run again with.
        copy_requested: the report shall be copied.
        closed: back to the plots.
    """

    applied = Signal(object)
    copy_requested = Signal()
    closed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.title = _label("title", wraps=False)
        self.headline = _label("figure-small")
        self.headline.setStyleSheet("font-size: 13pt")
        self.request = _label("muted")
        self._remedies = QWidget()
        self._remedy_row = QHBoxLayout(self._remedies)
        self._remedy_row.setContentsMargins(0, 0, 0, 0)
        self._remedy_row.setSpacing(6)
        self._copy = _button("Copy report", "Copy the whole explanation as text", self.copy_requested.emit)
        self._close = _button("Back to the plots   Esc", "Leave the explanation (Esc)", self.closed.emit)
        head = QHBoxLayout()
        head.addWidget(self.title, 1)
        head.addWidget(self._copy)
        head.addWidget(self._close)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 6, 10, 8)
        column.setSpacing(3)
        column.addLayout(head)
        column.addWidget(self.headline)
        column.addWidget(self.request)
        column.addWidget(self._remedies)

    def show_explanation(self, found: Explanation, *, commanding: bool, looking: bool) -> None:
        """Show what ``found`` says.

        Args:
            commanding: whether a remedy can be applied here.
            looking: whether remedies are still looked for.
        """
        what = "MEMORY AT" if found.requested_bytes is None else "OUT OF MEMORY AT"
        product = "" if found.product in ("", "Simulated GPU") else f" · {found.product}"
        self.title.setText(f"{what} {format_clock(found.time_s)} · {shown_name(found.device)}{product}")
        self.headline.setText(found.headline)
        self.request.setText(found.request_words)
        self._show_remedies(found, commanding, looking)

    def _show_remedies(self, found: Explanation, commanding: bool, looking: bool) -> None:
        while self._remedy_row.count():
            item = self._remedy_row.takeAt(0)
            widget = item.widget() if item is not None else None
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        self._remedies.setVisible(found.requested_bytes is not None)
        if looking and not found.remedies:
            self._say(LOOKING)
        elif found.remedies:
            self._say("Would have fitted:")
            for remedy in found.remedies[:SHOWN_REMEDIES]:
                self._remedy_row.addWidget(self._remedy(remedy, commanding))
            if len(found.remedies) > SHOWN_REMEDIES:
                self._remedy_row.addWidget(self._more(found.remedies[SHOWN_REMEDIES:], commanding))
        if found.remedies_note and not looking:
            self._say(found.remedies_note)
        self._remedy_row.addStretch(1)

    def _say(self, words: str) -> None:
        label = _label("muted", wraps=False)
        label.setText(words)
        self._remedy_row.addWidget(label)

    def _remedy(self, remedy: Remedy, commanding: bool) -> QWidget:
        if not (commanding and applicable(remedy)):
            label = _label("figure-small", wraps=False)
            label.setText(remedy_words(remedy))
            label.setToolTip(remedy_tip(remedy))
            return label
        button = _button(remedy_words(remedy), f"Run again with it: {remedy_tip(remedy)}", lambda: None)
        button.clicked.connect(lambda _checked=False: self.applied.emit(remedy))
        return button

    def _more(self, remedies: tuple[Remedy, ...], commanding: bool) -> QPushButton:
        button = _button(f"{len(remedies)} more", "Other changes with which it would have fitted", lambda: None)
        menu = QMenu(button)
        menu.setToolTipsVisible(True)
        for remedy in remedies:
            action = menu.addAction(remedy_words(remedy))
            action.setToolTip(remedy_tip(remedy))
            action.setEnabled(commanding and applicable(remedy))
            action.triggered.connect(lambda _checked=False, remedy=remedy: self.applied.emit(remedy))
        button.setMenu(menu)
        return button


def applicable(remedy: Remedy) -> bool:
    """Whether a remedy can be had by changing the form."""
    return bool(remedy.fields) or remedy.device is not None


def remedy_words(remedy: Remedy) -> str:
    """The change and the peak it would have had."""
    peak = remedy.predicted_peak_bytes
    return remedy.change if peak is None else f"{remedy.change} ({format_bytes(peak)})"


def remedy_tip(remedy: Remedy) -> str:
    """How sure it is, what it costs and how the terminal takes it."""
    parts = [f"predicted by {remedy.verified_by}" if remedy.verified_by else "", price(remedy), remedy.flags]
    return "; ".join(part for part in parts if part)


def _label(role: str, *, wraps: bool = True) -> QLabel:
    label = QLabel()
    label.setProperty("role", role)
    label.setWordWrap(wraps)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
    return label


def _button(words: str, tip: str, act: Callable[[], object]) -> QPushButton:
    button = QPushButton(words)
    button.setToolTip(tip)
    button.clicked.connect(lambda _checked=False: act())
    return button
