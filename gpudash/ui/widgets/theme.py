"""Applying the dark or light theme: the application's colours, and each window's style sheet.

Qt's own colour scheme is requested as well, but many platforms ignore it, so nothing depends on it.
"""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QKeyEvent, QPalette
from PySide6.QtWidgets import QAbstractButton, QApplication, QWidget

from gpudash.ui.colours import DARK, LIGHT, Palette, luminance
from gpudash.ui.widgets.stylesheet import style_sheet
from gpudash.ui.widgets.text_size import set_text_scale

Choice = Literal["system", "light", "dark"]


STYLE = "Fusion"
"""Qt's own style, which looks the same on every system."""


class PaintedWidget(QWidget):
    """A widget that paints itself in the palette's colours, independent of any style sheet."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self.update()


class PaintedButton(QAbstractButton):
    """A button that paints itself; Enter clicks it, as Space does."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.click()
        else:
            super().keyPressEvent(event)


def palette_of(widget_palette: QPalette) -> Palette:
    """The palette of the theme in which a widget is drawn, recognised by the colour of its window."""
    if luminance(widget_palette.color(QPalette.ColorRole.Window).name()) < 0.5:
        return DARK
    return LIGHT


def chosen_palette(app: QGuiApplication, choice: Choice) -> Palette:
    """The palette for a choice; "system" is dark only if the system reports a dark scheme."""
    if choice == "system":
        if app.styleHints().colorScheme() is Qt.ColorScheme.Dark:
            return DARK
        return LIGHT
    if choice == "dark":
        return DARK
    return LIGHT


def apply_colours(app: QApplication, choice: Choice) -> Palette:
    """Set the style and colours of the whole application; `dress` sets the style sheet of each window.

    Args:
        app: the application.
        choice: the user's setting.

    Returns:
        The palette, for what is painted by hand.
    """
    if choice == "system":
        app.styleHints().unsetColorScheme()
    palette = chosen_palette(app, choice)
    if choice != "system":
        app.styleHints().setColorScheme(Qt.ColorScheme.Dark if palette.dark else Qt.ColorScheme.Light)
    app.setStyleSheet("")
    if app.style().name().lower() != STYLE.lower():  # setting it again takes a second if a window has a style sheet
        app.setStyle(STYLE)
    app.setPalette(qt_palette(palette))
    return palette


def apply_theme(app: QApplication, choice: Choice) -> Palette:
    """Like `apply_colours`, with an application-wide style sheet: for widgets shown outside a main window."""
    palette = apply_colours(app, choice)
    app.setStyleSheet(style_sheet(palette))
    return palette


def dress(window: QWidget, palette: Palette) -> None:
    """Set the style sheet of a window and of its dialogs and menus.

    The style sheet belongs to the window, not to the application: with an application style sheet, Qt polishes a
    widget's whole subtree whenever it is reparented, which made opening a tab take three times as long.
    """
    window.setStyleSheet(style_sheet(palette))


def restyle(window: QWidget, palette: Palette, scale: float) -> None:
    """Set the text size to ``scale`` times the system's, and apply ``palette`` to ``window``."""
    set_text_scale(scale)  # before the sheet is replaced, or unstyled parts keep their font until the next change
    window.setStyleSheet("")  # or hidden parts keep the sizes of their earlier text
    dress(window, palette)


def qt_palette(palette: Palette) -> QPalette:
    """``palette`` mapped to Qt's colour roles."""
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
    """Keeps the application in the chosen theme, following the system if that was chosen.

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
        """The current palette."""
        return self._palette

    @property
    def choice(self) -> Choice:
        """The user's choice."""
        return self._choice

    def choose(self, choice: Choice) -> None:
        """Apply another choice."""
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
