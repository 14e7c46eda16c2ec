"""A series as it was at a moment, and one that is known more exactly in places."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.buckets import summary
from gpudash.telemetry.recording.recorded_series import RecordedSeries
from gpudash.telemetry.series import Series

COUNTS = st.integers(1, 300)
TIMES = st.floats(-5.0, 310.0)


def filled(count: int, recent: int = 16, buckets: int = 8) -> Series:
    series = Series(recent, buckets)
    for i in range(count):
        series.append(float(i), None if i % 11 == 3 else float(i * 37 % 101))
    return series


@settings(max_examples=150, deadline=None)
@given(COUNTS, TIMES)
def test_a_series_as_it_was_knows_nothing_later_and_everything_kept_before(count: int, t: float) -> None:
    whole = filled(count)
    then = whole.until(t)
    times, values = whole.window(-10.0, 400.0, 10_000)
    known = times <= t
    found = then.window(-10.0, 400.0, 10_000)
    assert found[0].tolist() == times[known].tolist()
    assert found[1].tolist() == pytest.approx(values[known].tolist(), nan_ok=True)
    last = then.last()
    assert last == (None if not known.any() else pytest.approx((times[known][-1], values[known][-1]), nan_ok=True))
    extent = then.extent()
    assert extent is None if last is None else extent == (0.0, last[0])
    assert len(then) <= len(whole)


@settings(max_examples=50, deadline=None)
@given(COUNTS, st.lists(TIMES, min_size=2, max_size=8), st.integers(1, 30))
def test_going_from_moment_to_moment_draws_the_same_as_going_there_at_once(
    count: int, moments: list[float], columns: int
) -> None:
    whole, seen = filled(count), None
    for t in moments:
        seen = whole.until(t, seen)
        fresh = filled(count).until(t)
        drawn, expected = seen.window(0.0, 310.0, columns), fresh.window(0.0, 310.0, columns)
        assert np.nanmin(drawn[1], initial=1e9) == np.nanmin(expected[1], initial=1e9)
        assert np.nanmax(drawn[1], initial=-1e9) == np.nanmax(expected[1], initial=-1e9)
        assert drawn[0].max(initial=-1.0) <= max(t, -1.0)


def preloaded(count: int) -> RecordedSeries:
    times = np.arange(float(count))
    return RecordedSeries.preloaded(summary(times, times * 2, 16), count, 16)


def test_a_preloaded_series_goes_on_where_its_buckets_end() -> None:
    series = preloaded(100)
    for i in range(100, 3000):
        series.append(float(i), i * 2.0)
    found = series.statistics(-math.inf, math.inf)
    assert found is not None
    assert (len(series), series.extent(), series.last()) == (3000, (0.0, 2999.0), (2999.0, 5998.0))
    assert (found.count, found.min, found.max, found.mean) == (3000, 0.0, 5998.0, 2999.0)


def test_what_is_not_known_exactly_is_asked_for_and_answered_once_it_is_there() -> None:
    series, asked = preloaded(1000), []
    series.ask = lambda t0, t1: asked.append((t0, t1))
    coarse = series.window(100.0, 140.0, 800)[0]
    series.window(100.0, 140.0, 800)
    assert asked == [(100.0, 140.0)] * 2
    raw = Series()
    for i in range(90, 151):
        raw.append(float(i), i * 2.0)
    series.sharpen([((90.0, 150.0), raw)])
    asked.clear()
    assert len(coarse) < len(series.window(100.0, 140.0, 800)[0]) == 43
    assert series.at(101.5) == 202.0
    assert series.neighbour(101.0, 1) == 102.0
    figures = series.statistics(101.0, 103.0)
    assert figures is not None
    assert (figures.count, figures.mean) == (3, 204.0)
    assert asked == []
    assert series.until(120.0).window(100.0, 140.0, 800)[0][-1] == 120.0
    series.window(100.0, 300.0, 800)
    assert asked == [(100.0, 300.0)]


def test_a_range_without_an_end_and_one_outside_ask_for_nothing() -> None:
    series = preloaded(1000)
    series.ask = lambda t0, t1: pytest.fail("asked")
    series.statistics(-math.inf, math.inf)
    series.window(-50.0, -10.0, 100)
    series.window(2000.0, 3000.0, 100)


def test_the_end_of_a_view_is_drawn_and_read_where_it_is_known() -> None:
    view = preloaded(1000).until(500.5)
    view.end_with(500.4, 7.0)
    assert view.last() == (500.4, 7.0)
    assert view.extent() == (0.0, 500.4)
    times, values = view.window(400.0, 600.0, 800)
    assert (times[-1], values[-1]) == (500.4, 7.0)
    assert view.at(500.45) == 7.0
    view.end_with(100.0, 8.0)
    assert view.last() == (500.4, 7.0)
