"""What the timeline draws of a million levels: their exact extremes, column by column."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.snapshot.history.phases import Band
from gpudash.ui.snapshot.drawing.levels import Axis, Levels, band_runs, extremes


def levels(sizes: list[int], times: list[float] | None = None) -> Levels:
    allocated = np.array(sizes, dtype=np.int64)
    seconds = None if times is None else np.array(times)
    return Levels(allocated, allocated, seconds, peak=int(np.argmax(allocated)) - 1)


@given(
    st.lists(st.integers(0, 10**12), min_size=2, max_size=60),
    st.integers(1, 30),
    st.floats(0, 0.9),
    st.floats(0.05, 1),
)
def test_each_column_has_the_lowest_and_highest_level_that_held_in_it(
    sizes: list[int], columns: int, from_: float, share: float
) -> None:
    found = levels(sizes)
    axis = Axis(found, by_time=False)
    end = axis.ends[1]
    left, right = from_ * end, min(end, from_ * end + share * end)
    starts = axis.starts(left, right, columns)
    low, high = extremes(found.allocated, starts)
    for column in range(columns):
        first, last = int(starts[column]), int(starts[column + 1])
        held = sizes[first:last] + ([sizes[first - 1]] if first else [])
        if held:
            assert (low[column], high[column]) == (min(held), max(held))


def test_a_spike_of_one_event_among_a_million_is_in_every_picture() -> None:
    sizes = np.zeros(1_000_001, dtype=np.int64)
    sizes[654_321] = 7
    axis = Axis(Levels(sizes, sizes, None), by_time=False)
    for left, right in ((0, 1_000_000), (600_000, 700_000), (654_000, 655_000)):
        _low, high = extremes(sizes, axis.starts(left, right, 500))
        assert high.max() == 7


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(-1, 1e6))
def test_the_moment_of_a_place_is_the_last_event_up_to_it(times: list[float], place: float) -> None:
    times = sorted(times)
    axis = Axis(levels([0] * (len(times) + 1), times), by_time=True)
    expected = sum(time <= place for time in times) - 1
    assert axis.moment(place) == expected


def test_a_moment_is_found_where_it_is_drawn() -> None:
    for found, by_time in ((levels([0, 1, 2, 3]), False), (levels([0, 1, 2, 3], [0.0, 0.5, 2.0]), True)):
        axis = Axis(found, by_time)
        assert [axis.moment(axis.place(moment)) for moment in (0, 1, 2)] == [0, 1, 2]


def test_without_times_the_axis_counts_events() -> None:
    axis = Axis(levels([0, 1]), by_time=True)
    assert not axis.by_time and axis.ends == (0.0, 1.0)


def test_bands_become_runs_of_columns_and_narrow_ones_give_way() -> None:
    bands = (Band("forward", 0, 50), Band("backward", 50, 99), Band("optimizer", 99, 100))
    axis = Axis(levels([0] * 101), by_time=False)
    runs = band_runs(bands, axis.starts(0, 100, 10))
    assert runs == [("forward", 0, 5), ("backward", 5, 10)]


def test_without_events_there_is_one_level_and_no_moment_but_the_first() -> None:
    axis = Axis(levels([5]), by_time=False)
    assert axis.ends == (0.0, 1.0) and axis.moment(0.7) == -1
    low, high = extremes(np.array([5]), axis.starts(0, 1, 4))
    assert set(low.tolist()) == set(high.tolist()) == {5}
    assert band_runs((), axis.starts(0, 1, 4)) == []
