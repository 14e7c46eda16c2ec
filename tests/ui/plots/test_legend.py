"""Curves that the legend hides, isolates and brings back."""

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from gpudash.telemetry.plots import PlotSpec
from gpudash.ui.plots.stack import PlotStack
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


def test_only_isolates_a_curve_and_again_restores_all(drawn: PlotStack, qtbot: QtBot) -> None:
    legend = drawn.plots[1].legend
    entry = legend._entries[0]
    qtbot.mouseClick(entry._only, Qt.MouseButton.LeftButton)
    assert legend.hidden == {"CPU"}
    qtbot.mouseClick(entry._button, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    assert legend.hidden == {"CPU", "GPU"}
    legend.isolate("GPU")
    assert legend.hidden == {"CPU"}
    legend.isolate("GPU")
    assert legend.hidden == frozenset()


def test_a_hidden_curve_stays_listed_and_struck_through(drawn: PlotStack) -> None:
    legend = drawn.plots[1].legend
    legend.toggle("GPU")
    button = legend._entries[0]._button
    assert button.isVisible() and button.font().strikeOut()
    assert button.accessibleName() == "GPU, hidden"
