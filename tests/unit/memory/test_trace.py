"""`Trace`: steps are found, and gone on with as in the last one."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.allocator.trace import ACTIVATIONS, GRADIENTS, WEIGHTS, Trace, TraceMark, repeated
from gpudash.memory.predicting.fit import peaks

MIB = 2**20


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


def test_a_constant_block_is_there_at_the_peak() -> None:
    trace = stepping(3, 1)
    with_it, without = peaks(trace.with_constant(32 * MIB)), peaks(trace)
    assert with_it.allocated - without.allocated == 32 * MIB
    assert with_it.by_category[GRADIENTS] == 32 * MIB
    assert with_it.steady - without.steady == 32 * MIB


def test_a_category_can_be_left_out() -> None:
    trace = stepping(3, 1)
    smaller = trace.without(ACTIVATIONS)
    assert peaks(trace).allocated - peaks(smaller).allocated == peaks(trace).by_category[ACTIVATIONS] > 0


def test_what_is_made_of_a_trace_was_followed_for_as_many_steps() -> None:
    trace = replace(stepping(3, 1), followed=3)
    made = [repeated(trace, 20), trace.with_constant(MIB), trace.without(ACTIVATIONS)]
    assert [one.followed for one in made] == [3, 3, 3]


def test_an_empty_trace_peaks_at_nothing() -> None:
    found = peaks(Trace())
    assert (found.allocated, found.reserved, found.by_category, found.phases) == (0, 0, {}, ())
    assert Trace().events == array("q")
