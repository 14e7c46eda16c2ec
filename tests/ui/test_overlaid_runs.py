"""Recorded runs that are ticked at the left are drawn thin over the live plots, from the start of the run in view."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from pytestqt.qtbot import QtBot

from gpudash.session.recordings.comparing.overlaid_runs import OverlaidRuns
from gpudash.telemetry.comparing import MOST_RUNS, ComparedRun, Curve
from gpudash.telemetry.plots import LAID_OVER
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import RunStarted
from gpudash.telemetry.runs import WATCH
from gpudash.ui.plots.legend import LegendEntry
from gpudash.ui.recordings.compare.plots import run_pen
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.unit.telemetry.comparing.made import MADE

PLACES = [Path(f"/runs/{number}.gpudash#1") for number in range(8)]

POINTS = 1_000_000


def recorded(place: str, cancelled: Callable[[], bool]) -> ComparedRun:
    """A run of four seconds whose memory says which it is."""
    number = float(Path(place).name[0])
    run = MADE.run(f"training {number:.0f}")
    times = run.began_s + np.linspace(0.0, 4.0, 9)
    return run.__class__(run.label, place, run.view, run.steps, memory={"used": Curve(times, times * 0 + 1e9 + number)})


@pytest.fixture
def window(open_window: OpenWindow) -> MainWindow:
    return open_window(FakeSession([gpu(0)]).feed(10))


def lay_over(window: MainWindow, runs: OverlaidRuns, count: int, qtbot: QtBot) -> list[str]:
    """Lay so many over; the names of their curves in the memory plot."""
    window.workspace.dashboard.overlay.choose(runs, PLACES[:count])

    def laid() -> list[str]:
        settle(window)
        plot = window.workspace.dashboard.plots.plot("memory")
        assert plot is not None
        return [curve.name for curve in plot.spec.curves if curve.key[0] == LAID_OVER]

    qtbot.waitUntil(lambda: len(laid()) == min(count, MOST_RUNS))
    return laid()


def test_runs_are_named_in_the_legend_six_at_most(window: MainWindow, qtbot: QtBot) -> None:
    runs = OverlaidRuns(window.workspace.session.store, recorded)
    names = lay_over(window, runs, 8, qtbot)
    assert names == [f"{letter} training {place}" for place, letter in enumerate("ABCDEF")]
    assert lay_over(window, runs, 0, qtbot) == []
    assert runs.close()


def test_six_runs_are_all_named_by_what_tells_them_apart_in_a_small_window(
    open_window: OpenWindow, qtbot: QtBot
) -> None:
    def load(place: str, cancelled: Callable[[], bool]) -> ComparedRun:
        run = recorded(place, cancelled)
        return replace(run, label=f"training width {2 ** int(Path(place).name[0])} on sim:0")

    window = open_window(FakeSession([gpu(0)]).feed(10), size=(1280, 800))
    runs = OverlaidRuns(window.workspace.session.store, load)
    names = lay_over(window, runs, 6, qtbot)
    assert names == [f"{letter} width {2**place}" for place, letter in enumerate("ABCDEF")]
    settle(window)
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None
    entries = [entry for entry in plot.legend.findChildren(LegendEntry) if entry.isVisible()]
    assert {entry.button.text() for entry in entries} >= set(names)
    assert "training width 32 on sim:0" in next(
        entry.button.toolTip() for entry in entries if entry.button.text() == "F width 32"
    )
    assert runs.close()


def test_runs_of_one_name_are_told_apart_by_when_they_began(window: MainWindow, qtbot: QtBot) -> None:
    def load(place: str, cancelled: Callable[[], bool]) -> ComparedRun:
        began = time.mktime((2026, 3, 1, 12, int(Path(place).name[0]), 0, 0, 0, -1))
        return replace(recorded(place, cancelled), label="training on sim:0", began_wall_s=began)

    runs = OverlaidRuns(window.workspace.session.store, load)
    assert lay_over(window, runs, 3, qtbot) == ["A 12:00", "B 12:01", "C 12:02"]
    assert runs.close()


def test_a_run_begins_where_the_run_in_view_does(window: MainWindow, qtbot: QtBot) -> None:
    session = cast(FakeSession, window.workspace.session)
    runs = OverlaidRuns(session.store, recorded)
    lay_over(window, runs, 2, qtbot)
    began_s = session.store.newest_s - 3.0
    session.store.apply(RunStarted(time_s=began_s, run_id=7, workload="matmul", device="cpu", spec={}))
    settle(window)

    def begins() -> tuple[float, float] | None:
        with session.store.lock:
            series = session.store.series(LAID_OVER, "memory", "B")
        assert series is not None
        return series.extent()

    qtbot.waitUntil(lambda: begins() == pytest.approx((began_s, began_s + 4.0)))
    settle(window)
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None
    assert plot.points.raw["B training 1"][1].max() == pytest.approx(1e9 + 1)
    assert runs.close()


def test_with_nothing_running_ticked_runs_are_in_view_whole_from_their_start_and_stay(
    window: MainWindow, qtbot: QtBot
) -> None:
    session = cast(FakeSession, window.workspace.session)
    session.feed(300)
    dashboard = window.workspace.dashboard
    window_s = dashboard.view.window_s
    runs = OverlaidRuns(session.store, recorded)
    lay_over(window, runs, 3, qtbot)
    plot = dashboard.plots.plot("memory")
    assert plot is not None and runs.span is not None
    assert plot.time_ticks.name == "seconds since the start" and float(plot.time_ticks.marks[0][1]) == 0
    shown = dashboard.view.range()
    assert shown[0] == runs.span[0] and shown[1] == pytest.approx(runs.span[1] + 0.2)
    assert all(len(plot.points.raw[f"{letter} training {place}"][0]) > 1 for place, letter in enumerate("ABC"))
    session.feed(60)
    settle(window)
    assert dashboard.view.range() == shown and dashboard.view.status() == "Runs from their start"
    lay_over(window, runs, 0, qtbot)
    assert dashboard.view.following and dashboard.view.window_s == window_s
    assert plot.time_ticks.name.endswith("before now")
    assert runs.close()


def test_once_no_run_is_ticked_the_view_returns_to_the_run_that_it_held(window: MainWindow, qtbot: QtBot) -> None:
    session = cast(FakeSession, window.workspace.session)
    view = window.workspace.dashboard.view
    session.feed(60)
    settle(window)
    view.hold(15.0, 25.0)
    runs = OverlaidRuns(session.store, recorded)
    lay_over(window, runs, 2, qtbot)
    assert runs.span is not None and view.range()[0] == runs.span[0]
    lay_over(window, runs, 1, qtbot)
    lay_over(window, runs, 0, qtbot)
    assert view.held and view.range() == (15.0, 25.0)
    assert runs.close()


def test_over_a_run_that_goes_on_the_view_follows_and_counts_from_its_start(window: MainWindow, qtbot: QtBot) -> None:
    session = cast(FakeSession, window.workspace.session)
    began_s = session.store.newest_s - 3.0
    session.store.apply(RunStarted(time_s=began_s, run_id=7, workload="matmul", device="cpu", spec={}))
    runs = OverlaidRuns(session.store, recorded)
    lay_over(window, runs, 2, qtbot)
    view = window.workspace.dashboard.view
    assert view.following and view.origin_s == began_s
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None and plot.time_ticks.name == "seconds since the start"
    assert runs.close()


def test_a_run_has_the_colour_that_it_has_in_a_comparison(window: MainWindow, qtbot: QtBot) -> None:
    runs = OverlaidRuns(window.workspace.session.store, recorded)
    lay_over(window, runs, 6, qtbot)
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None
    palette = window.workspace.colours
    laid = [palette.curves[curve.colour] for curve in plot.spec.curves if curve.key[0] == LAID_OVER]
    assert laid == [run_pen(place, palette).color().name() for place in range(6)]
    assert len(set(laid)) == 6
    assert runs.close()


def test_what_is_laid_over_is_no_part_of_what_was_read(window: MainWindow, qtbot: QtBot) -> None:
    runs = OverlaidRuns(window.workspace.session.store, recorded)
    lay_over(window, runs, 2, qtbot)
    with window.workspace.session.store.lock:
        assert LAID_OVER not in {key[0] for key, _ in window.workspace.session.store.curves()}
    assert runs.close()


def curves_by_plot(window: MainWindow) -> dict[str, list[str]]:
    """The overlaid runs in each plot that is shown, by its title."""
    settle(window)
    found = {}
    for plot in window.workspace.dashboard.plots.plots:
        laid = [curve.name for curve in plot.spec.curves if curve.is_laid_over]
        if laid:
            found[plot.spec.title] = laid
    return found


def test_gpu_memory_is_not_drawn_over_the_computers_memory(open_window: OpenWindow, qtbot: QtBot) -> None:
    def load(place: str, cancelled: Callable[[], bool]) -> ComparedRun:
        run = recorded(place, cancelled)
        on_gpu = MADE.but(device="cuda:0").run("on GPU")
        on_cpu = MADE.but(device="cpu").run("on cpu")
        if place.startswith("/runs/0"):
            return replace(run, label="on GPU", view=on_gpu.view)
        return replace(run, label="on cpu", view=on_cpu.view)

    window = open_window(FakeSession([]).feed(10))
    runs = OverlaidRuns(window.workspace.session.store, load)
    window.workspace.dashboard.overlay.choose(runs, PLACES[:2])
    qtbot.waitUntil(lambda: bool(curves_by_plot(window)))
    assert curves_by_plot(window)["MEMORY cuda:0 · overlaid runs"] == ["A on GPU"]
    memory = window.workspace.dashboard.plots.plot("memory")
    assert memory is not None
    assert [curve.name for curve in memory.spec.curves if curve.is_laid_over] == ["B on cpu"]
    assert runs.close()


def test_the_steps_of_a_script_are_not_drawn_as_items(open_window: OpenWindow, qtbot: QtBot) -> None:
    def load(place: str, cancelled: Callable[[], bool]) -> ComparedRun:
        run = MADE.but(workload=WATCH, device="cpu").run("script")
        if place.startswith("/runs/0"):
            return run
        return MADE.but(device="cpu").run("training")

    session = FakeSession([]).feed(5)
    session.start()
    session.train(5)
    window = open_window(session)
    runs = OverlaidRuns(session.store, load)
    window.workspace.dashboard.overlay.choose(runs, PLACES[:2])
    qtbot.waitUntil(lambda: bool(curves_by_plot(window)))
    plots = {plot.spec.title: plot.spec for plot in window.workspace.dashboard.plots.plots}
    assert plots["THROUGHPUT · overlaid runs"].unit_name == "steps/s"
    assert curves_by_plot(window)["THROUGHPUT · overlaid runs"] == ["A script"]
    assert curves_by_plot(window)["THROUGHPUT"] == ["B training"]
    assert plots["LOSS · overlaid runs"].unit == "loss"
    assert runs.close()


def test_a_run_that_cannot_be_read_is_said_and_the_others_are_drawn(window: MainWindow, qtbot: QtBot) -> None:
    def load(place: str, cancelled: Callable[[], bool]) -> ComparedRun:
        if place.startswith("/runs/1"):
            raise RecordingError("/runs/1.gpudash is no recording.")
        return recorded(place, cancelled)

    runs = OverlaidRuns(window.workspace.session.store, load)
    window.workspace.dashboard.overlay.choose(runs, PLACES[:2])
    dashboard = window.workspace.dashboard
    qtbot.waitUntil(lambda: "no recording" in runs.problem)
    settle(window)
    assert dashboard.status_line.has_message and runs.problem == ""
    plot = dashboard.plots.plot("memory")
    assert plot is not None and "A training 0" in [curve.name for curve in plot.spec.curves]
    assert runs.close()


def test_a_million_points_are_thinned_to_the_columns_there_are(window: MainWindow, qtbot: QtBot) -> None:
    times = MADE.run("long").began_s + np.linspace(0.0, 9.0, POINTS)

    def load(place: str, cancelled: Callable[[], bool]) -> ComparedRun:
        run = recorded(place, cancelled)
        memory = {"used": Curve(times, 1e9 + np.sin(times) * 1e8)}
        return run.__class__(run.label, place, run.view, run.steps, memory=memory)

    runs = OverlaidRuns(window.workspace.session.store, load)
    lay_over(window, runs, 2, qtbot)
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None
    assert 100 < len(plot.points.raw["A training 0"][0]) <= 6 * plot.columns
    assert runs.close()
