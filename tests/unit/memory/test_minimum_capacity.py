"""How the smallest capacity is found: what a replay took, or lacked, tells of other capacities as well."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.device_memory import GRANULE
from gpudash.memory.allocator.trace import ACTIVATIONS, Trace
from gpudash.memory.predicting.fit import Outcome, minimum_room, peaks, run_on

MIB = 2**20
SETTINGS = [None, AllocatorSettings(expandable_segments=True), AllocatorSettings(max_split_size=24 * MIB)]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Random allocations and frees of up to 40 MiB each."""
    sizes = draw(st.lists(st.one_of(st.integers(1, 4096), st.integers(1, 40 * MIB)), min_size=1, max_size=40))
    events, live = array("q"), []
    for block in range(1, len(sizes) + 1):
        events.append(block)
        live.append(block)
        while live and draw(st.booleans()):
            events.append(-live.pop(draw(st.integers(0, len(live) - 1))))
    return Trace(events, array("q", sizes), [ACTIVATIONS] * len(sizes))


def ended(outcome: Outcome) -> tuple[bool, int | None, int]:
    return outcome.fits, outcome.failed_at, outcome.retries


@settings(max_examples=80, deadline=None)
@given(traces(), st.floats(0, 1), st.sampled_from(SETTINGS))
def test_a_run_goes_the_same_way_on_a_card_with_just_what_it_took(
    trace: Trace, part: float, allocator: AllocatorSettings | None
) -> None:
    found = peaks(trace, allocator)
    capacity = found.allocated + int(part * (found.reserved - found.allocated))
    outcome = run_on(trace, capacity, allocator)
    if outcome.fits:
        assert outcome.taken <= capacity
        assert ended(run_on(trace, outcome.taken, allocator)) == ended(outcome)


@settings(max_examples=80, deadline=None)
@given(traces(), st.floats(0, 1), st.sampled_from(SETTINGS))
def test_a_run_goes_the_same_way_up_to_the_capacity_that_it_lacked(
    trace: Trace, part: float, allocator: AllocatorSettings | None
) -> None:
    found = peaks(trace, allocator)
    capacity = max(1, int(part * found.reserved))
    outcome = run_on(trace, capacity, allocator)
    if outcome.lacking is not None:
        assert outcome.lacking > capacity
        assert ended(run_on(trace, outcome.lacking - 1, allocator)) == ended(outcome)


@settings(max_examples=40, deadline=None)
@given(traces(), st.sampled_from(SETTINGS))
def test_one_granule_less_than_the_smallest_capacity_is_too_little(
    trace: Trace, allocator: AllocatorSettings | None
) -> None:
    found = peaks(trace, allocator)
    least = minimum_room(trace, found.allocated, found.reserved, allocator)
    assert run_on(trace, least, allocator).fits
    if least - GRANULE >= found.allocated:
        assert not run_on(trace, least - GRANULE, allocator).fits


def test_an_allocator_that_looks_at_how_full_the_card_is_is_tried_at_every_capacity() -> None:
    trace = Trace(array("q", [1, -1, 2, -2, 3]), array("q", [30 * MIB, 40 * MIB, 50 * MIB]), [ACTIVATIONS] * 3)
    allocator = AllocatorSettings(garbage_collection_threshold=0.5, per_process_memory_fraction=0.9)
    found = peaks(trace, allocator)
    least = minimum_room(trace, found.allocated, found.reserved, allocator)
    assert run_on(trace, least, allocator, least).fits
    assert least == pytest.approx(50 * MIB, abs=GRANULE)
