import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from gpudash.ui.plots.view import MAX_WINDOW_S, MIN_WINDOW_S, TimeView


@pytest.fixture
def live() -> TimeView:
    view = TimeView(60.0)
    view.set_now(100.0)
    return view


def test_following_ends_at_the_newest_reading(live: TimeView) -> None:
    assert live.range() == (40.0, 100.0)
    live.set_now(103.5)
    assert live.range() == (43.5, 103.5)
    assert live.status() == "Live"


def test_a_run_is_followed_from_its_start_on_pages_that_double_until_the_window_is_full(live: TimeView) -> None:
    live.begin_page(100.0)
    seen = [live.range()]
    for tenth in range(1, 900):
        live.set_now(100.0 + tenth / 10)
        if live.range() != seen[-1]:
            seen.append(live.range())
    pages = seen[:4]
    assert [end - start for start, end in pages] == pytest.approx([7.5, 15.0, 30.0, 60.0])
    assert all(0.0 < (100.0 - start) / (end - start) < 0.03 for start, end in pages)
    assert live.range() == pytest.approx((129.9, 189.9)) and len(seen) > 200, "then it moves on"


@given(lead_s=st.floats(0.0, 20.0), ages=st.lists(st.floats(0.0, 200.0), min_size=2, max_size=20))
def test_a_page_always_has_the_newest_reading_and_the_room_ahead_of_it(lead_s: float, ages: list[float]) -> None:
    view = TimeView(60.0)
    view.begin_page(0.0)
    view.set_lead(lead_s)
    ends = []
    for age in sorted(ages):
        view.set_now(age)
        start, end = view.range()
        assert start <= age <= end - lead_s * (end - start) / 60.0 + 1e-9
        ends.append(end)
    assert ends == sorted(ends), "nothing runs back"


def test_what_the_user_chooses_ends_the_page(live: TimeView) -> None:
    for choose in (
        lambda: live.set_window(60.0),
        lambda: live.zoom(1.0),
        lambda: live.show_all((50.0, 110.0)),
        lambda: live.hold(50.0, 110.0),
    ):
        live.follow()
        live.begin_page(100.0)
        assert live.range()[0] > 99.0
        choose()
        assert live.range()[0] <= 50.1


def test_a_pause_on_a_page_keeps_what_is_shown_and_following_goes_back_to_the_window(live: TimeView) -> None:
    live.begin_page(100.0)
    live.set_now(103.0)
    shown = live.range()
    live.pause()
    live.set_now(130.0)
    assert live.range() == pytest.approx(shown) and live.drawn() == pytest.approx((shown[0], 103.0))
    assert live.status() == "Paused 27 s behind"
    live.pan(1.0)
    assert live.drawn() == live.range(), "what is there now is looked at"
    live.follow()
    assert live.range() == pytest.approx((70.0, 130.0))


def test_a_page_counts_from_the_start_of_its_run_and_a_scrolling_view_from_now(live: TimeView) -> None:
    live.begin_page(100.0)
    live.set_now(101.0)
    assert live.counted_from_s == 100.0 and live.still_s == live.range()[0]
    live.set_now(200.0)
    assert live.counted_from_s is None and live.still_s == 200.0


def test_pausing_freezes_the_range_and_says_how_far_behind_it_is(live: TimeView) -> None:
    live.pause()
    live.set_now(112.0)
    assert live.range() == (40.0, 100.0)
    assert live.status() == "Paused 12 s behind"
    live.follow()
    assert live.range() == (52.0, 112.0)


def test_a_long_pause_is_said_in_minutes(live: TimeView) -> None:
    live.pause()
    live.set_now(285.0)
    assert live.status() == "Paused 3 min 05 s behind"


def test_zooming_while_following_holds_the_right_edge_and_goes_on_following(live: TimeView) -> None:
    live.zoom(0.5, anchor_s=50.0)
    assert live.following
    assert live.range() == (70.0, 100.0)


def test_zooming_while_paused_holds_the_time_under_the_pointer(live: TimeView) -> None:
    live.show(0.0, 60.0)
    live.zoom(0.5, anchor_s=20.0)
    assert live.range() == pytest.approx((10.0, 40.0))


