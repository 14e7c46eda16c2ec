"""Curves that the legend hides, isolates and brings back."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QApplication, QLabel, QToolButton
from pytestqt.qtbot import QtBot

from gpudash.telemetry.plots import LAID_OVER, CurveSpec, PlotSpec
from gpudash.ui.colours import DARK
from gpudash.ui.plots.legend import HEIGHT_PX, Legend, LegendEntry, LevelKey, shares
from gpudash.ui.plots.overlay import PATCH, PlotLevel
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import restyle
from gpudash.units import GIB
from tests.ui.plots.conftest import MEMORY, Feed, refresh


def test_hiding_the_largest_curve_shrinks_the_axis_and_the_readout_and_the_chip_brings_it_back(
    stack: PlotStack, feed: Feed, qtbot: QtBot
) -> None:
    stack.set_plots([PlotSpec("memory", "MEMORY", MEMORY.curves, "bytes")])
    feed.ticks(100)
    refresh(stack)
    plot = stack.plots[0]
    before, rows = plot.y_range[1], len(stack.readout.rows())
    assert before >= 8 * GIB
    plot.legend.toggle("free")
    refresh(stack)
    assert plot.y_range[1] < 2 * GIB
    assert len(stack.readout.rows()) == rows - 1
    assert [curve.name for curve in stack.visible_curves] == ["other processes"]
    assert plot.legend._chip.text() == "1 hidden - show all" and plot.legend._chip.isVisible()
    qtbot.mouseClick(plot.legend._chip, Qt.MouseButton.LeftButton)
    refresh(stack)
    assert plot.y_range[1] == before and not plot.legend._chip.isVisible()


@pytest.mark.process
def test_only_isolates_a_curve_and_again_restores_all(drawn: PlotStack, qtbot: QtBot) -> None:
    legend = drawn.plots[1].legend
    entry = legend._entries[0]
    qtbot.mouseClick(entry._only, Qt.MouseButton.LeftButton)
    assert legend.hidden == {"CPU"}
    qtbot.mouseClick(entry.button, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    assert legend.hidden == {"CPU", "GPU"}
    legend.isolate("GPU")
    assert legend.hidden == {"CPU"}
    legend.isolate("GPU")
    assert legend.hidden == frozenset()


def test_a_hidden_curve_stays_listed_and_struck_through(drawn: PlotStack) -> None:
    legend = drawn.plots[1].legend
    legend.toggle("GPU")
    button = legend._entries[0].button
    assert button.isVisible() and button.font().strikeOut()
    assert button.accessibleName() == "GPU, hidden"


CAPACITY = PlotLevel("capacity 24.0 GiB", "capacity", 1.0, "#f00", "dash")
WARNING = PlotLevel("warning at 85 %: 20.4 GiB", "warning at 85 %", 0.85, "#fa0", "dot")
CURVES = [CurveSpec(("gpu", name, "a"), name, "bytes", "used") for name in ("other processes", "context", "allocated")]


@pytest.fixture
def legend(qtbot: QtBot) -> Legend:
    found = Legend("MEMORY cuda:0", CURVES, DARK)
    qtbot.addWidget(found)
    found.set_levels([CAPACITY, WARNING])
    found.show()
    return found


def key_at(legend: Legend, width: int) -> LevelKey:
    legend.resize(width, legend.height())
    legend._row.activate()
    return legend._levels


def test_in_a_narrow_legend_levels_lose_their_values_first_and_the_first_keeps_its_name(legend: Legend) -> None:
    said: list[list[str]] = []
    for width in range(1400, 260, -2):
        words = key_at(legend, width).texts
        if not said or words != said[-1]:
            said.append(words)
    assert said[:4] == [
        ["capacity 24.0 GiB", "warning at 85 %: 20.4 GiB"],
        ["capacity 24.0 GiB", "warning at 85 %"],
        ["capacity", "warning at 85 %"],
        ["capacity"],
    ]
    assert all(words[0].endswith("…") for words in said[4:]), said
    assert "warning at 85 %: 20.4 GiB" in legend._levels.toolTip(), "and the tooltip says all"


def test_what_memory_holds_is_named_before_any_line_across_the_plot_but_the_first(legend: Legend) -> None:
    predicted = PlotLevel("predicted 22.66 GiB, reached 3.04 GiB with context", "predicted", math.nan, "#fff", "dot")
    kinds = ("other tensors", "weights", "activations")
    areas = [PlotLevel(kind, kind, math.nan, "#00f", PATCH) for kind in kinds]
    legend.set_levels([CAPACITY, *areas, predicted])
    for width in range(1400, 560, -4):
        first, *others = key_at(legend, width).texts
        assert first.startswith("capacity") and others[: len(kinds)] == list(kinds), width


def test_the_menu_names_with_its_colour_what_the_line_has_no_room_for(qtbot: QtBot) -> None:
    found = Legend("MEMORY sim:0", CURVES, DARK)
    qtbot.addWidget(found)
    colours = {"weights": "#0000ff", "optimizer state": "#ff00ff", "gradients": "#ffaa00", "activations": "#00aa00"}
    found.set_levels([CAPACITY, *(PlotLevel(kind, kind, math.nan, colours[kind], PATCH) for kind in colours)])
    found.show()
    (button,) = [one for one in found.findChildren(QToolButton) if one.menu() is not None]
    fewest = len(CURVES)
    for width in range(1400, 260, -20):
        shown = [text for text in key_at(found, width).texts if not text.endswith("…")]
        button.menu().aboutToShow.emit()
        listed = {action.text(): action.icon() for action in button.menu().actions()}
        entries = [entry.spec.name for entry in found.findChildren(LegendEntry) if entry.isVisible()]
        named = [text.removesuffix(" 24.0 GiB") for text in (*shown, *listed)]
        assert sorted([*named, *entries]) == sorted(["capacity", *colours, *(curve.name for curve in CURVES)]), width
        assert button.isVisible() == bool(listed) and (not listed or button.text() == f"{len(listed)} more")
        for kind in colours.keys() & listed.keys():
            patch = listed[kind].pixmap(18, 18).toImage()
            seen = {patch.pixelColor(x, y).name() for x in range(patch.width()) for y in range(patch.height())}
            assert colours[kind] in seen
        fewest = min(fewest, len(shown))
    assert fewest <= 1, "a line so narrow that most names are in the menu"


@pytest.mark.parametrize("title", ["MEMORY sim:0", "MEMORY NVIDIA GeForce RTX 4090 Laptop GPU, cuda:0"])
def test_the_name_of_the_first_line_is_read_at_any_width(title: str, qtbot: QtBot) -> None:
    found = Legend(title, CURVES, DARK)
    qtbot.addWidget(found)
    kinds = ("refused", "other tensors", "weights", "activations", "optimizer state")
    found.set_levels([CAPACITY, *(PlotLevel(kind, kind, math.nan, "#00f", PATCH) for kind in kinds), WARNING])
    found.show()
    for width in range(1400, 260, -4):
        key = key_at(found, width)
        assert key.texts[0].startswith("capacity") and not key.texts[0].endswith("…"), width


def test_at_no_width_do_curves_and_levels_lie_on_one_another(legend: Legend) -> None:
    for width in range(1400, 300, -7):
        key = key_at(legend, width)
        shown = [*(entry for entry in legend._entries if entry.isVisible()), legend._more, legend._title, key]
        places = [part.geometry() for part in shown if part.isVisible() and part.width()]
        assert all(QRect(0, 0, width, 40).contains(place) for place in places), width
        apart = sorted(places, key=lambda place: place.left())
        assert all(one.right() < other.left() for one, other in pairwise(apart)), width


def test_a_title_that_is_cut_ends_in_an_ellipsis_and_is_read_whole_in_its_tooltip(qtbot: QtBot) -> None:
    found = Legend("TRANSFER BANDWIDTH", CURVES, DARK)
    qtbot.addWidget(found)
    found.show()
    (title,) = [label for label in found.findChildren(QLabel) if label.text() == "TRANSFER BANDWIDTH"]
    for width in range(400, 120, -4):
        key_at(found, width)
        assert title.width() >= title.fontMetrics().horizontalAdvance(title.text()), width
    assert title.text().startswith("TR") and title.text().endswith("…")
    assert title.toolTip() == "TRANSFER BANDWIDTH"
    key_at(found, 900)
    assert (title.text(), title.toolTip()) == ("TRANSFER BANDWIDTH", "")


def test_what_may_stand_aside_goes_into_the_menu_before_what_tells_more(qtbot: QtBot) -> None:
    curves = [replace(curve, aside=curve.name != "allocated") for curve in CURVES]
    found = Legend("MEMORY cuda:0", curves, DARK)
    qtbot.addWidget(found)
    found.set_levels([CAPACITY])
    found.show()
    seen: list[list[str]] = []
    for width in range(900, 300, -2):
        key_at(found, width)
        names = [entry.spec.name for entry in found._entries if entry.isVisible()]
        if not seen or names != seen[-1]:
            seen.append(names)
    assert seen[0] == ["other processes", "context", "allocated"], "in the order of the bands"
    assert seen[1:] == [["other processes", "allocated"], ["allocated"], []]


def test_the_patches_of_curves_grow_with_the_words_beside_them(drawn: PlotStack, qapp: QApplication) -> None:
    entry = drawn.plots[0].legend._entries[0]
    patch, words = entry.button.iconSize(), entry.button.fontMetrics().height()
    try:
        restyle(drawn, DARK, 2.0)
        refresh(drawn)
        assert entry.button.fontMetrics().height() > 1.8 * words
        assert entry.button.iconSize() == 2 * patch
        assert entry.icon.availableSizes()[0].height() >= 2 * patch.height()
    finally:
        restyle(drawn, DARK, 1.0)


def with_runs(qtbot: QtBot, width: int, names: Sequence[str]) -> Legend:
    """A legend with a curve of its own and those of runs that are laid over."""
    runs = [CurveSpec((LAID_OVER, "memory", name), name, "bytes", "loss", note=f"all of {name}") for name in names]
    found = Legend("MEMORY cuda:0", [CURVES[0], *runs], DARK)
    qtbot.addWidget(found)
    found.set_levels([CAPACITY, WARNING])
    found.show()
    found.resize(width, found.height())
    QApplication.processEvents()
    return found


def entries(legend: Legend) -> list[LegendEntry]:
    """The entries that are seen, from the left of the first line to the right of the last."""
    shown = [entry for entry in legend.findChildren(LegendEntry) if entry.isVisible()]
    return sorted(shown, key=lambda entry: (entry.y(), entry.x()))


RUNS = [f"{letter} width {2**place * 128}" for place, letter in enumerate("ABCDEF")]


@pytest.mark.parametrize(("width", "lines"), [(1500, 1), (660, 2), (400, 3)])
def test_every_run_that_is_laid_over_is_named_whole_in_as_few_lines_as_hold_them(
    qtbot: QtBot, width: int, lines: int
) -> None:
    legend = with_runs(qtbot, width, RUNS)
    shown = entries(legend)
    assert [entry.button.text() for entry in shown] == [CURVES[0].name, *RUNS]
    assert len({entry.y() for entry in shown}) == lines
    assert legend.height() == lines * scaled(HEIGHT_PX)
    for entry in shown:
        metrics = QFontMetrics(entry.button.font())
        assert entry.width() >= metrics.horizontalAdvance(entry.button.text()) + entry.button.iconSize().width()
        assert entry.geometry().right() <= width


def test_a_run_whose_name_has_no_room_even_there_is_cut_in_its_middle_and_whole_in_its_tooltip(qtbot: QtBot) -> None:
    names = [f"{letter} the longest name anybody could ever give to run {letter}" for letter in "ABCDEF"]
    legend = with_runs(qtbot, 500, names)
    cut = entries(legend)[1:]
    assert len(cut) == 6 and legend.height() == 3 * scaled(HEIGHT_PX)
    for name, entry in zip(names, cut, strict=True):
        text = entry.button.text()
        assert "…" in text and text[0] == name[0] and text[-1] == name[-1]
        assert f"all of {name}" in entry.button.toolTip() and name in entry.button.accessibleName()


def test_the_further_lines_go_with_the_runs_and_with_a_wider_plot(qtbot: QtBot) -> None:
    legend = with_runs(qtbot, 660, RUNS)
    legend.resize(1500, legend.height())
    QApplication.processEvents()
    assert legend.height() == scaled(HEIGHT_PX)
    assert [entry.button.text() for entry in entries(legend)] == [CURVES[0].name, *RUNS]
    legend.resize(660, legend.height())
    QApplication.processEvents()
    assert legend.height() == 2 * scaled(HEIGHT_PX)
    legend.set_curves(CURVES[:1])
    legend.resize(661, legend.height())
    QApplication.processEvents()
    assert legend.height() == scaled(HEIGHT_PX)


def test_a_run_in_a_further_line_is_hidden_with_a_click(qtbot: QtBot) -> None:
    legend = with_runs(qtbot, 660, RUNS)
    qtbot.mouseClick(entries(legend)[-1].button, Qt.MouseButton.LeftButton)
    assert legend.hidden == {RUNS[-1]}
    assert [entry.button.text() for entry in entries(legend)] == [CURVES[0].name, *RUNS], "and it stays listed"


def test_room_that_a_short_name_does_not_need_is_for_the_long_ones() -> None:
    assert shares([10, 90, 60], 120) == [10, 55, 55]
    assert shares([10, 20], 120) == [10, 20]
