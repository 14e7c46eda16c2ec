"""One change that would need less memory, with its price and the button that makes it."""

from __future__ import annotations

import shlex
import sys

from PySide6.QtCore import Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gpudash.devices import shown_name
from gpudash.memory.allocator.environment import assignment
from gpudash.memory.estimate import Alternative
from gpudash.memory.estimate_words import change_words, fit_words, price
from gpudash.units import format_bytes

_LOOKS = {True: ("good", "✓"), False: ("error", "✕"), None: ("warn", "≈")}


class AlternativeRow(QWidget):
    """The change, its predicted peak and price; the button where the form can make it.

    Signals:
        applied: the `Alternative`, when its button was pressed.
    """

    applied = Signal(object)

    def __init__(self, alternative: Alternative, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.alternative = alternative
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        role, sign = _LOOKS[alternative.fits]
        mark = QLabel(sign)
        mark.setProperty("role", role)
        mark.setFixedWidth(12)
        mark.setToolTip(fit_words(alternative.fits))
        change = QLabel(change_words(alternative))
        change.setWordWrap(True)
        told = QLabel(_told(alternative))
        told.setProperty("role", "legend")
        told.setWordWrap(True)
        words = QVBoxLayout()
        words.setSpacing(0)
        words.addWidget(change)
        words.addWidget(told)
        row.addWidget(mark)
        row.addLayout(words, 1)
        self.button = self._make_button()
        if self.button is not None:
            row.addWidget(self.button)
        self.setAccessibleName(f"{change_words(alternative)}: {fit_words(alternative.fits)}; {_told(alternative)}")

    def _make_button(self) -> QPushButton | None:
        """Applies the alternative, or copies how to start with it; ``None`` where neither can be done from here."""
        alternative = self.alternative
        if alternative.allocator:
            start = start_words(alternative.allocator)
            button = QPushButton("Copy")
            button.setToolTip(f"Copy the command that starts so:\n{start}")
            button.clicked.connect(lambda: QGuiApplication.clipboard().setText(start))
        elif alternative.fields or alternative.device is not None:
            button = QPushButton("Apply")
            button.setToolTip(_apply_words(alternative))
            button.clicked.connect(lambda: self.applied.emit(alternative))
        else:
            return None
        button.setProperty("role", "chip")
        button.setAccessibleName(f"{button.text()}: {change_words(alternative)}")
        return button

    def set_locked(self, locked: bool) -> None:
        """Whether the form can be changed now."""
        if self.button is not None and not self.alternative.allocator:
            self.button.setEnabled(not locked)


def start_words(setting: str) -> str:
    """The command that starts this process anew, GPUs to simulate included, with a setting of the allocator."""
    return f"{assignment(setting)} {shlex.join(['gpudash', *sys.argv[1:]])}"


def _told(alternative: Alternative) -> str:
    parts = [format_bytes(alternative.peak_reserved_bytes), price(alternative)]
    if alternative.allocator:
        parts.append("gpudash has to be started with it")
    return " · ".join(part for part in parts if part)


def _apply_words(alternative: Alternative) -> str:
    if alternative.device is not None:
        return f"Choose {shown_name(alternative.device)}"
    changes = (f"{name.replace('_', ' ')} {value}" for name, value in alternative.fields.items())
    return f"Set {', '.join(changes)}"
