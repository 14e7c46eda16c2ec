"""Whether a trace fits: peaks, the replay on a card, and how the smallest capacity is found by few replays."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, CachingAllocator, DeviceMemory
from gpudash.memory.allocator.device_memory import GRANULE
from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, Trace, TraceMark
from gpudash.memory.predicting.estimate import CARDS_BYTES, Target, fits, judge, smallest_card
from gpudash.memory.predicting.fit import Outcome, card_of, minimum_room, peaks, run_on
from gpudash.units import GIB, MIB
from tests.unit.memory.example_traces import holes


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
    least = minimum_room(trace, found.allocated, found.reserved)
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


def test_what_failed_tells_the_event() -> None:
    trace = holes()
    need = peaks(trace).reserved
    outcome = run_on(trace, need - GRANULE)
    assert (outcome.fits, outcome.failed_at) == (False, 15)


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
    trace.marks.extend(
        (
            TraceMark(1, 1, "forward"),
            TraceMark(3, 2, "forward"),
            TraceMark(6, 3, "forward"),
            TraceMark(7, 3, "backward"),
        )
    )
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


SHARE = AllocatorSettings(per_process_memory_fraction=0.25)


def test_the_share_of_the_card_is_taken_of_the_card_and_not_of_what_is_free() -> None:
    trace = holes()
    need = peaks(trace).reserved
    capacity = 4 * need
    verdicts = [fits(trace, Target("sim:0", total, need, settings=SHARE)) for total in (capacity - 4, capacity)]
    assert verdicts == [False, True]
    assert fits(trace, Target("sim:0", capacity, need - GRANULE, settings=SHARE)) is False


def passes_by_the_allocator(trace: Trace, total: int, overhead: int, allocator: AllocatorSettings) -> bool:
    """A card as it is: the overhead is taken first, and the allocator is told its share of the whole."""
    card = CachingAllocator(DeviceMemory(total, overhead), allocator)
    held: dict[int, int] = {}
    try:
        for event in trace.events:
            if event > 0:
                held[event] = card.malloc(trace.sizes[event - 1])
            else:
                card.free(held.pop(-event))
    except AllocationRefused:
        return False
    return True


@settings(max_examples=80, deadline=None)
@given(traces(), st.floats(0.05, 1), st.floats(0.2, 1.2), st.integers(0, 100 * MIB), st.sampled_from([0.0, 0.5]))
def test_a_card_with_a_share_for_the_allocator_takes_what_it_is_said_to_take(
    trace: Trace, fraction: float, part: float, overhead: int, threshold: float
) -> None:
    allocator = AllocatorSettings(per_process_memory_fraction=fraction, garbage_collection_threshold=threshold)
    total = overhead + int(part * peaks(trace).reserved / fraction) + 1
    found = judge(trace, Target("sim:0", total, total, overhead_bytes=overhead, settings=allocator), "x")
    assert found.fits is passes_by_the_allocator(trace, total, overhead, allocator)
    assert found.minimum_capacity_bytes is not None
    assert passes_by_the_allocator(trace, found.minimum_capacity_bytes, overhead, allocator)


def test_a_share_of_the_card_limits_what_is_spare() -> None:
    trace = holes()
    need = peaks(trace).reserved
    target = Target("sim:0", 4 * (need + 3 * MIB), 4 * need, overhead_bytes=need, settings=SHARE)
    found = judge(trace, target, "x")
    assert (target.room_bytes, found.fits, found.spare_bytes) == (need + 3 * MIB, True, 3 * MIB)


@pytest.mark.parametrize("allocator", [SHARE, replace(SHARE, garbage_collection_threshold=0.6)])
@pytest.mark.parametrize("overhead", [0, GIB])
def test_the_smallest_card_is_one_whose_share_and_rest_are_large_enough(
    allocator: AllocatorSettings, overhead: int
) -> None:
    trace = holes()
    least = judge(trace, Target("sim:0", overhead_bytes=overhead, settings=allocator), "x").minimum_capacity_bytes
    assert least is not None

    def passes(total: int) -> bool | None:
        return fits(trace, Target("sim:0", total, total, overhead_bytes=overhead, settings=allocator))

    assert passes(least)
    assert not passes(least - 4 * GRANULE)


def test_an_allocator_that_may_have_nothing_passes_on_no_card() -> None:
    nothing = AllocatorSettings(per_process_memory_fraction=0.0)
    found = judge(holes(), Target("sim:0", GIB, GIB, settings=nothing), "x")
    assert (found.fits, found.minimum_capacity_bytes) == (False, None)


def test_a_margin_counts_beside_a_share_of_the_card() -> None:
    trace = holes()
    need = peaks(trace).reserved
    targets = [Target("cuda:0", 4 * size, 4 * size, margin_ratio=0.05, settings=SHARE) for size in (need // 2, need)]
    assert [fits(trace, target) for target in targets] == [False, None]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2**48), st.floats(0.001, 1))
def test_the_card_of_a_share_is_the_smallest(allowed: int, fraction: float) -> None:
    capacity = card_of(allowed, fraction)
    assert int(fraction * capacity) >= allowed
    assert int(fraction * (capacity - capacity // 2**50 - 2)) < allowed


@pytest.mark.parametrize(("need", "card"), [(1, 4), (int(3.6 * GIB), 4), (int(3.6 * GIB) + 1, 6), (22 * GIB, 32)])
def test_the_smallest_card_that_has_as_much_left_for_programs_is_named(need: int, card: int) -> None:
    assert smallest_card(need) == card * GIB


def test_there_is_no_card_for_more_than_the_largest_has() -> None:
    assert smallest_card(CARDS_BYTES[-1]) is None


@pytest.mark.parametrize(("followed", "words"), [(0, "alone, replayed"), (1, ", 1 step followed,"), (3, ", 3 steps f")])
def test_the_method_tells_how_many_steps_were_followed(followed: int, words: str) -> None:
    assert words in judge(replace(holes(), followed=followed), Target("sim:0"), "x").method


SETTINGS = [None, AllocatorSettings(expandable_segments=True), AllocatorSettings(max_split_size=24 * MIB)]


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
