import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication, QFrame, QLabel, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

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
