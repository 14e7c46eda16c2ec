"""The colours of the window: a palette per theme, and functions on colours.

The curve colours follow Okabe and Ito's colour-blind-safe set (https://jfly.uni-koeln.de/color/), darkened for the
light theme and lightened for the dark one until each reaches a contrast of 3:1 on its panel; text reaches 4.5:1 (WCAG
2.1, 1.4.3 and 1.4.11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from PySide6.QtGui import QColor

DARK_TEXT, LIGHT_TEXT = "#0c1116", "#ffffff"
"""Text on a coloured background."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one theme, as "#rrggbb".

    Attributes:
        name: which theme this is.
        window, panel, field: backgrounds, from back to front; `field` is for input fields.
        border, grid: lines; `grid` is the fainter one.
        text, muted: text; both have a contrast of 4.5:1 on every background.
        accent, good, warn, critical: colours with a meaning, readable as text on `panel`.
        banner_note, banner_warn, banner_critical: background of the banner by level.
        button: background of a button; `on_accent` is text on `accent`.
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
        """Whether text is light on a dark background."""
        return self.name == "dark"


def _curves(
    sky: str,
    blue: str,
    cyan: str,
    green: str,
    lime: str,
    sage: str,
    orange: str,
    purple: str,
    yellow: str,
    brown: str,
    red: str,
    grey: str,
    faint: str,
    stone: str,
    violet: str,
    text: str,
) -> Mapping[str, str]:
    """The colour of each curve. Of memory, no total has that of a category: both are seen in one window."""
    return MappingProxyType(
        {
            "allocated": cyan,
            "idle": blue,
            "context": grey,
            "other": stone,
            "process": cyan,
            "cache": blue,
            "free": stone,
            "used": cyan,
            "reserved": blue,
            "h2d": green,
            "d2h": purple,
            "h2h": sky,
            "d2d": yellow,
            "gpu": sky,
            "memory_controller": yellow,
            "cpu": green,
            "loss": orange,
            "accuracy": green,
            "val_loss": sky,
            "throughput": sky,
            "temperature": red,
            "power": yellow,
            "sm_clock": green,
            "memory_clock": violet,
            "capacity": red,
            "warning": orange,
            "forecast": orange,
            "link": grey,
            "reference": grey,
            "difference": text,
            "weights": sky,
            "gradients": orange,
            "optimizer state": purple,
            "activations": green,
            "inputs": yellow,
            "temporary": brown,
            "workspace": faint,
            "KV cache": lime,
            "no stack recorded": sage,
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
        text="#e6e9ed",
        sky="#56b4e9",
        blue="#3d76a6",
        cyan="#2bd4d9",
        green="#25b388",
        lime="#a5d63f",
        sage="#7f9a73",
        orange="#eda81c",
        purple="#d98cb8",
        yellow="#f0e442",
        brown="#b08d6a",
        red="#ff7468",
        grey="#98a2ae",
        faint="#6f7a87",
        stone="#8d857c",
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
        text="#1a2027",
        sky="#3089cc",
        blue="#12507f",
        cyan="#0092a0",
        green="#008560",
        lime="#5f8a00",
        sage="#6f8f5f",
        orange="#b87300",
        purple="#b0528a",
        yellow="#8c7d00",
        brown="#8a6746",
        red="#d03a2f",
        grey="#6b7683",
        faint="#8a95a2",
        stone="#8f867c",
        violet="#6a5cc0",
    ),
)


def category_curve(category: str, palette: Palette) -> str:
    """The curve whose colour a category has: its own, or one that no category has."""
    if category in palette.curves:
        return category
    return "reference"


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
    """Dark or light text, whichever is easier to read on ``ground``."""
    return QColor(max(DARK_TEXT, LIGHT_TEXT, key=lambda text: contrast(text, ground.name())))


def mixed(colour: QColor, ground: QColor, share: float) -> QColor:
    """``colour`` with ``share`` of ``ground``, 0 to 1."""
    own = 1 - share
    return QColor(
        round(colour.red() * own + ground.red() * share),
        round(colour.green() * own + ground.green() * share),
        round(colour.blue() * own + ground.blue() * share),
    )
