"""The two looks of the window: palettes, and the style sheet filled from them.

The curve colours follow Okabe and Ito's colour-blind-safe set (https://jfly.uni-koeln.de/color/), darkened for the
light theme and lightened for the dark one until each reaches a contrast of 3:1 on its panel; text reaches 4.5:1 (WCAG
2.1, 1.4.3 and 1.4.11). Qt's own colour scheme is asked for as well, but many platforms ignore it, so nothing depends
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication, QWidget

from gpudash.ui.widgets.stylesheet import style_sheet
from gpudash.ui.widgets.text_size import set_text_scale

Choice = Literal["system", "light", "dark"]


STYLE = "Fusion"
"""Qt's own style: it looks the same on every system."""

DARK_TEXT, LIGHT_TEXT = "#0c1116", "#ffffff"
"""Of words on a coloured ground."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one theme, as "#rrggbb".

    Attributes:
        name: which theme this is.
        window, panel, field: grounds, from the back to the front; `field` is what text is typed on.
        border, grid: lines; `grid` is the fainter.
        text, muted: words; both reach 4.5:1 on every ground.
        accent, good, warn, critical: meanings, readable as text on `panel`.
        banner_note, banner_warn, banner_critical: grounds of the banner by level.
        button: ground of a button; `on_accent` is text on `accent`.
        curves: colour of each named curve, 3:1 on `panel`.
    """

    name: Literal["light", "dark"]
    window: str
    panel: str
    field: str
    border: str
    grid: str
    text: str
    muted: str
    accent: str
    on_accent: str
    good: str
    warn: str
    critical: str
    banner_note: str
    banner_warn: str
    banner_critical: str
    button: str
    button_hover: str
    curves: Mapping[str, str]

    @property
    def dark(self) -> bool:
        """Whether text is light on a dark ground."""
        return self.name == "dark"


def _curves(
    sky: str,
    blue: str,
    green: str,
    orange: str,
    purple: str,
    yellow: str,
    brown: str,
    red: str,
    grey: str,
    faint: str,
    slate: str,
    violet: str,
) -> Mapping[str, str]:
    return MappingProxyType(
        {
            "allocated": sky,
            "idle": blue,
            "context": grey,
            "other": faint,
            "process": sky,
            "cache": blue,
            "free": faint,
            "used": sky,
            "reserved": blue,
            "h2d": green,
            "d2h": purple,
            "h2h": sky,
            "d2d": yellow,
            "gpu": sky,
            "memory_controller": yellow,
            "cpu": green,
            "process_cpu": purple,
            "loss": orange,
            "accuracy": green,
            "throughput": sky,
            "temperature": red,
            "power": yellow,
            "capacity": red,
            "warning": orange,
            "forecast": orange,
            "link": grey,
            "reference": grey,
            "weights": sky,
            "gradients": orange,
            "optimizer state": purple,
            "activations": green,
            "inputs": yellow,
            "temporary": brown,
            "workspace": faint,
            "KV cache": red,
            "no stack recorded": slate,
            "other tensors": violet,
        }
    )


DARK = Palette(
    name="dark",
    window="#14181d",
    panel="#1b2027",
    field="#12161b",
    border="#323a45",
    grid="#2b323b",
    text="#e6e9ed",
    muted="#a3acb8",
    accent="#56b4e9",
    on_accent="#0c1116",
    good="#2fc292",
    warn="#eda81c",
    critical="#ff7468",
    banner_note="#1d2b38",
    banner_warn="#3a2c10",
    banner_critical="#43201d",
    button="#262d37",
    button_hover="#303946",
    curves=_curves(
        sky="#56b4e9",
        blue="#3d76a6",
        green="#25b388",
        orange="#eda81c",
        purple="#d98cb8",
        yellow="#f0e442",
        brown="#b08d6a",
        red="#ff7468",
        grey="#98a2ae",
        faint="#6f7a87",
        slate="#4f8388",
        violet="#9a90e0",
    ),
)

LIGHT = Palette(
    name="light",
    window="#eef1f4",
    panel="#ffffff",
    field="#ffffff",
    border="#c3cad3",
    grid="#e4e8ed",
    text="#1a2027",
    muted="#545f6c",
    accent="#0b6bb0",
    on_accent="#ffffff",
    good="#087a55",
    warn="#8f5a00",
    critical="#c0281f",
    banner_note="#dcebf7",
    banner_warn="#fdf0d3",
    banner_critical="#fbdfdc",
    button="#f4f6f8",
    button_hover="#e6ebf0",
    curves=_curves(
        sky="#3089cc",
        blue="#12507f",
        green="#008560",
        orange="#b87300",
        purple="#b0528a",
        yellow="#8c7d00",
        brown="#8a6746",
        red="#d03a2f",
        grey="#6b7683",
        faint="#8a95a2",
        slate="#5f8f96",
        violet="#6a5cc0",
    ),
)


def chosen_palette(app: QGuiApplication, choice: Choice) -> Palette:
    """The palette for a choice; "system" is dark only where the system says so."""
    if choice == "system":
        return DARK if app.styleHints().colorScheme() is Qt.ColorScheme.Dark else LIGHT
    return DARK if choice == "dark" else LIGHT


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


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", 0 to 1 (WCAG 2.1)."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear: Callable[[float], float] = lambda c: c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4  # noqa: E731
    red, green, blue = map(linear, channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.1)."""
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def text_on(ground: QColor) -> QColor:
    """Dark or light text, whichever can be read better on ``ground``."""
    return QColor(max(DARK_TEXT, LIGHT_TEXT, key=lambda words: contrast(words, ground.name())))


def mixed(colour: QColor, ground: QColor, share: float) -> QColor:
    """``colour`` with ``share`` of ``ground``, 0 to 1."""
    own = 1 - share
    return QColor(
        round(colour.red() * own + ground.red() * share),
        round(colour.green() * own + ground.green() * share),
        round(colour.blue() * own + ground.blue() * share),
    )
