"""Which plots are shown, how the user says so, and what stays while they change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QMenu
from pytestqt.qtbot import QtBot

from gpudash.telemetry.plots import CurveSpec, LineSpec, PlotSpec
from gpudash.telemetry.records import Sample
from gpudash.telemetry.series import Series, Statistics
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.plots.menu import PlotMenu
from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.remembered import remember
from gpudash.units import GIB
from tests.ui.plots.conftest import GPU, LOSS, MEMORY, UTILISATION, Feed, refresh

ENTROPY = LineSpec("unigram entropy", "reference", value=3.2)
SPLIT = CurveSpec(("gpu", "context_bytes", GPU), "CUDA context", "bytes", "context", stack=True)

CHANGES = [
    replace(MEMORY, lines=(replace(MEMORY.lines[0], scales=False),)),
    replace(MEMORY, lines=(*MEMORY.lines, LineSpec("link Gen4 x16", "link", value=1e9))),
    replace(MEMORY, title="MEMORY cuda:0 of two"),
    replace(MEMORY, stretch=3),
    replace(MEMORY, curves=(*MEMORY.curves, SPLIT)),
    replace(MEMORY, curves=(replace(MEMORY.curves[0], style="dash"), *MEMORY.curves[1:])),
]


def _mouse(plot: TimePlot, kind: QEvent.Type, x: float) -> None:
    place = QPointF(x, plot.canvas.area.center().y())
    button = Qt.MouseButton.NoButton if kind is QEvent.Type.MouseMove else Qt.MouseButton.LeftButton
    glob = QPointF(plot.canvas.viewport().mapToGlobal(place.toPoint()))
    held = Qt.MouseButton.LeftButton
    event = QMouseEvent(kind, place, glob, button, held, Qt.KeyboardModifier.NoModifier)
    QApplication.sendEvent(plot.canvas.viewport(), event)


@pytest.mark.parametrize("changed", CHANGES)
def test_a_plot_whose_spec_changes_keeps_hidden_curves_zoom_focus_and_selection(
    drawn: PlotStack, view: TimeView, qtbot: QtBot, changed: PlotSpec
) -> None:
    plot = drawn.plots[0]
    plot.legend.toggle("free")
    refresh(drawn)
    plot.zoom_y(0.5, 0)
    zoomed = plot.y_range
    plot.canvas.setFocus()
    qtbot.waitUntil(plot.canvas.hasFocus)
    view.select(12.0, 15.0)
    view.set_cursor(13.0, pinned=True)
    drawn.set_plots([changed, UTILISATION, LOSS])
    refresh(drawn)
    assert drawn.plots[0] is plot and plot.spec == changed
    assert plot.hidden == {"free"} and plot.y_range == zoomed and plot.canvas.hasFocus()
    assert view.selection == (12.0, 15.0) and view.cursor_s == 13.0
    assert plot.canvas.overlay._content.selection == (12.0, 15.0)


@pytest.mark.parametrize("changed", CHANGES)
def test_a_drag_goes_on_while_the_plot_under_it_changes(drawn: PlotStack, view: TimeView, changed: PlotSpec) -> None:
    plot = drawn.plots[0]
    geometry = plot.geometry_now
    assert geometry is not None
    _mouse(plot, QEvent.Type.MouseButtonPress, geometry.x_of(12.0))
    _mouse(plot, QEvent.Type.MouseMove, geometry.x_of(13.0))
    drawn.set_plots([changed, UTILISATION, LOSS])
    refresh(drawn)
    plot = drawn.plots[0]
    geometry = plot.geometry_now
    assert geometry is not None
    _mouse(plot, QEvent.Type.MouseMove, geometry.x_of(15.0))
    assert view.selection == pytest.approx((12.0, 15.0), abs=0.05)


def test_the_entropy_line_arrives_without_ending_the_logarithm(drawn: PlotStack) -> None:
    drawn.toggle_log()
    plot = drawn.plots[2]
    drawn.set_plots([MEMORY, UTILISATION, replace(LOSS, lines=(ENTROPY,))])
    refresh(drawn)
    assert drawn.plots[2] is plot and plot.log
    assert [level.text for level in plot.canvas.overlay._content.levels] == ["unigram entropy 3.200"]


def test_the_title_and_the_words_for_a_screen_reader_change_in_place(drawn: PlotStack) -> None:
    drawn.set_plots([replace(MEMORY, title="MEMORY cuda:1"), UTILISATION, LOSS])
    plot = drawn.plots[0]
    assert plot.legend._title.text() == plot.accessibleName() == plot.canvas.accessibleName() == "MEMORY cuda:1"


def test_a_line_that_no_longer_scales_lets_the_axis_go_after_a_calm_while(drawn: PlotStack, feed: Feed) -> None:
    plot = drawn.plots[0]
    plot.legend.toggle("free")
    refresh(drawn)
    drawn.set_plots([replace(MEMORY, lines=(replace(MEMORY.lines[0], scales=False),)), UTILISATION, LOSS])
    refresh(drawn)
    assert plot.y_range[1] > 8 * GIB
    for _ in range(40):
        feed.ticks(1)
        drawn.refresh()
    assert plot.y_range[1] < 4 * GIB


def _drawn_items(plot: TimePlot) -> dict[str, int]:
    return {name: len(item.getData()[0]) for name, item in plot.canvas._raw.items() if item.scene() is not None}


def test_only_the_items_of_changed_curves_are_made_anew(drawn: PlotStack, store: Store) -> None:
    plot = drawn.plots[1]
    kept = plot.canvas._raw["GPU"]
    extra = CurveSpec(("host", "cpu_utilisation", None), "CPU again", "ratio", "gpu")
    drawn.set_plots([MEMORY, replace(UTILISATION, curves=(UTILISATION.curves[0], extra)), LOSS])
    refresh(drawn)
    assert plot.canvas._raw["GPU"] is kept
    assert _drawn_items(plot).keys() == {"GPU", "CPU again"} and min(_drawn_items(plot).values()) > 50
    assert [entry.spec.name for entry in plot.legend._entries] == ["GPU", "CPU again"]
    assert [name for name, _ in drawn.readout.rows()][2:4] == ["GPU", "CPU again"]


def test_curves_are_drawn_in_the_order_of_the_spec_also_after_a_change(drawn: PlotStack) -> None:
    plot = drawn.plots[1]
    drawn.set_plots([MEMORY, replace(UTILISATION, curves=UTILISATION.curves[::-1]), LOSS])
    assert plot.canvas._raw["CPU"].zValue() < plot.canvas._raw["GPU"].zValue()


def _names(plot: TimePlot) -> Sequence[str]:
    return [curve.name for curve in plot.visible_curves]


def test_a_hidden_curve_that_goes_and_comes_back_or_changes_its_name_stays_hidden(drawn: PlotStack) -> None:
    plot = drawn.plots[0]
    plot.legend.toggle("other processes")
    renamed = replace(MEMORY.curves[0], name="CUDA context and other processes")
    drawn.set_plots([replace(MEMORY, curves=(renamed, MEMORY.curves[1]))])
    assert _names(plot) == ["free"]
    drawn.set_plots([replace(MEMORY, curves=MEMORY.curves[1:])])
    assert plot.hidden == frozenset() and not plot.legend._chip.isVisible()
    drawn.set_plots([MEMORY])
    assert _names(plot) == ["free"] and plot.legend._chip.text() == "1 hidden - show all"


def test_the_zoom_of_one_device_is_not_taken_to_another(drawn: PlotStack) -> None:
    plot = drawn.plots[0]
    plot.zoom_y(0.1, 0)
    drawn.set_forecast("memory", [(20.0, GIB), (21.0, 2 * GIB)])
    host = CurveSpec(("host", "process_bytes", None), "this process", "bytes", "process", stack=True)
    drawn.set_plots([replace(MEMORY, title="MEMORY cpu", curves=(host,), lines=())])
    refresh(drawn)
    assert plot._scale.manual is None and not plot.has_forecast


def test_a_spike_of_one_sample_in_a_band_is_drawn(stack: PlotStack, store: Store, view: TimeView) -> None:
    stack.set_plots([replace(MEMORY, curves=MEMORY.curves[:1])])
    for i in range(60_000):
        used = (7 if i == 31_234 else 1) * GIB
        store.apply(Sample(i * 0.01, "gpu", GPU, {"used_bytes": used, "process_bytes": 0}))
    view.show(0.0, 600.0)
    refresh(stack)
    _, edges = stack.plots[0]._stack
    assert edges[0] is not None and edges[0].max() == 7 * GIB


def test_a_lost_capacity_is_searched_for_once_and_not_at_every_frame(
    stack: PlotStack, feed: Feed, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.ticks(10)
    gap = {"total_bytes": None, "used_bytes": None, "process_bytes": None}
    store.apply(Sample(feed.time_s, "gpu", GPU, gap))
    series = store.series("gpu", "total_bytes", GPU)
    assert series is not None
    asked: list[float] = []
    searched = Series.statistics

    def counted(self: Series, t0: float, t1: float) -> Statistics | None:
        asked.append(t0)
        return searched(self, t0, t1)

    monkeypatch.setattr(Series, "statistics", counted)
    refresh(stack)
    refresh(stack)
    assert len(asked) == 1
    assert [level.value for level in stack.plots[0].canvas.overlay._content.levels] == [8 * GIB]


EXTRA = replace(UTILISATION, extra=True)


def shown(stack: PlotStack) -> list[str]:
    return [plot.spec.id for plot in stack.plots]


def test_an_extra_is_left_out_until_it_is_asked_for(stack: PlotStack) -> None:
    stack.set_plots([MEMORY, EXTRA, LOSS])
    assert shown(stack) == ["memory", "loss"]
    stack.choice.choose("utilisation", True)
    assert shown(stack) == ["memory", "utilisation", "loss"]
    stack.choice.begin_again()
    assert shown(stack) == ["memory", "loss"]


def test_a_choice_stays_when_other_plots_come(stack: PlotStack) -> None:
    stack.choice.choose("loss", False)
    assert shown(stack) == ["memory", "utilisation"]
    stack.set_plots([MEMORY, LOSS])
    assert shown(stack) == ["memory"]
    stack.set_plots([LOSS, UTILISATION])
    assert shown(stack) == ["utilisation"]


def test_one_plot_is_always_shown(stack: PlotStack, qtbot: QtBot) -> None:
    menu = QMenu()
    qtbot.addWidget(menu)
    for name in ("memory", "utilisation", "loss"):
        stack.choice.choose(name, False)
    assert shown(stack) == ["memory"]
    assert [action.isEnabled() for action in stack.choice.actions(menu)] == [False, True, True]


def test_the_plot_s_menu_lists_every_plot_with_whether_it_is_shown(stack: PlotStack) -> None:
    stack.set_plots([MEMORY, EXTRA, LOSS])
    menu = PlotMenu(stack).build(stack.plots[0])
    (plots,) = [action.menu() for action in menu.actions() if action.text() == "Plots"]
    assert [(action.text(), action.isChecked()) for action in plots.actions()] == [
        ("MEMORY cuda:0", True),
        ("UTILISATION", False),
        ("LOSS", True),
    ]
    plots.actions()[1].trigger()
    assert shown(stack) == ["memory", "utilisation", "loss"]
    menu.deleteLater()


def heights(stack: PlotStack) -> list[int]:
    return [plot.height() for plot in stack.plots]


def drag(stack: PlotStack, sizes: Sequence[int]) -> None:
    """As a drag of the handles between the plots ends."""
    stack._column.setSizes(list(sizes))
    stack._column.splitterMoved.emit(sizes[0], 1)
    refresh(stack)


@pytest.mark.parametrize("height", [400, 560, 1100])
def test_a_plot_with_a_least_share_has_it_at_any_height(drawn: PlotStack, height: int) -> None:
    drawn.set_plots([UTILISATION, replace(MEMORY, least_share=0.4), LOSS])
    drawn.resize(900, height)
    refresh(drawn)
    assert heights(drawn)[1] >= 0.4 * drawn._scroll.height() - 8


def test_dragged_heights_stay_for_their_workload_also_in_the_next_session(
    drawn: PlotStack, store: Store, view: TimeView, qtbot: QtBot
) -> None:
    specs = [MEMORY, UTILISATION, LOSS]
    drawn.resize(900, 900)
    drawn.set_plots(specs, "training")
    refresh(drawn)
    usual = heights(drawn)
    whole = sum(usual)
    drag(drawn, [whole // 2, whole // 4, whole // 4])
    dragged = heights(drawn)
    assert dragged != usual
    drawn.set_plots(specs, "transfer")
    refresh(drawn)
    assert heights(drawn) == usual
    again = PlotStack(store, view, DARK)
    qtbot.addWidget(again)
    again.set_plots(specs, "training")
    again.resize(900, 900)
    again.show()
    refresh(again)
    assert heights(again) == pytest.approx(dragged, abs=2)
    again.reset_layout()
    refresh(again)
    assert heights(again) == usual


def test_chosen_plots_are_remembered_for_their_workload(
    stack: PlotStack, store: Store, view: TimeView, qtbot: QtBot
) -> None:
    specs = [MEMORY, EXTRA, LOSS]
    stack.set_plots(specs, "training")
    stack.choice.choose("utilisation", True)
    stack.set_plots(specs, "pressure")
    assert shown(stack) == ["memory", "loss"]
    again = PlotStack(store, view, DARK)
    qtbot.addWidget(again)
    again.set_plots(specs, "training")
    assert shown(again) == ["memory", "utilisation", "loss"]


def test_what_cannot_be_read_of_the_remembered_heights_is_as_if_nothing_had_been(stack: PlotStack) -> None:
    for kept in ("never", {"training": [1]}, {"training": {"memory": "high", "loss": -3, "utilisation": True}}):
        remember("plot_heights", kept)
        remember("plots", kept)
        stack.set_plots([MEMORY, LOSS], "pressure")
        stack.set_plots([MEMORY, LOSS], "training")
        refresh(stack)
        assert shown(stack) == ["memory", "loss"]
