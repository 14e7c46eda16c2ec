"""Whether a trace fits: peaks, the smallest capacity, and the replay on a card."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, Mark, Trace
from gpudash.memory.estimate import CARDS_BYTES, Target, fits, judge, smallest_card
from gpudash.memory.fit import GRANULE, minimum_capacity, peaks, run_on

MIB = 2**20
GIB = 2**30


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
    return Trace(events, array("q", sizes), [WEIGHTS if n % 2 else ACTIVATIONS for n in range(len(sizes))])


@settings(max_examples=60, deadline=None)
@given(traces())
def test_a_trace_passes_on_what_it_takes_with_room_to_spare_and_needs_no_retry(trace: Trace) -> None:
    found = peaks(trace)
    outcome = run_on(trace, found.reserved)
    assert (outcome.fits, outcome.retries) == (True, 0)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_the_smallest_capacity_passes_and_lies_between_the_peaks(trace: Trace) -> None:
    found = peaks(trace)
    least = minimum_capacity(trace, found.allocated, found.reserved)
    assert found.allocated <= least <= found.reserved
    assert run_on(trace, least).fits


@settings(max_examples=60, deadline=None)
@given(traces())
def test_nothing_fits_in_less_than_is_allocated_at_the_peak(trace: Trace) -> None:
    found = peaks(trace)
    outcome = run_on(trace, found.allocated - 1)
    assert not outcome.fits
    assert outcome.failed_at is not None
    assert trace.events[outcome.failed_at] > 0


@settings(max_examples=60, deadline=None)
@given(traces())
def test_the_categories_at_the_peak_add_up_to_it(trace: Trace) -> None:
    found = peaks(trace)
    assert sum(found.by_category.values()) == found.allocated


def holes() -> Trace:
    """Three segments of 30, 32 and 34 MiB, of each of which the last 2 MiB are kept, and then 40 MiB."""
    trace = Trace()
    for size in (30 * MIB, 32 * MIB, 34 * MIB):
        first = len(trace.sizes) + 1
        trace.sizes.extend((size, size - 2 * MIB, 2 * MIB))
        trace.events.extend((first, -first, first + 1, first + 2, -first - 1))
    trace.sizes.append(40 * MIB)
    trace.events.append(10)
    trace.categories.extend([ACTIVATIONS] * 10)
    return trace


def test_what_failed_tells_the_event_and_what_was_live() -> None:
    trace = holes()
    need = peaks(trace).reserved
    outcome = run_on(trace, need - GRANULE)
    assert (outcome.fits, outcome.failed_at) == (False, 15)
    assert sorted(outcome.live) == [3, 6, 9]
    assert outcome.refused is not None
    assert outcome.refused.size == 40 * MIB


def test_expandable_segments_need_less_where_holes_do_not_fit() -> None:
    trace, expandable = holes(), AllocatorSettings(expandable_segments=True)
    assert peaks(trace, expandable).reserved < peaks(trace).reserved


def test_no_capacity_at_all_fits_only_what_asks_for_nothing() -> None:
    assert run_on(Trace(), 0).fits
    assert run_on(holes(), 0).failed_at == 0
    assert not run_on(holes(), -5).fits


def test_peaks_are_told_by_phase_for_the_first_and_the_last_step() -> None:
    trace = Trace(array("q", [1, 2, -2, 3, 4, -4, 5, 6]), array("q", [MIB, 2 * MIB, MIB, 4 * MIB, MIB, 2 * MIB]))
    trace.categories.extend([WEIGHTS] + [ACTIVATIONS] * 5)
    trace.marks.extend((Mark(1, 1, "forward"), Mark(3, 2, "forward"), Mark(6, 3, "forward"), Mark(7, 3, "backward")))
    found = peaks(trace)
    told = {(peak.step, peak.phase): peak.allocated for peak in found.phases}
    assert told == {(1, "forward"): 3 * MIB, (3, "forward"): 3 * MIB, (3, "backward"): 5 * MIB}
    assert (found.first_step, found.steady, found.allocated) == (3 * MIB, 5 * MIB, 6 * MIB)


def test_a_margin_makes_what_is_close_uncertain() -> None:
    trace = holes()
    need = peaks(trace).reserved
    verdicts = [fits(trace, Target("cuda:0", GIB, free, margin_ratio=0.05)) for free in (need // 2, need, 2 * need)]
    assert verdicts == [False, None, True]


def test_without_a_margin_a_known_room_always_gives_a_verdict() -> None:
    trace = holes()
    need = peaks(trace).reserved
    assert [fits(trace, Target("sim:0", GIB, free)) for free in (need - GRANULE, need)] == [False, True]


def test_what_is_free_and_not_known_gives_no_verdict() -> None:
    found = judge(holes(), Target("cuda:0"), "training")
    assert (found.fits, found.spare_bytes, found.free_bytes) == (None, None, None)
    assert found.peak_reserved_bytes is not None


def test_the_overhead_is_taken_from_what_is_free() -> None:
    trace = holes()
    need = peaks(trace).reserved
    found = judge(trace, Target("sim:0", GIB, need + 100, overhead_bytes=101), "training")
    assert found.fits is False
    assert found.minimum_capacity_bytes == need + 101
    assert found.spare_bytes is not None
    assert found.spare_bytes < 0


def test_the_spare_memory_is_what_is_left_at_the_peak() -> None:
    trace = holes()
    need = peaks(trace).reserved
    assert judge(trace, Target("sim:0", GIB, need + 7 * MIB, overhead_bytes=2 * MIB), "x").spare_bytes == 5 * MIB


@pytest.mark.parametrize(("need", "card"), [(1, 4 * GIB), (4 * GIB, 4 * GIB), (4 * GIB + 1, 6 * GIB)])
def test_the_smallest_card_that_does_is_named(need: int, card: int) -> None:
    assert smallest_card(need) == card


def test_there_is_no_card_for_more_than_the_largest_has() -> None:
    assert smallest_card(CARDS_BYTES[-1] + 1) is None
