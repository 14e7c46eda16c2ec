"""The text size: the system's font size times a factor that the user chooses."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

SIZES = (1.0, 1.25, 1.5, 2.0)
"""Factors offered by View > Text Size; from 1.5, lines are two pixels wide because widths are rounded."""

_FACTOR, _BASE = "gpudashTextScale", "gpudashPointSize"
"""Properties of the application: the current factor, and its font size without it, in points."""


def text_scale() -> float:
    """The current factor; 1 is the system's font size."""
    app = QApplication.instance()
    value = None
    if app is not None:
        value = app.property(_FACTOR)
    if isinstance(value, (int, float)):
        return float(value)
    return 1.0


def set_text_scale(factor: float) -> None:
    """Set the text size of the application to ``factor`` times the system's. `gpudash.ui.widgets.theme.restyle` also
    updates the style sheet.
    """
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    font = app.font()
    base = app.property(_BASE)
    if not isinstance(base, (int, float)):
        base = font.pointSizeF()
        app.setProperty(_BASE, base)
    app.setProperty(_FACTOR, float(factor))
    font.setPointSizeF(float(base) * factor)
    app.setFont(font)


def scaled(pixels: float) -> int:
    """``pixels`` scaled by the current text size, for sizes that must fit text."""
    return round(pixels * text_scale())
