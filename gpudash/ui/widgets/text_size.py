"""How large words are drawn: the system's size times a factor that the user chooses."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

SIZES = (1.0, 1.15, 1.3, 1.5)
"""What View > Text Size offers; lines become thicker from the size at which a pixel rounds up to two."""

_FACTOR, _BASE = "gpudashTextScale", "gpudashPointSize"
"""Properties of the application: the factor in force, and the size of its font without it, in points."""


def text_scale() -> float:
    """The factor in force; 1 is the system's own size."""
    app = QApplication.instance()
    value = None
    if app is not None:
        value = app.property(_FACTOR)
    if isinstance(value, (int, float)):
        return float(value)
    return 1.0


def set_text_scale(factor: float) -> None:
    """Draw every word of the application ``factor`` times as large as the system says; the style sheet is set anew by
    `gpudash.ui.widgets.theme.restyle`.
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
    """Logical pixels that hold words, at the text size in force."""
    return round(pixels * text_scale())
