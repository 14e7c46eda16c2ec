"""A run that has ended stays in view until a new one begins or somebody goes back to live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.specs.training import TrainingSpec
from gpudash.telemetry.explanation import Remedy
from gpudash.telemetry.records import RunEnd, RunStarted, StepFinished
from gpudash.telemetry.runs import WATCH
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.window.main_window import MainWindow
from tests.ui import test_explanation as explained
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession


@pytest.fixture
def session() -> FakeSession:
    """Five seconds in which nothing ran."""
    return FakeSession().feed(5)


@pytest.fixture
def ended(open_window: OpenWindow, session: FakeSession) -> MainWindow:
    """A window in which a training of ten seconds has ended two minutes ago."""
    window = open_window(session, size=(1280, 800))
    session.start()
    session.train(10)
    settle(window)
    session.end()
    settle(window)
    session.feed(120)
    settle(window)
    return window


def _plots(dashboard: Dashboard) -> list[str]:
    return [plot.spec.id for plot in dashboard.plots.plots]


def test_its_plots_and_its_range_stay_when_time_goes_on(ended: MainWindow) -> None:
    dashboard = ended.workspace.dashboard
    assert _plots(dashboard) == ["loss", "memory", "utilisation", "throughput"]
    left, right = dashboard.view.range()
    assert 4.4 <= left <= 5 and 15 <= right <= 15.6 and dashboard.view.held
    assert dashboard.view.status() == "This run ended 2 min 00 s ago"


def test_the_readout_shows_its_last_values(ended: MainWindow) -> None:
    readout = ended.workspace.dashboard.plots.readout
    assert readout.title == "at 0:15.0"
    values = dict(readout.rows())
    assert values["loss"] not in ("-", "") and values["this process"] not in ("-", "")


def test_one_click_goes_back_to_live_with_as_much_time_as_before(ended: MainWindow, session: FakeSession) -> None:
    dashboard = ended.workspace.dashboard
    dashboard.view_bar.pause.click()
    settle(ended)
    assert dashboard.view.following and dashboard.view.window_s == session.settings.window_s
    assert _plots(dashboard) == ["memory", "utilisation"] and dashboard.plots.readout.title == "now"


def test_the_next_run_is_followed(ended: MainWindow, session: FakeSession) -> None:
    session.running = True
    session.apply(RunStarted(time_s=session.now_s, run_id=2, workload="training", device="cpu", spec={}))
    settle(ended)
    view = ended.workspace.dashboard.view
    assert view.following and view.window_s == session.settings.window_s


def test_a_view_that_somebody_paused_stays_where_it_is(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    session.start()
    session.train(5)
    settle(window)
    view = window.workspace.dashboard.view
    view.show(2.0, 6.0)
    session.end()
    settle(window)
    assert view.range() == (2.0, 6.0) and not view.held


def test_a_run_that_had_ended_before_the_window_opened_is_not_brought_back(
    open_window: OpenWindow, session: FakeSession
) -> None:
    session.start()
    session.train(5)
    session.end()
    window = open_window(session)
    assert window.workspace.dashboard.view.following


def test_a_moved_view_is_no_longer_that_of_the_run(ended: MainWindow) -> None:
    view = ended.workspace.dashboard.view
    view.pan(-1.0)
    assert not view.held and view.status().startswith("Paused")


def test_a_run_that_came_to_no_number_still_says_so(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    session.start()
    session.train(3, loss=float("nan"))
    session.end()
    session.feed(30)
    settle(window)
    assert dict(window.workspace.dashboard.plots.readout.rows())["loss"] == "NaN"


def test_a_run_of_a_moment_is_shown_with_what_was_read_before_it(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    session.start()
    session.train(0.1)
    session.end()
    settle(window)
    view = window.workspace.dashboard.view
    assert view.held and view.window_s == pytest.approx(2.0) and 5.1 <= view.right_s <= 5.11


def test_while_what_would_have_fitted_is_sought_the_readout_has_the_programs_last_step(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session)
    began_s = session.now_s
    session.running = True
    session.apply(RunStarted(time_s=began_s, run_id=1, workload=WATCH, device="cpu", spec={}))
    session.feed(10)
    session.apply(StepFinished(time_s=began_s + 8, run_id=1, step=1, steps=0, seconds=1.0, loss=0.5))
    settle(window)
    dashboard = window.workspace.dashboard
    dashboard.view.hold(began_s, began_s + 10.5)
    session.feed(30)
    settle(window)
    assert dashboard.plots.readout.title == "at 0:13.0"


def test_a_run_that_failed_stays_as_well(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    session.start()
    session.train(5)
    settle(window)
    session.end(replace(session.failure(), time_s=session.now_s))
    session.feed(90)
    settle(window)
    assert window.workspace.dashboard.view.held


def test_the_result_is_that_of_the_run_that_is_looked_at_and_not_of_the_newest(
    ended: MainWindow, session: FakeSession
) -> None:
    dashboard = ended.workspace.dashboard
    for workload in ("pressure", "transfer"):
        began = RunStarted(time_s=session.now_s, run_id=2, workload=workload, device="cpu", spec={})
        session.apply(began)
        session.feed(1)
        session.apply(RunEnd(time_s=session.now_s, run_id=2, status="finished", seconds=1.0, steps=1))
        settle(ended)
    result = ended.menus.actions["view.result"]
    for number, workload in ((1, "training"), (2, "pressure"), (3, "transfer")):
        dashboard.hold_run(number)
        result.trigger()
        assert dashboard.result.accessibleDescription().startswith(workload), (
            "the next began the moment that this ended"
        )
    dashboard.hold_run(1)
    dashboard.view_bar.pause.click()
    result.trigger()
    assert dashboard.result.accessibleDescription().startswith("transfer"), "live, the last one is meant"


def test_the_explanation_and_its_remedies_are_those_of_the_run_that_is_looked_at(open_window: OpenWindow) -> None:
    session = explained.failed(explained.Session())
    session.apply(explained.remedies(Remedy("a batch of 32 instead of 64", fields={"batch": 32}, fits=True)))
    session.feed(5)
    session.apply(RunStarted(time_s=session.now_s, run_id=2, workload="pressure", device="cpu", spec={}))
    session.feed(5)
    session.apply(RunEnd(time_s=session.now_s, run_id=2, status="finished", seconds=5.0, steps=1))
    window = open_window(session)
    dashboard = window.workspace.dashboard
    started: list[object] = []
    dashboard.start_requested.connect(lambda: started.append(dashboard.panel.spec()))
    dashboard.hold_run(1)
    dashboard.explanation.explain()
    assert dashboard.explanation.open
    dashboard.explanation.close_page()
    window.menus.actions["view.result"].trigger()
    dashboard.result.ending.remedies.applied.emit(Remedy("a batch of 32", fields={"batch": 32}, fits=True))
    (spec,) = started
    assert isinstance(spec, TrainingSpec) and spec.batch == 32


def test_what_the_card_refused_is_hatched_upon_what_was_in_use(open_window: OpenWindow) -> None:
    session = explained.failed(explained.Session())
    session.feed(3)
    window = open_window(session)
    dashboard = window.workspace.dashboard
    dashboard.show_run()
    settle(window)
    plot = dashboard.plots.plot("memory")
    assert plot is not None and plot.spec.refused is not None and plot.geometry_now is not None
    assert "refused 64 MiB" in plot.legend.levels
    image = plot.canvas.grab().toImage()
    left = round(plot.geometry_now.x_of(6.0))
    bottom = round(plot.geometry_now.y_of(plot.spec.refused.used_bytes))
    places = [(x, y) for x in range(left + 2, left + 9) for y in range(bottom - 9, bottom - 1)]
    colours = [image.pixelColor(*place) for place in places]
    red = sum(colour.red() - colour.blue() > 60 for colour in colours)
    assert 4 < red < len(places) - 4, "lines with gaps between them"
    dashboard.view.show(0.0, 0.5)
    settle(window)
    assert not any(level.startswith("refused") for level in plot.legend.levels), "another time"


def _watched(session: FakeSession, run_id: int, name: str) -> None:
    spec = {"command": ["python", f"/home/mia/{name}"], "pid": 4000 + run_id}
    session.running = True
    session.apply(RunStarted(time_s=session.now_s, run_id=run_id, workload=WATCH, device="cpu", spec=spec))
    session.feed(5)


def _is_filled(window: MainWindow, time_s: float) -> bool:
    """Whether the memory plot has a band at this time, just above its axis."""
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None and plot.geometry_now is not None
    at = round(plot.geometry_now.x_of(time_s)), round(plot.geometry_now.area.bottom()) - 4
    return plot.canvas.grab().toImage().pixelColor(*at).alphaF() > 0.5


def test_a_program_that_is_watched_after_another_one_is_drawn_without_that(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session)
    _watched(session, 1, "first.py")
    settle(window)
    assert _is_filled(window, 2.2), "what was there before the first program stays"
    session.running = False
    session.apply(RunEnd(time_s=session.now_s, run_id=1, status="cancelled", seconds=5.0, steps=0))
    settle(window)
    _watched(session, 2, "second.py")
    settle(window)
    dashboard = window.workspace.dashboard
    dashboard.view.set_window(60.0)  # the page from the program's start has room for nothing else
    settle(window)
    memory = dashboard.plots.plot("memory")
    assert memory is not None and memory.spec.curves[0].name == "second.py"
    assert _is_filled(window, 12.2) and not _is_filled(window, 7.2)
    dashboard.view.show(0.0, session.now_s)
    settle(window)
    assert _is_filled(window, 12.2) and _is_filled(window, 7.2), "both can be looked at"