def test_panning_back_pauses_and_later_readings_do_not_move_the_view(live: TimeView) -> None:
    live.pan(-10.0)
    assert not live.following
    assert live.range() == (30.0, 90.0)
    live.set_now(150.0)
    assert live.range() == (30.0, 90.0)


def test_panning_forward_stops_at_the_newest_reading(live: TimeView) -> None:
    live.pan(5.0)
    assert live.following
    live.pan(-10.0)
    live.pan(1000.0)
    assert live.range() == (40.0, 100.0)


def test_history_goes_back_and_forward_through_views(live: TimeView) -> None:
    live.show(10.0, 20.0)
    live.show(12.0, 14.0)
    live.back()
    assert live.range() == (10.0, 20.0)
    live.back()
    assert live.following and live.range() == (40.0, 100.0)
    live.forward()
    live.forward()
    assert live.range() == (12.0, 14.0)
    live.forward()
    assert live.range() == (12.0, 14.0)


def test_one_turn_of_the_wheel_is_one_step_of_history(live: TimeView) -> None:
    for _ in range(10):
        live.zoom(0.8)
    live.back()
    assert live.window_s == 60.0


def test_two_drags_are_two_steps_of_history(live: TimeView) -> None:
    for _ in range(2):
        live.pan(-5.0)
        live.pan(-5.0)
        live.settle()
    live.back()
    assert live.range() == (30.0, 90.0)


def test_showing_all_goes_on_following(live: TimeView) -> None:
    live.show_all((2.0, 100.0))
    assert live.following and live.range() == (2.0, 100.0)


def test_showing_all_of_nothing_changes_nothing(live: TimeView) -> None:
    live.show_all(None)
    assert live.range() == (40.0, 100.0)


def test_a_forecast_gets_room_beyond_now_and_pausing_does_not_jump(live: TimeView) -> None:
    live.set_lead(4.0)
    assert live.range() == (44.0, 104.0)
    live.pause()
    assert live.range() == (44.0, 104.0)


def test_a_selection_is_kept_in_order_and_told_once(live: TimeView, qtbot: QtBot) -> None:
    told: list[int] = []
    live.selection_changed.connect(lambda: told.append(1))
    live.select(20.0, 10.0)
    live.select(10.0, 20.0)
    assert live.selection == (10.0, 20.0)
    live.clear_selection()
    live.clear_selection()
    assert live.selection is None and len(told) == 2


def test_zooming_to_the_selection_shows_exactly_that(live: TimeView) -> None:
    live.zoom_to_selection()
    assert live.following
    live.select(41.0, 43.0)
    live.zoom_to_selection()
    assert live.range() == (41.0, 43.0) and not live.following


def test_the_cursor_of_a_resting_mouse_moves_with_the_data_and_a_pinned_one_does_not(live: TimeView) -> None:
    live.set_cursor(90.0)
    live.set_now(101.0)
    assert live.cursor_s == pytest.approx(91.0)
    live.set_cursor(90.0, pinned=True)
    live.set_now(105.0)
    assert live.cursor_s == 90.0


def test_pausing_leaves_the_cursor_where_it_is(live: TimeView) -> None:
    live.set_cursor(90.0)
    live.pause()
    live.set_now(120.0)
    assert live.cursor_s == pytest.approx(90.0)


steps = st.one_of(
    st.tuples(st.just("zoom"), st.floats(0.01, 100), st.floats(-1e3, 1e4)),
    st.tuples(st.just("pan"), st.floats(-1e4, 1e4)),
    st.tuples(st.just("set_now"), st.floats(0, 1e4)),
    st.tuples(st.just("show"), st.floats(0, 1e4), st.floats(0, 1e4)),
    st.tuples(st.sampled_from(["pause", "follow", "toggle", "back", "forward"])),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(steps, max_size=30))
def test_whatever_is_done_the_range_is_sound(moves: list[tuple[object, ...]]) -> None:
    view = TimeView(60.0)
    for name, *arguments in moves:
        getattr(view, str(name))(*arguments)
        start, end = view.range()
        assert start < end
        assert MIN_WINDOW_S * 0.99 <= end - start <= MAX_WINDOW_S * 1.01
        if view.following:
            assert end == view.now_s
