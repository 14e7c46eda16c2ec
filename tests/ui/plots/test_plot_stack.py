"""Plots over one another: one range of time for all, drawn only when there is something new."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.telemetry.plots import PlotSpec
from gpudash.telemetry.store import Store
from gpudash.ui.plots.canvas import TIGHT_HEIGHT_PX
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.units import GIB
from tests.benchmarks import frame
from tests.ui.plots.conftest import GPU, LOSS, MEMORY, UTILISATION, Feed, refresh
from tests.unit.clock import Clock


def test_pausing_the_view_loses_no_sample_and_following_ends_at_the_newest(
    drawn: PlotStack, feed: Feed, store: Store, view: TimeView
) -> None:
    drawn.pause()
    frozen = view.range()
    feed.ticks(50)
    refresh(drawn)
    assert view.range() == frozen
    assert view.status().startswith("Paused 5 s behind")
    drawn.pause()
    refresh(drawn)
    series = store.series("gpu", "used_bytes", GPU)
    assert series is not None
    times, _ = series.window(0.0, 100.0, 10_000)
    assert len(times) == 251 and max(b - a for a, b in pairwise(times.tolist())) < 0.21
    assert view.range()[1] == store.newest_s
    plot = drawn.plots[1]
    assert plot.points.raw["GPU"][0][-1] == store.newest_s


def test_all_plots_share_range_and_pixel_edges_whatever_their_labels(drawn: PlotStack, view: TimeView) -> None:
    view.show(3.0, 7.0)
    refresh(drawn)
    geometries = [plot.geometry_now for plot in drawn.plots]
    assert all(g is not None and g.time_at(g.area.left()) == pytest.approx(3.0) for g in geometries)
    assert all(g is not None and g.time_at(g.area.right()) == pytest.approx(7.0) for g in geometries)
    lefts = {plot.canvas.mapTo(drawn, plot.canvas.area.topLeft().toPoint()).x() for plot in drawn.plots}
    rights = {plot.canvas.mapTo(drawn, plot.canvas.area.topRight().toPoint()).x() for plot in drawn.plots}
    assert len(lefts) == len(rights) == 1


def test_every_plot_keeps_its_least_height_and_the_stack_scrolls(drawn: PlotStack) -> None:
    drawn.resize(700, 250)
    refresh(drawn)
    assert all(plot.canvas.height() >= TIGHT_HEIGHT_PX for plot in drawn.plots)
    assert drawn.height() == 250


def test_readings_that_change_nothing_are_not_drawn_again(drawn: PlotStack, feed: Feed) -> None:
    drawn.refresh()
    assert not drawn.refresh()
    feed.ticks(1)
    assert drawn.refresh()


def test_a_paused_view_far_behind_costs_nothing(drawn: PlotStack, feed: Feed) -> None:
    drawn.pause()
    feed.ticks(100)
    drawn.refresh()
    feed.ticks(10)
    assert not drawn.refresh()


def test_a_stack_that_is_not_seen_is_not_drawn(drawn: PlotStack, feed: Feed) -> None:
    drawn.hide()
    feed.ticks(1)
    assert not drawn.refresh()


def test_plots_keep_their_widgets_and_none_pile_up(drawn: PlotStack, qtbot: QtBot) -> None:
    kept = drawn.plots[1]
    kept.legend.toggle("CPU")
    for _ in range(5):
        drawn.set_plots([UTILISATION])
        drawn.set_plots([MEMORY, UTILISATION, LOSS])
    assert drawn.plots[1] is kept and kept.hidden == {"CPU"}
    changed = PlotSpec("utilisation", "UTILISATION", UTILISATION.curves[:1], "ratio")
    for _ in range(5):
        drawn.set_plots([MEMORY, changed])
        drawn.set_plots([MEMORY, UTILISATION])
    QApplication.sendPostedEvents(None, 52)  # QEvent.Type.DeferredDelete
    gc.collect()
    assert len(drawn.findChildren(type(kept))) == 3


def test_arrow_keys_move_the_cursor_by_samples(drawn: PlotStack, view: TimeView) -> None:
    drawn.move_cursor(-1)
    assert view.cursor_s == pytest.approx(19.9)
    drawn.move_cursor(-10)
    assert view.cursor_s == pytest.approx(18.9)
    drawn.move_cursor(1)
    assert view.cursor_s == pytest.approx(19.0)
    refresh(drawn)
    assert dict(drawn.readout.rows())["accuracy"] == "95 %"


def test_show_all_shows_everything_and_jump_to_now_follows(drawn: PlotStack, view: TimeView) -> None:
    drawn.show_all()
    assert view.following and view.range() == (0.0, 20.0)
    view.pan(-3.0)
    drawn.jump_to_now()
    assert view.following


def test_a_forecast_is_drawn_into_room_beyond_now(drawn: PlotStack, view: TimeView) -> None:
    drawn.set_forecast("memory", [(20.0, 2 * GIB), (25.0, 8 * GIB)])
    refresh(drawn)
    assert view.range()[1] > 20.0
    assert len(drawn.plots[0].canvas.overlay._content.forecast) == 2
    drawn.set_forecast("memory", None)
    assert view.range()[1] == 20.0


def test_a_plot_says_what_it_shows_at_most_once_a_second(drawn: PlotStack, feed: Feed, clock: Clock) -> None:
    plot = drawn.plots[0]
    assert plot.accessibleName() == "MEMORY cuda:0"
    assert plot.accessibleDescription() == "MEMORY cuda:0, now 2.00 of 8.00 GiB, rising 102 MiB/s"
    feed.ticks(50)
    clock.now_s = 0.5
    drawn.refresh()
    assert "now 2.00" in plot.accessibleDescription()
    feed.ticks(1)
    clock.now_s = 1.5
    drawn.refresh()
    assert "now 2.51" in plot.accessibleDescription()


def test_the_frame_benchmark_draws_all_three_sides(qtbot: QtBot) -> None:
    figures = frame.frame_cost(frames=3, samples=400)
    assert figures.keys() == {"frame_ms", "bare_ms", "naive_ms", "ratio_to_bare", "times_cheaper_than_naive"}
    assert all(value > 0 for value in figures.values())


def test_the_frame_benchmark_draws_areas_too(qtbot: QtBot) -> None:
    figures = frame.areas_cost(frames=3, samples=400)
    assert all(value > 0 for value in figures.values())
