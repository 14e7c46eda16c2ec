"""Colours that are mixed from those of a palette."""

from __future__ import annotations

from PySide6.QtGui import QColor

from gpudash.ui.theme import contrast

DARK_TEXT, LIGHT_TEXT = "#0c1116", "#ffffff"


def mixed(colour: QColor, ground: QColor, share: float) -> QColor:
    """``colour`` with ``share`` of ``ground``, 0 to 1."""
    own = 1 - share
    return QColor(
        round(colour.red() * own + ground.red() * share),
        round(colour.green() * own + ground.green() * share),
        round(colour.blue() * own + ground.blue() * share),
    )


def text_on(ground: QColor) -> QColor:
    """Dark or light, whichever can be read better."""
    return QColor(max(DARK_TEXT, LIGHT_TEXT, key=lambda words: contrast(words, ground.name())))
