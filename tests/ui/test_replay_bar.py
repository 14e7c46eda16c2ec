"""The bar that plays a recording: play, pause, speed, place, end, and a file that is still being written."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from gpudash.ui.plots.view import TimeView
from gpudash.ui.recordings.replay_bar import LONGEST_STEP_S, PARTS, SPEEDS, ReplayBar, place_text
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.ui.recordings import open_recording, trained
from tests.unit.clock import Clock

Key = Qt.Key


class Tape:
    """A replay without a recording."""

    def __init__(self) -> None:
        self.extent_s = (2.0, 102.0)
        self.position_s = 102.0
        self.at_end = True
        self.following = False

    def seek(self, time_s: float | None) -> None:
        self.at_end = time_s is None or time_s >= self.extent_s[1]
        self.position_s = self.extent_s[1] if self.at_end or time_s is None else max(time_s, self.extent_s[0])

    def write(self, seconds: float) -> None:
        """The file grows."""
        self.extent_s = (self.extent_s[0], self.extent_s[1] + seconds)
        if self.at_end:
            self.position_s = self.extent_s[1]


@pytest.fixture
def tape() -> Tape:
    return Tape()


@pytest.fixture
def view(tape: Tape) -> TimeView:
    view = TimeView(60.0)
    view.set_now(tape.position_s)
    view.show(2.0, 102.0)
    return view


@pytest.fixture
def bar(tape: Tape, view: TimeView, clock: Clock, qtbot: QtBot) -> ReplayBar:
    bar = ReplayBar(tape, view, 60.0, clock=clock)
    qtbot.addWidget(bar)
    bar.show()
    return bar


def frame(bar: ReplayBar, clock: Clock, seconds: float) -> None:
    clock.now_s += seconds
    bar.refresh()


def test_at_the_end_play_begins_where_the_view_begins_and_the_view_follows(
    bar: ReplayBar, tape: Tape, view: TimeView, clock: Clock
) -> None:
    bar.toggle()
    assert bar.playing and view.following and tape.position_s == 2.0
    frame(bar, clock, 0.25)
    assert tape.position_s == pytest.approx(2.25) and view.range()[1] == pytest.approx(2.25)
    assert view.window_s == 60.0, "no more than the live view shows"


@pytest.mark.parametrize("speed", SPEEDS)
def test_every_speed_plays_as_many_seconds_in_one(bar: ReplayBar, tape: Tape, clock: Clock, speed: int) -> None:
    bar.speed.setCurrentIndex(bar.speed.findData(speed))
    bar.toggle()
    frame(bar, clock, 0.1)
    frame(bar, clock, 0.1)
    assert tape.position_s == pytest.approx(2.0 + 0.2 * speed)


def test_a_stream_of_which_nothing_has_come_yet_has_a_bar_too(
    tape: Tape, view: TimeView, clock: Clock, qtbot: QtBot
) -> None:
    tape.extent_s, tape.position_s, tape.following = (0.0, 0.0), 0.0, True
    bar = ReplayBar(tape, view, 60.0, clock=clock)
    qtbot.addWidget(bar)
    assert bar.time.text() == "0:00.0 / 0:00.0"
    bar.slider.setFocus()
    QTest.keyClick(bar.slider, Key.Key_Left)
    frame(bar, clock, 0.1)
    tape.write(4.0)
    frame(bar, clock, 0.1)
    assert bar.time.text().endswith("/ 0:04.0")


def test_a_window_that_hung_skips_nothing(bar: ReplayBar, tape: Tape, clock: Clock) -> None:
    bar.toggle()
    frame(bar, clock, 30.0)
    assert tape.position_s == pytest.approx(2.0 + LONGEST_STEP_S)


def test_pause_holds_the_place_and_play_goes_on_from_there(bar: ReplayBar, tape: Tape, clock: Clock) -> None:
    bar.toggle()
    frame(bar, clock, 0.4)
    bar.toggle()
    assert not bar.playing and "Play" in bar.play.text()
    frame(bar, clock, 0.4)
    assert tape.position_s == pytest.approx(2.4)
    bar.toggle()
    frame(bar, clock, 0.4)
    assert tape.position_s == pytest.approx(2.8) and "Pause" in bar.play.text()


def test_playing_stops_at_the_end(bar: ReplayBar, tape: Tape, view: TimeView, clock: Clock) -> None:
    tape.seek(101.9)
    bar.toggle()
    frame(bar, clock, 0.2)
    assert tape.at_end and not bar.playing and view.range()[1] == 102.0
    assert not bar.end.isEnabled()


def test_the_slider_goes_to_any_place_at_the_next_frame(bar: ReplayBar, tape: Tape, clock: Clock) -> None:
    bar.slider.setValue(PARTS // 4)
    assert tape.at_end, "no handler waits for the file"
    frame(bar, clock, 0.1)
    assert tape.position_s == pytest.approx(27.0)
    assert bar.time.text() == "0:25.0 / 1:40.0" and bar.slider.accessibleDescription() == "0:25.0 of 1:40.0"
    bar.slider.setValue(PARTS)
    frame(bar, clock, 0.1)
    assert tape.at_end


def test_scrubbing_out_of_the_view_makes_it_follow_and_within_it_stays(
    bar: ReplayBar, view: TimeView, clock: Clock
) -> None:
    bar.slider.setValue(PARTS // 2)
    frame(bar, clock, 0.1)
    assert not view.following and view.range() == (2.0, 102.0)
    view.show(80.0, 100.0)
    bar.slider.setValue(PARTS // 4)
    frame(bar, clock, 0.1)
    assert view.following and view.range()[1] == pytest.approx(27.0)


def test_arrows_move_by_a_second_and_pages_by_a_twentieth(bar: ReplayBar, tape: Tape, clock: Clock) -> None:
    bar.slider.setValue(PARTS // 2)
    frame(bar, clock, 0.1)
    QTest.keyClick(bar.slider, Key.Key_Right)
    frame(bar, clock, 0.1)
    assert tape.position_s == pytest.approx(53.0)
    QTest.keyClick(bar.slider, Key.Key_PageDown)
    frame(bar, clock, 0.1)
    assert tape.position_s == pytest.approx(48.0)


def test_to_the_end_shows_everything_again(bar: ReplayBar, tape: Tape, clock: Clock) -> None:
    bar.slider.setValue(0)
    frame(bar, clock, 0.1)
    bar.end.click()
    assert tape.at_end and bar.slider.value() == PARTS and not bar.end.isEnabled()


def test_a_file_that_is_written_is_followed_paused_and_followed_again(
    bar: ReplayBar, tape: Tape, view: TimeView, clock: Clock
) -> None:
    tape.following = True
    view.follow()
    frame(bar, clock, 0.1)
    assert bar.live and "Pause" in bar.play.text() and not bar.end.isEnabled()
    tape.write(5.0)
    frame(bar, clock, 0.1)
    assert bar.time.text() == "1:45.0 / 1:45.0"
    bar.toggle()
    assert not view.following and not bar.live and "Play" in bar.play.text()
    tape.write(5.0)
    bar.end.click()
    assert bar.live and tape.position_s == 112.0 and "Follow" in bar.end.text()


def test_playing_catches_up_with_a_file_that_is_written(
    bar: ReplayBar, tape: Tape, view: TimeView, clock: Clock
) -> None:
    tape.following = True
    tape.seek(101.8)
    bar.toggle()
    frame(bar, clock, 0.4)
    assert bar.live and not bar.playing


def test_every_part_has_a_name_and_a_tip(bar: ReplayBar) -> None:
    for part in (bar.play, bar.speed, bar.slider, bar.end):
        assert part.accessibleName() and part.toolTip() and part.focusPolicy() & Qt.FocusPolicy.TabFocus


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0:00.0"), (4.25, "0:04.2"), (59.96, "1:00.0"), (3723.4, "1:02:03.4"), (-1.0, "0:00.0")],
)
def test_a_place_in_words(seconds: float, words: str) -> None:
    assert place_text(seconds) == words


@pytest.fixture
def window(open_window: OpenWindow) -> MainWindow:
    return open_window(FakeSession().feed(2))


def test_space_plays_the_recording_in_front_and_tables_cards_and_curves_are_of_its_position(
    window: MainWindow, tmp_path: Path, qtbot: QtBot
) -> None:
    document = open_recording(window, trained().save(tmp_path / "run.gpudash"), qtbot)
    dashboard, replay = document.dashboard, document.replay
    assert dashboard is not None and replay is not None
    events = len(dashboard.tabs._events)
    dashboard.view_bar.smoothing.setValue(60)
    document.bar.slider.setValue(PARTS * 3 // 4)
    settle(window)
    with replay.store.lock:
        run = replay.store.run
    assert run is not None and run.running and 0 < run.step < 120
    assert "in progress" in document.head.label.text()
    assert dashboard.panel.progress.label.text().startswith("In progress")
    assert 0 < len(dashboard.tabs._events) < events
    points = [plot.points for plot in dashboard.plots.plots]
    assert any(drawn.smoothed for drawn in points)
    curves = [t for drawn in points for t, _ in (*drawn.raw.values(), *drawn.smoothed.values())]
    assert max(t[-1] for t in curves if len(t)) <= replay.position_s
    assert {mark.label for mark in dashboard.plots.marks} >= {"here it began"}
    assert "finished" not in {mark.label for mark in dashboard.plots.marks}
    QTest.keyClick(dashboard.plots.plots[0].canvas, Key.Key_Space)
    assert document.bar.playing and window.workspace.dashboard.view.following
    document.setFocus()
    QTest.keyClick(document, Key.Key_Space)
    assert not document.bar.playing
    window.menus.actions["view.jump_to_now"].trigger()
    settle(window)
    assert replay.at_end and len(dashboard.tabs._events) == events
    assert "finished" in document.head.label.text()


def test_space_in_a_field_of_a_recording_does_not_play(window: MainWindow, tmp_path: Path, qtbot: QtBot) -> None:
    document = open_recording(window, trained().save(tmp_path / "run.gpudash"), qtbot)
    assert document.dashboard is not None
    search = document.dashboard.tabs.output.search
    document.dashboard.tabs.show_output()
    search.setFocus()
    QTest.keyClicks(search, "a b")
    assert search.text() == "a b" and not document.bar.playing
