import math
import re
from itertools import combinations
from pathlib import Path

import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication, QFrame, QLabel, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from gpudash.drawing import page
from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.explaining.memory_state import KV_CACHE, OTHER_TENSORS
from gpudash.session.report.drawing import COLOURS
from gpudash.telemetry.explanation import NO_STACK
from gpudash.ui.colours import DARK, LIGHT, Palette, contrast, luminance
from gpudash.ui.widgets.theme import ThemeFollower, apply_theme

BOTH = pytest.mark.parametrize("palette", [DARK, LIGHT], ids=lambda p: p.name)


def test_contrast_of_black_on_white_is_21_and_of_equal_colours_1() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#336699", "#336699") == pytest.approx(1)
    assert luminance("#ffffff") == pytest.approx(1)


@BOTH
@pytest.mark.parametrize(
    "ground", ["window", "panel", "field", "button", "banner_note", "banner_warn", "banner_critical"]
)
def test_text_reaches_a_contrast_of_four_and_a_half_on_every_ground(palette: Palette, ground: str) -> None:
    for words in ("text", "muted"):
        assert contrast(getattr(palette, words), getattr(palette, ground)) >= 4.5, words


@BOTH
def test_words_in_a_meaning_s_colour_are_readable_on_window_and_panel(palette: Palette) -> None:
    for words in ("accent", "good", "warn", "critical"):
        for ground in (palette.window, palette.panel):
            assert contrast(getattr(palette, words), ground) >= 4.5, words
    assert contrast(palette.on_accent, palette.accent) >= 4.5


@BOTH
def test_every_curve_reaches_a_contrast_of_three_on_the_panel(palette: Palette) -> None:
    assert {
        name: round(contrast(c, palette.panel), 2)
        for name, c in palette.curves.items()
        if contrast(c, palette.panel) < 3
    } == {}


TOTALS = ("allocated", "idle", "other")
"""Of memory, what a plot shows that is not divided by category; others have the colour of one of these."""

LEAST_APART = 11.0
"""Distance in CIELAB below which two patches of a legend are taken for one another (CIE 15:2004, 8.2.1)."""


def lab(colour: str) -> tuple[float, float, float]:
    """ "#rrggbb" as lightness, green to red, and blue to yellow, under D65."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    rows = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.072175), (0.0193339, 0.119192, 0.9503041))
    white = (0.95047, 1.0, 1.08883)
    sums = [sum(share * part for share, part in zip(row, linear, strict=True)) for row in rows]
    x, y, z = (math.cbrt(each / most) for each, most in zip(sums, white, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@BOTH
def test_no_category_of_memory_and_no_total_has_the_colour_of_another(palette: Palette) -> None:
    kinds = ["context", *dict.fromkeys((*CATEGORIES, KV_CACHE, OTHER_TENSORS, NO_STACK)), *TOTALS]
    near = {
        (one, other): round(math.dist(lab(palette.curves[one]), lab(palette.curves[other])), 1)
        for one, other in combinations([kind for kind in kinds if kind in palette.curves], 2)
    }
    assert len(near) > 60
    assert {pair: apart for pair, apart in near.items() if apart < LEAST_APART} == {}


@BOTH
def test_a_total_has_one_colour_under_each_of_its_names(palette: Palette) -> None:
    for total, *names in (("allocated", "process", "used"), ("idle", "reserved", "cache"), ("other", "free")):
        assert {palette.curves[name] for name in names} == {palette.curves[total]}


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_report_has_the_colours_of_totals_too(theme: str) -> None:
    style = (Path(page.__file__).parent / "templates" / f"{theme}.css").read_text()
    colours = dict(re.findall(r"--(\w+): (#\w{6})", style))
    assert contrast(colours["allocated"], colours["back"]) >= 3
    assert colours[COLOURS["allocated"]] == colours[COLOURS["process"]] == colours["allocated"]
    assert math.dist(lab(colours["allocated"]), lab(colours["sky"])) > LEAST_APART


def test_both_themes_name_the_same_curves() -> None:
    assert DARK.curves.keys() == LIGHT.curves.keys()


@BOTH
def test_neighbouring_memory_bands_differ_in_lightness_too(palette: Palette) -> None:
    for lower, upper in (("allocated", "idle"), ("context", "allocated"), ("process", "cache")):
        assert contrast(palette.curves[lower], palette.curves[upper]) > 1.1, (lower, upper)


@BOTH
def test_the_theme_reaches_the_pixels(palette: Palette, qapp: QApplication, qtbot: QtBot) -> None:
    apply_theme(qapp, palette.name)
    host = QWidget()
    host.setStyleSheet("")
    qtbot.addWidget(host)
    column = QVBoxLayout(host)
    card = QFrame()
    card.setProperty("role", "card")
    card.setMinimumSize(80, 60)
    column.addWidget(card)
    host.resize(120, 100)
    host.show()
    picture = host.grab().toImage()
    assert picture.pixelColor(60, 50) == QColor(palette.panel)
    assert picture.pixelColor(2, 2) == QColor(palette.window)


@BOTH
def test_buttons_show_their_role_and_their_focus(palette: Palette, qapp: QApplication, qtbot: QtBot) -> None:
    apply_theme(qapp, palette.name)
    host = QWidget()
    qtbot.addWidget(host)
    column = QVBoxLayout(host)
    primary, other, label = QPushButton("Start"), QPushButton("Other"), QLabel("words")
    primary.setProperty("role", "primary")
    for widget in (other, primary, label):
        column.addWidget(widget)
    host.show()
    qtbot.waitExposed(host)
    unfocused = primary.grab().toImage()
    assert unfocused.pixelColor(6, primary.height() // 2) == QColor(palette.accent)
    primary.setFocus()
    qtbot.waitUntil(primary.hasFocus)
    assert primary.grab().toImage() != unfocused


def test_choosing_a_theme_tells_the_new_palette_once(qapp: QApplication, qtbot: QtBot) -> None:
    follower = ThemeFollower(qapp, "dark")
    told: list[Palette] = []
    follower.changed.connect(told.append)
    follower.choose("light")
    follower.choose("light")
    assert told == [LIGHT]
    assert follower.palette is LIGHT and follower.choice == "light"
    follower.deleteLater()


def test_a_chosen_theme_ignores_the_system(qapp: QApplication, qtbot: QtBot) -> None:
    follower = ThemeFollower(qapp, "dark")
    told: list[Palette] = []
    follower.changed.connect(told.append)
    qapp.styleHints().colorSchemeChanged.emit(qapp.styleHints().colorScheme())
    assert told == [] and follower.palette is DARK
    follower.deleteLater()
