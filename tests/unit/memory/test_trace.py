"""`Trace`: steps are found, and gone on with as in the last one; blocks stay on the stream they were asked on."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, Trace, TraceMark, between, repeated
from gpudash.memory.predicting.fit import peaks, run_on
from gpudash.units import MIB


def stepping(steps: int, kept: int) -> Trace:
    """Weights, then steps that each allocate and free one block, keep ``kept`` blocks and free the one kept before."""
    trace = Trace()

    def allocate(size: int, category: str) -> int:
        trace.sizes.append(size)
        trace.categories.append(category)
        trace.events.append(len(trace.sizes))
        return len(trace.sizes)

    allocate(4 * MIB, WEIGHTS)
    loss = 0
    for step in range(1, steps + 1):
        trace.marks.append(TraceMark(len(trace.events), step, "forward"))
        activation = allocate(MIB, ACTIVATIONS)
        for _ in range(kept):
            allocate(MIB // 2, ACTIVATIONS)
        before, loss = loss, allocate(512, ACTIVATIONS)
        if before:
            trace.events.append(-before)
        trace.marks.append(TraceMark(len(trace.events), step, "backward"))
        trace.events.append(-activation)
    return trace


def held(trace: Trace) -> int:
    return sum(trace.sizes[abs(event) - 1] * (1 if event > 0 else -1) for event in trace.events)


@given(st.integers(3, 6), st.integers(0, 3), st.integers(0, 20))
def test_a_repeated_trace_is_the_trace_of_that_many_steps(steps: int, kept: int, more: int) -> None:
    longer, whole = repeated(stepping(steps, kept), steps + more), stepping(steps + more, kept)
    assert longer.steps == whole.steps
    assert longer.events == whole.events
    assert longer.sizes == whole.sizes
    assert longer.marks == whole.marks


def test_what_a_step_keeps_adds_up_when_it_is_repeated() -> None:
    assert held(repeated(stepping(3, 2), 103)) - held(stepping(3, 2)) == 100 * 2 * MIB // 2


def test_a_trace_of_one_step_is_not_repeated() -> None:
    trace = stepping(1, 1)
    assert repeated(trace, 10) is trace


def test_no_fewer_steps_are_made_of_a_trace() -> None:
    trace = stepping(5, 1)
    assert repeated(trace, 3) is trace


def test_the_events_of_a_step_end_where_the_next_begins() -> None:
    trace = stepping(3, 0)
    spans = [trace.step_events(step) for step in (1, 2, 3)]
    assert spans == [(1, 4), (4, 8), (8, 12)]


def test_a_step_that_was_not_taken_has_no_events() -> None:
    with pytest.raises(ValueError, match="has 2 steps, and no step 3"):
        stepping(2, 0).step_events(3)


def test_a_category_can_be_left_out() -> None:
    trace = stepping(3, 1)
    smaller = trace.without(ACTIVATIONS)
    assert peaks(trace).allocated - peaks(smaller).allocated == peaks(trace).by_category[ACTIVATIONS] > 0


def test_what_is_made_of_a_trace_was_followed_for_as_many_steps() -> None:
    trace = replace(stepping(3, 1), followed=3)
    made = [repeated(trace, 20), trace.without(ACTIVATIONS)]
    assert [one.followed for one in made] == [3, 3]


def test_an_empty_trace_peaks_at_nothing() -> None:
    found = peaks(Trace())
    assert (found.allocated, found.reserved, found.by_category, found.phases) == (0, 0, {}, ())
    assert Trace().events == array("q")


SIZE = 32 * MIB


def two_after_each_other(stream: int) -> Trace:
    """A block that is freed before the next of its size is asked for, on another stream unless ``stream`` is 0."""
    streams = {2: stream} if stream else {}
    return Trace(array("q", [1, -1, 2, -2]), array("q", [SIZE, SIZE]), [WEIGHTS] * 2, streams=streams)


def test_what_one_stream_has_freed_no_other_one_gets() -> None:
    assert peaks(two_after_each_other(0)).reserved == SIZE
    assert peaks(two_after_each_other(1)).reserved == 2 * SIZE
    assert peaks(two_after_each_other(1)).allocated == SIZE


def test_a_card_without_room_for_both_releases_what_the_other_stream_left() -> None:
    assert [run_on(two_after_each_other(stream), SIZE).retries for stream in (0, 1)] == [0, 1]


def test_steps_that_are_gone_on_with_keep_their_streams() -> None:
    events, sizes = array("q", [1, 2]), array("q", [SIZE, SIZE])
    trace = Trace(events, sizes, [WEIGHTS] * 2, [TraceMark(0, 1, ""), TraceMark(1, 2, "")], 2, {1: 1, 2: 1})
    assert repeated(trace, 4).streams == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_cache_that_is_emptied_on_the_way_is_reserved_no_more() -> None:
    trace = Trace(array("q", [1, -1, 2]), array("q", [64 * MIB, 200 * MIB]), [ACTIVATIONS, ACTIVATIONS])
    emptied = replace(trace, emptied=array("q", [2]))
    assert (peaks(trace).reserved, peaks(emptied).reserved) == (264 * MIB, 200 * MIB)
    assert run_on(emptied, 210 * MIB).retries == 0 and run_on(trace, 210 * MIB).retries == 1
    assert Trace.from_json(emptied.to_json()).emptied == emptied.emptied
    assert between(emptied, trace, 0.5) is None


def test_a_step_that_empties_the_cache_does_so_when_it_is_repeated() -> None:
    trace = stepping(3, 1)
    starts = [mark.at for mark in trace.marks if mark.phase == "forward"]
    longer = repeated(replace(trace, emptied=array("q", starts)), 5)
    assert longer.emptied.tolist() == [mark.at for mark in longer.marks if mark.phase == "forward"]
