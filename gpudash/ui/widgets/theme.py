"""The two looks of the window in force: the application's colours, and each window's style sheet.

Qt's own colour scheme is asked for as well, but many platforms ignore it, so nothing depends on it.
"""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication, QWidget

from gpudash.ui.colours import DARK, LIGHT, Palette
from gpudash.ui.widgets.stylesheet import style_sheet
from gpudash.ui.widgets.text_size import set_text_scale

Choice = Literal["system", "light", "dark"]


STYLE = "Fusion"
"""Qt's own style: it looks the same on every system."""


class PaintedWidget(QWidget):
    """A widget that paints itself, in colours that no style sheet gives it."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self.update()


def chosen_palette(app: QGuiApplication, choice: Choice) -> Palette:
    """The palette for a choice; "system" is dark only where the system says so."""
    if choice == "system":
        if app.styleHints().colorScheme() is Qt.ColorScheme.Dark:
            return DARK
        return LIGHT
    if choice == "dark":
        return DARK
    return LIGHT


def apply_colours(app: QApplication, choice: Choice) -> Palette:
    """Give the whole application its style and its colours; the style sheet is given to each window by `dress`.

    Args:
        app: the application.
        choice: the user's setting.

    Returns:
        The palette in force, for what is painted by hand.
    """
    if choice == "system":
        app.styleHints().unsetColorScheme()
    palette = chosen_palette(app, choice)
    if choice != "system":
        app.styleHints().setColorScheme(Qt.ColorScheme.Dark if palette.dark else Qt.ColorScheme.Light)
    app.setStyleSheet("")
    if app.style().name().lower() != STYLE.lower():  # setting it again takes a second where a window has a style sheet
        app.setStyle(STYLE)
    app.setPalette(qt_palette(palette))
    return palette


def apply_theme(app: QApplication, choice: Choice) -> Palette:
    """`apply_colours`, with the style sheet for everything: for parts that are shown outside a main window."""
    palette = apply_colours(app, choice)
    app.setStyleSheet(style_sheet(palette))
    return palette


def dress(window: QWidget, palette: Palette) -> None:
    """Give a window, and the dialogs and menus that belong to it, its style sheet.

    It is the window's and not the application's: with one of the application in force Qt goes through all of a part
    again each time that it is put into another, which made opening a tab three times as long.
    """
    window.setStyleSheet("")  # Qt takes five times as long to put one style sheet in the place of another
    window.setStyleSheet(style_sheet(palette))


def restyle(window: QWidget, palette: Palette, scale: float) -> None:
    """Draw every word ``scale`` times as large as the system says, and ``window`` in the colours of ``palette``."""
    set_text_scale(scale)  # before the old sheet goes: parts without one would keep their font until the next change
    dress(window, palette)


def qt_palette(palette: Palette) -> QPalette:
    """``palette`` in Qt's roles."""
    result = QPalette()
    role = QPalette.ColorRole
    for name, colour in (
        (role.Window, palette.window),
        (role.WindowText, palette.text),
        (role.Base, palette.field),
        (role.AlternateBase, palette.panel),
        (role.Text, palette.text),
        (role.Button, palette.button),
        (role.ButtonText, palette.text),
        (role.BrightText, palette.critical),
        (role.ToolTipBase, palette.panel),
        (role.ToolTipText, palette.text),
        (role.PlaceholderText, palette.muted),
        (role.Highlight, palette.accent),
        (role.HighlightedText, palette.on_accent),
        (role.Link, palette.accent),
        (role.LinkVisited, palette.accent),
        (role.Light, palette.button_hover),
        (role.Midlight, palette.border),
        (role.Mid, palette.border),
        (role.Dark, palette.border),
        (role.Shadow, palette.border),
    ):
        result.setColor(name, QColor(colour))
    for name in (role.WindowText, role.Text, role.ButtonText):
        result.setColor(QPalette.ColorGroup.Disabled, name, QColor(palette.muted))
    return result


class ThemeFollower(QObject):
    """Keeps the application in the chosen colours, and in the system's where that was chosen.

    Signals:
        changed: the new `Palette`, after it was applied.
    """

    changed = Signal(object)

    def __init__(self, app: QApplication, choice: Choice, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._app = app
        self._choice: Choice = choice
        self._palette = apply_colours(app, choice)
        app.styleHints().colorSchemeChanged.connect(self._system_changed)

    @property
    def palette(self) -> Palette:
        """The palette in force."""
        return self._palette

    @property
    def choice(self) -> Choice:
        """What the user asked for."""
        return self._choice

    def choose(self, choice: Choice) -> None:
        """Apply another choice now."""
        self._choice = choice
        self._set(apply_colours(self._app, choice))

    def _system_changed(self) -> None:
        if self._choice == "system" and chosen_palette(self._app, "system") is not self._palette:
            self._set(apply_colours(self._app, "system"))

    def _set(self, palette: Palette) -> None:
        changed = palette is not self._palette
        self._palette = palette
        if changed:
            self.changed.emit(palette)
