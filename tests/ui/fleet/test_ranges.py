"""Which part of the past is looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpudash.ui.fleet.header import DAY_S, PRESETS, Range, between, range_text

NOW_S = 1_700_000_000.0


def test_a_preset_ends_now_and_moves_on_with_it() -> None:
    assert Range(900.0).at(NOW_S) == (NOW_S - 900, NOW_S)
    assert Range(900.0).at(NOW_S + 60) == (NOW_S - 840, NOW_S + 60)


@given(st.sampled_from([seconds for _words, seconds in PRESETS]), st.integers(1, 5))
def test_as_far_back_as_forth_ends_where_it_began(seconds: float, steps: int) -> None:
    chosen = Range(seconds)
    for _step in range(steps):
        chosen = chosen.earlier(NOW_S)
    assert chosen.at(NOW_S) == (NOW_S - (steps + 1) * seconds, NOW_S - steps * seconds)
    for _step in range(steps):
        chosen = chosen.later(NOW_S)
    assert chosen == Range(seconds)


def test_no_part_ends_in_the_future() -> None:
    assert Range(60.0, NOW_S + 500).at(NOW_S) == (NOW_S - 60, NOW_S)


def test_two_moments_may_come_in_either_order_and_may_be_the_same() -> None:
    assert between(20.0, 10.0) == Range(10.0, 20.0)
    assert between(10.0, 10.0).seconds > 0


def test_another_day_is_the_same_hours_earlier() -> None:
    assert Range(3600.0).days_before(2, NOW_S).at(NOW_S) == (NOW_S - 3600 - 2 * DAY_S, NOW_S - 2 * DAY_S)


def test_words_name_the_day_twice_only_where_it_changes() -> None:
    assert range_text(NOW_S, NOW_S + 60).count("Nov") == 1
    assert range_text(NOW_S, NOW_S + 2 * DAY_S).count("Nov") == 2
