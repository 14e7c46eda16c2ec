"""The bar of what a run needs against what is free."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.predicting.estimate_words import CONTEXT, HELD_BACK, segments
from gpudash.ui.colours import DARK, LIGHT, Palette
from gpudash.ui.forms.fit_bar import FitBar, part_colour
from tests.ui.estimates import FITS, SHORT


@pytest.fixture(params=[DARK, LIGHT], ids=lambda palette: palette.name)
def bar(request: pytest.FixtureRequest, qtbot: QtBot) -> FitBar:
    found = FitBar(request.param)
    qtbot.addWidget(found)
    found.setFixedWidth(300)
    return found


def colour_at(widget: QWidget, x: float) -> str:
    return str(widget.grab().toImage().pixelColor(round(x), widget.height() // 2).name())


def test_the_bar_reaches_to_what_is_free_and_its_parts_have_their_colours(bar: FitBar) -> None:
    bar.show_estimate(FITS, bar._palette, stale=False)
    assert [(name, round(place.width(), 3)) for name, _, place in bar.parts()] == [
        (CONTEXT, 37.5),
        ("weights", 37.5),
        (HELD_BACK, 37.5),
    ]
    for name, _, place in bar.parts():
        assert colour_at(bar, place.center().x()) == part_colour(name, bar._palette)
    assert colour_at(bar, 280) == bar._palette.window
    assert bar.free_end() is None


def test_the_overhang_of_what_does_not_fit_is_marked_where_free_memory_ends(bar: FitBar) -> None:
    bar.show_estimate(SHORT, bar._palette, stale=False)
    end = bar.free_end()
    assert end == pytest.approx(300 * 8 / 11.1)
    assert colour_at(bar, end) == bar._palette.critical
    beyond = {colour_at(bar, end + step) for step in range(10, 40)}
    assert part_colour("activations", bar._palette) not in beyond
    assert len(beyond) > 1


def test_the_bar_is_fainter_while_it_is_out_of_date(bar: FitBar) -> None:
    bar.show_estimate(FITS, bar._palette, stale=True)
    assert colour_at(bar, 55) != part_colour("weights", bar._palette)


def test_every_part_of_the_bar_is_named_under_the_pointer_and_to_a_screen_reader(bar: FitBar) -> None:
    assert bar.words_at(10) == "Nothing has been predicted yet"
    bar.show_estimate(SHORT, bar._palette, stale=False)
    for name, _, place in bar.parts():
        assert bar.words_at(place.center().x()).startswith(name)
        assert name in bar.accessibleDescription()
    assert "beyond what is free" in bar.words_at(250)
    bar.show_estimate(FITS, bar._palette, stale=False)
    assert bar.words_at(280) == "left over at the peak: 5.00 GiB"


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=lambda palette: palette.name)
def test_every_part_has_a_colour_of_its_own(palette: Palette) -> None:
    names = (CONTEXT, *CATEGORIES, HELD_BACK)
    assert len({part_colour(name, palette) for name in names}) == len(names)
    assert {name for name, _ in segments(SHORT)} <= set(names)
