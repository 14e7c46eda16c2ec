"""`Series` against a plain list: what is thinned or folded must still be true."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.series import Series, cell_start, thin

VALUES = st.one_of(st.none(), st.integers(-5, 5).map(float), st.floats(-1e12, 1e12))
STEPS = st.sampled_from([0.0, 0.05, 0.05, 0.05, 1.0])


@st.composite
def samples(draw: st.DrawFn) -> list[tuple[float, float]]:
    t, found = 0.0, []
    for step, value in draw(st.lists(st.tuples(STEPS, VALUES), min_size=1, max_size=400)):
        t += step
        found.append((t, math.nan if value is None else value))
    return found


def filled(data: list[tuple[float, float]], recent: int = 16, buckets: int = 4) -> Series:
    series = Series(recent, buckets)
    for t, v in data:
        series.append(t, None if math.isnan(v) else v)
    return series


def finite(data: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(t, v) for t, v in data if not math.isnan(v)]


@settings(max_examples=120, deadline=None)
@given(samples(), st.integers(1, 40))
def test_extremes_of_the_whole_history_survive_any_thinning(data: list[tuple[float, float]], columns: int) -> None:
    series = filled(data)
    times, values = series.window(-1.0, data[-1][0] + 1.0, columns)
    there = finite(data)
    if not there:
        assert np.isnan(values).all()
        return
    assert np.nanmin(values) == min(v for _, v in there)
    assert np.nanmax(values) == max(v for _, v in there)
    known = {(t, v) for t, v in there}
    assert all((t, v) in known for t, v in zip(times, values, strict=True) if not math.isnan(v))
    assert (np.diff(times) >= 0).all()


@settings(max_examples=120, deadline=None)
@given(samples(), st.integers(1, 40), st.data())
def test_every_part_of_the_recent_past_keeps_its_own_extremes_and_gaps(
    data: list[tuple[float, float]], columns: int, draw: st.DataObject
) -> None:
    series = filled(data, recent=512)
    ends = draw.draw(st.tuples(st.floats(0, data[-1][0] + 0.1), st.floats(0, data[-1][0] + 0.1)))
    t0, t1 = min(ends), max(ends) + 1e-3
    inside = [(t, v) for t, v in data if t0 <= t <= t1]
    times, values = series.window(t0, t1, columns)
    drawn = values[(times >= t0) & (times <= t1)]
    there = [v for _, v in finite(inside)]
    if there:
        assert np.nanmin(drawn) == min(there)
        assert np.nanmax(drawn) == max(there)
    assert np.isnan(drawn).any() == any(math.isnan(v) for _, v in inside)


@settings(max_examples=60, deadline=None)
@given(samples())
def test_figures_of_the_whole_history_are_exact(data: list[tuple[float, float]]) -> None:
    found = filled(data).statistics(-1.0, data[-1][0])
    there = finite(data)
    if not there:
        assert found is None
        return
    values = [v for _, v in there]
    assert found is not None
    assert (found.count, found.min, found.max) == (len(values), min(values), max(values))
    assert (found.start, found.end, found.delta) == (values[0], values[-1], values[-1] - values[0])
    assert found.duration_s == there[-1][0] - there[0][0]
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-6 * max(map(abs, values)) + 1e-12)


@settings(max_examples=60, deadline=None)
@given(samples(), st.floats(0, 50), st.floats(0, 50))
def test_figures_of_a_recent_range_count_exactly_what_lies_in_it(
    data: list[tuple[float, float]], one: float, other: float
) -> None:
    t0, t1 = min(one, other), max(one, other)
    found = filled(data, recent=512).statistics(t0, t1)
    values = [v for t, v in finite(data) if t0 <= t <= t1]
    assert (0 if found is None else found.count) == len(values)
    if found is not None:
        assert (found.min, found.max, found.start, found.end) == (min(values), max(values), values[0], values[-1])


@pytest.mark.parametrize("columns", [2, 10, 100, 777, 1600])
def test_one_spike_among_a_million_samples_is_seen_at_every_zoom(columns: int) -> None:
    series = Series()
    spike = 123_457
    for i in range(1_000_000):
        series.append(i * 0.05, 99.0 if i == spike else 1.0)
    at = spike * 0.05
    for span in (1e-3, 1.0, 60.0, 3600.0, 50_000.0):
        times, values = series.window(at - span / 2, at + span / 2, columns)
        assert values.max() == 99.0
        assert times[values.argmax()] == at
        assert len(times) <= 2.4 * columns + 8


def test_a_live_view_of_thinned_history_equals_a_fresh_one() -> None:
    live, rng = Series(256, 16), np.random.default_rng(1)
    data = [(i * 0.05, float(v)) for i, v in enumerate(rng.normal(size=6000))]
    for count, (t, v) in enumerate(data, 1):
        live.append(t, v)
        if count % 97 == 0:
            span = max(t, 1.0)
            times, values = live.window(t - span, t, 7)
            assert values.max() == max(v for _, v in data[:count])
            assert values.min() == min(v for _, v in data[:count])
            assert t - times[-1] < span / 7


def test_a_missing_sample_breaks_the_line() -> None:
    series = filled([(0.0, 1.0), (1.0, math.nan), (2.0, 3.0)])
    times, values = series.window(0.0, 2.0, 100)
    assert times.tolist() == [0.0, 1.0, 2.0]
    assert math.isnan(values[1])


def test_a_line_reaches_both_edges_of_the_window() -> None:
    series = filled([(float(i), float(i)) for i in range(10)])
    times, _ = series.window(3.5, 5.5, 100)
    assert times.tolist() == [3.0, 4.0, 5.0, 6.0]


def test_what_is_returned_does_not_change_with_later_samples() -> None:
    series = filled([(float(i), float(i)) for i in range(16)])
    times, values = series.window(0.0, 15.0, 100)
    for i in range(16, 60):
        series.append(float(i), -1.0)
    assert times.tolist() == values.tolist() == [float(i) for i in range(16)]


def test_the_value_at_a_time_is_the_newest_before_it() -> None:
    series = filled([(0.0, 1.0), (1.0, 2.0), (2.0, math.nan)])
    assert series.at(-0.1) is None
    assert series.at(1.9) == 2.0
    assert series.at(1.9, max_gap=0.5) is None
    assert series.at(2.0) is None


@pytest.mark.parametrize(
    ("samples", "has"),
    [
        ([(1.0, 3.0), (2.0, 4.0)], True),
        ([(1.0, 3.0), (2.0, math.nan)], True),
        ([(1.0, math.nan), (2.0, math.nan)], False),
        ([(0.5, 3.0), (3.5, 4.0)], False),
        ([(0.5, 3.0), (2.0, math.nan), (3.5, 4.0)], False),
        ([(0.1, 3.0), (0.5, 4.0)], False),
        ([], False),
    ],
)
def test_a_range_has_a_value_where_a_sample_in_it_is_a_number(samples: list[tuple[float, float]], has: bool) -> None:
    assert filled(samples).has_value(1.0, 3.0) is has


def test_the_cursor_steps_from_sample_to_sample_and_stays_within() -> None:
    series = filled([(0.0, 1.0), (1.0, 2.0), (3.0, 4.0)])
    assert series.neighbour(1.0, 1) == 3.0
    assert series.neighbour(1.0, -1) == 0.0
    assert series.neighbour(1.5, -1) == 1.0
    assert series.neighbour(1.5, 1) == 3.0
    assert series.neighbour(1.5, 99) == 3.0
    assert series.neighbour(1.5, -99) == 0.0


def test_an_empty_series_has_nothing_to_say() -> None:
    series = Series()
    assert len(series) == 0
    assert series.last() is series.extent() is series.at(1.0) is series.neighbour(1.0, 1) is None
    assert series.statistics(0.0, 1.0) is None
    assert len(series.window(0.0, 1.0, 10)[0]) == 0


def test_extent_and_count_include_what_was_folded() -> None:
    series = filled([(float(i), 0.0) for i in range(1000)])
    assert len(series) == 1000
    assert series.extent() == (0.0, 999.0)
    assert series.last() == (999.0, 0.0)


def test_a_late_sample_is_set_at_the_newest_time() -> None:
    series = filled([(5.0, 1.0), (4.0, 2.0)])
    assert series.last() == (5.0, 2.0)


@settings(max_examples=60, deadline=None)
@given(samples(), st.integers(0, 400), st.integers(0, 400), st.booleans())
def test_samples_that_are_added_in_one_go_are_those_that_come_one_by_one(
    data: list[tuple[float, float]], first: int, second: int, late: bool
) -> None:
    if late:
        data[len(data) // 2 :] = [(t - 1.0, v) for t, v in data[len(data) // 2 :]]
    series = Series(16, 4)
    first, second = sorted((first, second))
    for part in (data[:first], data[first:second], data[second:]):
        series.extend(np.array([t for t, _ in part]), np.array([v for _, v in part]))
    one_by_one = filled(data)
    assert (len(series), series.extent()) == (len(one_by_one), one_by_one.extent())
    for columns in (3, 1000):
        for found, expected in zip(
            series.window(-9.0, 999.0, columns), one_by_one.window(-9.0, 999.0, columns), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_infinite_values_are_extremes_not_gaps() -> None:
    series = filled([(float(i), math.inf if i == 3 else float(i)) for i in range(300)])
    _, values = series.window(0.0, 299.0, 3)
    assert values.max() == math.inf
    assert not np.isnan(values).any()


@pytest.mark.parametrize(("t0", "t1", "columns"), [(1.0, 1.0, 10), (2.0, 1.0, 10), (0.0, 1.0, 0)])
def test_an_empty_range_is_refused(t0: float, t1: float, columns: int) -> None:
    with pytest.raises(ValueError, match="nothing can be drawn"):
        Series().window(t0, t1, columns)


@pytest.mark.parametrize(("recent", "buckets"), [(4, 4), (16, 3), (16, 0)])
def test_a_series_too_small_to_fold_is_refused(recent: int, buckets: int) -> None:
    with pytest.raises(ValueError, match="at least 8 recent"):
        Series(recent, buckets)


def test_a_window_far_narrower_than_a_clock_tick_is_drawn() -> None:
    series = Series(64, 8)
    for _ in range(50):
        series.append(1e6, 1.0)
    _, values = series.window(1e6 - 1e-9, 1e6 + 1e-9, 4)
    assert values.tolist().count(1.0) >= 1


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**6), 10**6), st.floats(1e-4, 1e4))
def test_the_start_of_a_cell_is_the_first_time_counted_to_it(cell: int, width: float) -> None:
    start, inverse = cell_start(cell, width), 1.0 / width
    assert math.floor(start * inverse) >= cell
    assert math.floor(math.nextafter(start, -math.inf) * inverse) < cell


def test_thinning_keeps_a_gap_beside_the_extremes_of_its_cell() -> None:
    times = np.arange(6) / 10
    values = np.array([1.0, 5.0, math.nan, 2.0, -1.0, 3.0])
    _, kept = thin(times, values, 10.0)
    assert kept.tolist()[0] == 5.0
    assert math.isnan(kept[1])
    assert kept.tolist()[2] == -1.0


def test_a_series_of_few_samples_takes_little_memory_and_one_of_many_what_it_is_bounded_to() -> None:
    tracemalloc.start()
    try:
        few = [Series() for _ in range(100)]
        for series in few:
            series.append(1.0, 2.0)
        assert tracemalloc.get_traced_memory()[0] < 100 * 4_000
        many = Series()
        for second in range(100_000):
            many.append(float(second), 1.0)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_series_tells_the_memory_that_it_takes() -> None:
    series = Series()
    series.append(0.0, 1.0)
    few = series.nbytes
    tracemalloc.start()
    try:
        for second in range(1, 100_000):
            series.append(float(second), math.sin(second))
            if second % 1000 == 0:
                series.window(0.0, float(second), 500)
        grown, taken = series.nbytes - few, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert few < 4_000
    assert grown == pytest.approx(taken, rel=0.05)
