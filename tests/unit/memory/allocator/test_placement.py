"""Where requests are placed, when segments come, grow and go, and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.allocator import (
    AllocationRefused,
    AllocatorSettings,
    CachingAllocator,
    DeviceMemory,
    Segment,
)
from gpudash.memory.allocator.blocks import Rounding
from gpudash.memory.allocator.device_memory import addresses_fall
from gpudash.units import GIB, KIB, MIB

FREE, ALLOCATED, PENDING = "inactive", "active_allocated", "active_pending_free"


def model(capacity: int = GIB, **settings: object) -> CachingAllocator:
    return CachingAllocator(DeviceMemory(capacity), AllocatorSettings(**settings))


def sizes(segments: list[Segment]) -> list[int]:
    return [segment.total_size for segment in segments]


def layout(segment: Segment) -> list[tuple[int, str]]:
    return [(block.size, block.state) for block in segment.blocks]


@pytest.mark.parametrize(
    ("request_size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (33 * MIB, 34 * MIB, 34 * MIB),
        (32 * MIB + 512, 32 * MIB + 512, 34 * MIB),
    ],
)
def test_sizes_are_rounded_to_512_bytes_and_segments_to_2_mib(request_size: int, block: int, segment: int) -> None:
    allocator = model()
    allocator.malloc(request_size)
    (held,) = allocator.segments()
    assert (held.blocks[0].size, held.total_size) == (block, segment)
    assert held.blocks[0].requested_size == request_size


def test_a_rest_of_at_most_1_mib_stays_with_a_large_block() -> None:
    allocator = model()
    allocator.malloc(19 * MIB)
    allocator.malloc(19 * MIB - 512)
    first, second = allocator.segments()
    assert layout(first) == [(20 * MIB, ALLOCATED)]
    assert layout(second) == [(19 * MIB - 512, ALLOCATED), (MIB + 512, FREE)]


def test_a_rest_above_1_mib_is_cut_off() -> None:
    allocator = model()
    kept = allocator.malloc(20 * MIB)
    allocator.free(kept)
    allocator.malloc(19 * MIB - 512)
    (segment,) = allocator.segments()
    assert layout(segment) == [(19 * MIB - 512, ALLOCATED), (MIB + 512, FREE)]


def test_the_smallest_block_that_fits_is_taken_and_the_lowest_address_among_equals() -> None:
    allocator = model()
    blocks = [allocator.malloc(size * MIB) for size in (40, 20, 30, 20)]
    for address in blocks:
        allocator.free(address)
    assert allocator.malloc(15 * MIB) == blocks[1]
    assert allocator.malloc(20 * MIB) == blocks[3]
    assert allocator.malloc(25 * MIB) == blocks[2]


def test_a_freed_block_is_merged_with_its_neighbours() -> None:
    allocator = model()
    first, second, third = (allocator.malloc(4 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.free(third)
    (segment,) = allocator.segments()
    assert layout(segment) == [(4 * MIB, FREE), (4 * MIB, ALLOCATED), (12 * MIB, FREE)]
    allocator.free(second)
    assert layout(allocator.segments()[0]) == [(20 * MIB, FREE)]


def test_streams_do_not_share_free_blocks() -> None:
    allocator = model()
    allocator.free(allocator.malloc(20 * MIB, stream=0))
    allocator.malloc(20 * MIB, stream=1)
    assert sizes(allocator.segments()) == [20 * MIB, 20 * MIB]


def test_nothing_is_at_address_0_and_may_be_freed() -> None:
    allocator = model()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    assert allocator.segments() == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda allocator, freed: allocator.malloc(-1), r"A negative number of bytes \(-1\) cannot be allocated."),
        (lambda allocator, freed: allocator.free(freed), "No allocated block begins at 0x"),
        (lambda allocator, freed: allocator.free(freed + 512), "No allocated block begins at 0x"),
        (lambda allocator, freed: allocator.record_stream(freed, 1), "no stream can use it"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: Callable[[CachingAllocator, int], object], words: str) -> None:
    allocator = model()
    freed = allocator.malloc(MIB)
    allocator.free(freed)
    with pytest.raises(ValueError, match=words):
        wrong(allocator, freed)


def test_a_block_used_by_another_stream_waits_for_it() -> None:
    allocator = model()
    address = allocator.malloc(20 * MIB)
    allocator.record_stream(address, 1)
    allocator.record_stream(address, 2)
    allocator.free(address)
    assert layout(allocator.segments()[0]) == [(20 * MIB, PENDING)]
    assert allocator.pending_bytes == 20 * MIB
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 20 * MIB)
    figures = allocator.statistics()
    assert (figures["allocated_bytes.all.current"], figures["active_bytes.all.current"]) == (0, 20 * MIB)
    allocator.process_events({1})
    assert allocator.pending_bytes == 20 * MIB
    allocator.process_events({2})
    assert layout(allocator.segments()[0]) == [(20 * MIB, FREE)]


def test_use_on_its_own_stream_is_no_reason_to_wait() -> None:
    allocator = model()
    address = allocator.malloc(MIB, stream=3)
    allocator.record_stream(address, 3)
    allocator.free(address)
    assert allocator.pending_bytes == 0


def test_active_memory_has_its_own_peak_while_frees_are_pending() -> None:
    allocator = model()
    address = allocator.malloc(20 * MIB)
    allocator.record_stream(address, 1)
    allocator.free(address)
    allocator.malloc(30 * MIB)
    figures = allocator.statistics()
    assert figures["allocated_bytes.all.peak"] == 30 * MIB
    assert figures["active_bytes.all.peak"] == 50 * MIB
    assert figures["active.all.peak"] == 2


def test_a_refused_request_to_the_card_releases_what_is_free_and_is_tried_again() -> None:
    allocator = model(100 * MIB)
    kept = allocator.malloc(4 * MIB)
    for size in (30, 40):
        allocator.free(allocator.malloc(size * MIB))
    assert allocator.malloc(80 * MIB)
    figures = allocator.statistics()
    assert (figures["num_alloc_retries"], figures["num_ooms"], figures["num_sync_all_streams"]) == (1, 0, 1)
    assert (figures["num_device_alloc"], figures["num_device_free"]) == (4, 2)
    assert sizes(allocator.segments()) == [20 * MIB, 80 * MIB]
    assert kept == allocator.segments()[0].address


def test_a_retry_waits_for_pending_frees() -> None:
    allocator = model(100 * MIB)
    address = allocator.malloc(60 * MIB)
    allocator.record_stream(address, 1)
    allocator.free(address)
    assert allocator.malloc(80 * MIB)
    assert allocator.pending_bytes == 0


def test_the_fraction_limits_what_is_reserved_and_1_lifts_it() -> None:
    allocator = model()
    allocator.set_fraction(0.25)
    with pytest.raises(AllocationRefused):
        allocator.malloc(300 * MIB)
    allocator.set_fraction(1)
    assert allocator.malloc(300 * MIB)
    with pytest.raises(ValueError, match="between 0 and 1"):
        allocator.set_fraction(1.5)


def test_blocks_above_the_split_limit_serve_only_requests_of_their_size() -> None:
    allocator = model(max_split_size=64 * MIB)
    allocator.free(allocator.malloc(100 * MIB))
    small = allocator.malloc(40 * MIB)
    near = allocator.malloc(90 * MIB)
    assert sizes(allocator.segments()) == [100 * MIB, 40 * MIB]
    assert near == allocator.segments()[0].address
    assert layout(allocator.segments()[0]) == [(100 * MIB, ALLOCATED)]
    allocator.free(near)
    allocator.malloc(80 * MIB)
    assert sizes(allocator.segments()) == [100 * MIB, 40 * MIB, 80 * MIB]
    figures = allocator.statistics()
    assert figures["max_split_size"] == 64 * MIB
    assert (figures["oversize_segments.current"], figures["oversize_allocations.current"]) == (2, 1)
    assert small


def test_a_refused_request_releases_oversize_blocks_before_all_others() -> None:
    allocator = model(300 * MIB, max_split_size=32 * MIB)
    for address in [allocator.malloc(size * MIB) for size in (20, 40, 60, 100)]:
        allocator.free(address)
    allocator.malloc(150 * MIB)
    assert sizes(allocator.segments()) == [20 * MIB, 40 * MIB, 150 * MIB]
    assert allocator.statistics()["num_alloc_retries"] == 0


def test_garbage_collection_frees_what_was_unused_for_longest() -> None:
    allocator = model(GIB, garbage_collection_threshold=0.7, per_process_memory_fraction=0.5)
    old = allocator.malloc(100 * MIB)
    allocator.free(old)
    for _ in range(10):
        allocator.free(allocator.malloc(120 * MIB))
    allocator.malloc(200 * MIB)
    assert sizes(allocator.segments()) == [100 * MIB, 120 * MIB, 200 * MIB]
    allocator.malloc(150 * MIB)
    assert sizes(allocator.segments()) == [120 * MIB, 200 * MIB, 150 * MIB]
    assert allocator.statistics()["num_alloc_retries"] == 0


def test_a_private_pool_keeps_to_itself_and_keeps_its_segments() -> None:
    allocator = model()
    allocator.free(allocator.malloc(20 * MIB, pool=(0, 1)))
    other = allocator.malloc(20 * MIB)
    assert [segment.pool_id for segment in allocator.segments()] == [(0, 1), (0, 0)]
    allocator.free(other)
    allocator.empty_cache()
    assert [segment.pool_id for segment in allocator.segments()] == [(0, 1)]


def test_the_observer_is_told_in_the_words_of_a_trace() -> None:
    events: list[tuple[str, int, int, int]] = []
    allocator = CachingAllocator(DeviceMemory(30 * MIB), observer=lambda *event: events.append(event))
    address = allocator.malloc(3 * MIB, stream=2)
    allocator.free(address)
    with pytest.raises(AllocationRefused):
        allocator.malloc(40 * MIB)
    assert events == [
        ("segment_alloc", address, 20 * MIB, 2),
        ("alloc", address, 3 * MIB, 2),
        ("free_requested", address, 3 * MIB, 2),
        ("free_completed", address, 3 * MIB, 2),
        ("segment_free", address, 20 * MIB, 2),
        ("oom", 30 * MIB, 40 * MIB, 0),
    ]
    allocator.set_observer(None)
    allocator.malloc(MIB)
    assert len(events) == 6


def test_a_seeded_layout_is_the_recorded_one_and_goes_on_from_there() -> None:
    first = model(max_split_size=64 * MIB)
    kept = [first.malloc(size) for size in (700, 3 * MIB, 12 * MIB, 70 * MIB)]
    first.record_stream(kept[2], 9)
    first.free(kept[2])
    first.free(kept[1])
    second = model(max_split_size=64 * MIB)
    second.seed(first.segments())
    assert second.segments() == first.segments()
    levels = {key: value for key, value in first.statistics().items() if key.endswith(".current")}
    assert levels.items() <= second.statistics().items()
    second.complete_free(kept[2])
    first.synchronize()
    assert second.malloc(5 * MIB) == first.malloc(5 * MIB)
    with pytest.raises(ValueError, match="holds memory already"):
        second.seed(first.segments())
    with pytest.raises(ValueError, match="does not fit"):
        model(50 * MIB).seed(first.segments())


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1200, 2, 1536),
        (1200, 4, 1536),
        (2200, 4, 2560),
        (2049 * KIB, 4, 2560 * KIB),
        (3 * MIB, 1, 3 * MIB),
        (5 * MIB, 8, 5 * MIB),
    ],
)
def test_divisions_round_up_to_parts_of_a_power_of_two(size: int, divisions: int, rounded: int) -> None:
    assert Rounding(AllocatorSettings(roundup_power2_divisions=divisions)).rounded(size) == rounded


@given(st.integers(1, 2**45), st.sampled_from([0, 1, 2, 4, 16, 64]))
def test_rounding_never_loses_bytes_and_keeps_blocks_in_units_of_512(size: int, divisions: int) -> None:
    rounding = Rounding(AllocatorSettings(roundup_power2_divisions=divisions))
    rounded = rounding.rounded(size)
    assert rounded >= size
    assert rounded % 512 == 0
    assert rounding.rounded(rounded) == rounded
    assert rounded <= max(2 * size, 512)


@pytest.mark.parametrize("capacity", [0, -5, 2**50 + 1])
def test_a_card_of_impossible_capacity_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=r"must be between 1 byte and 1 PiB"):
        DeviceMemory(capacity)


def test_a_negative_use_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        DeviceMemory(GIB, used=-1)


def test_what_other_processes_take_is_not_free() -> None:
    memory = DeviceMemory(GIB, used=200 * MIB)
    assert memory.free_bytes == 824 * MIB
    memory.others = GIB + MIB
    assert memory.free_bytes == 0
    assert memory.malloc(2 * MIB) is None


def growing(capacity: int = GIB) -> CachingAllocator:
    return model(capacity, expandable_segments=True)


def test_an_expandable_segment_grows_where_a_new_one_would_come() -> None:
    allocator = growing()
    first = allocator.malloc(15 * MIB)
    second = allocator.malloc(15 * MIB)
    (segment,) = allocator.segments()
    assert second == first + 15 * MIB
    assert (segment.total_size, segment.is_expandable) == (40 * MIB, True)
    assert layout(segment) == [(15 * MIB, ALLOCATED), (15 * MIB, ALLOCATED), (10 * MIB, FREE)]
    allocator.free(second)
    third = allocator.malloc(50 * MIB)
    assert third == second
    assert sizes(allocator.segments()) == [80 * MIB]


def test_an_emptied_cache_unmaps_whole_granules_in_the_middle_of_an_expandable_segment() -> None:
    allocator = growing()
    blocks = [allocator.malloc(30 * MIB) for _ in range(4)]
    allocator.free(blocks[1])
    allocator.free(blocks[2])
    allocator.empty_cache()
    assert sizes(allocator.segments()) == [40 * MIB, 40 * MIB]
    assert allocator.memory.taken == 80 * MIB
    again = allocator.malloc(45 * MIB)
    assert again == blocks[1]
    assert sizes(allocator.segments()) == [120 * MIB]
    for address in (blocks[0], blocks[3], again):
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.segments() == []


def test_a_refused_mapping_unmaps_what_is_free_and_tries_again() -> None:
    allocator = growing(100 * MIB)
    hole = allocator.malloc(40 * MIB, stream=1)
    allocator.free(hole)
    assert allocator.malloc(90 * MIB)
    assert allocator.statistics()["num_alloc_retries"] == 1
    assert sizes(allocator.segments()) == [100 * MIB]


def test_small_requests_grow_by_2_mib_in_a_segment_of_their_own() -> None:
    allocator = growing()
    for _ in range(3):
        allocator.malloc(MIB)
    allocator.malloc(2 * MIB)
    small, large = allocator.segments()
    assert (small.is_small, small.total_size) == (True, 4 * MIB)
    assert (large.is_small, large.total_size) == (False, 20 * MIB)


def test_a_block_at_the_growing_end_is_spared_for_what_needs_to_grow() -> None:
    allocator = growing()
    first = allocator.malloc(20 * MIB)
    allocator.malloc(15 * MIB)
    allocator.free(first)
    assert layout(allocator.segments()[0]) == [(20 * MIB, FREE), (15 * MIB, ALLOCATED), (5 * MIB, FREE)]
    assert allocator.malloc(4 * MIB) == first


def test_a_mapped_gap_is_merged_with_the_free_block_behind_it() -> None:
    allocator = growing()
    blocks = [allocator.malloc(20 * MIB) for _ in range(4)]
    allocator.free(blocks[1])
    allocator.empty_cache()
    allocator.free(blocks[2])
    assert allocator.malloc(40 * MIB) == blocks[1]
    assert layout(allocator.segments()[0]) == [(20 * MIB, ALLOCATED), (40 * MIB, ALLOCATED), (20 * MIB, ALLOCATED)]
    assert allocator.reserved_bytes == 80 * MIB


def test_unmapped_memory_is_had_again_by_others() -> None:
    allocator = growing(100 * MIB)
    kept = allocator.malloc(20 * MIB)
    middle = allocator.malloc(20 * MIB)
    allocator.malloc(20 * MIB)
    allocator.free(middle)
    allocator.empty_cache()
    allocator.memory.others = 50 * MIB
    assert allocator.memory.free_bytes == 10 * MIB
    assert allocator.malloc(1024)
    assert allocator.reserved_bytes == 42 * MIB
    assert kept == allocator.segments()[0].address


def test_where_addresses_fall_they_do_so_by_32_mib_and_what_a_chunk_has_left_serves_smaller_requests() -> None:
    memory = DeviceMemory(GIB, falls=True)
    first, second, third = (memory.reserve(44 * MIB) for _ in range(3))
    assert (second, third) == (first - 64 * MIB, first - 128 * MIB)
    assert memory.reserve(20 * MIB) == third + 44 * MIB
    assert memory.reserve(16 * MIB) == second + 44 * MIB
    assert memory.reserve(2 * MIB) == second + 60 * MIB
    assert memory.reserve(22 * MIB) == third - 32 * MIB


@given(st.lists(st.integers(1, 100 * MIB), max_size=60), st.booleans())
def test_no_address_is_given_twice(requests: list[int], falls: bool) -> None:
    memory, taken = DeviceMemory(2**40, falls=falls), list[tuple[int, int]]()
    for size in requests:
        address = memory.reserve(size)
        assert all(address >= end or address + size <= begin for begin, end in taken)
        taken.append((address, address + size))


@pytest.mark.parametrize(("version", "falls"), [("2.4.1", True), ("2.12.0+cu130", True), ("2.13.0+cpu", False)])
def test_older_versions_of_torch_look_at_addresses(version: str, falls: bool) -> None:
    assert addresses_fall(version) is falls


@pytest.mark.parametrize(("falls", "taken"), [(False, 0), (True, 1)])
def test_of_two_blocks_alike_the_older_is_taken_or_the_one_at_the_lower_address(falls: bool, taken: int) -> None:
    allocator = CachingAllocator(DeviceMemory(GIB, falls=falls))
    blocks = [allocator.malloc(40 * MIB) for _ in range(2)]
    for address in blocks:
        allocator.free(address)
    assert allocator.malloc(40 * MIB) == blocks[taken]


def test_where_age_decides_addresses_do_not() -> None:
    allocator = CachingAllocator(DeviceMemory(GIB, falls=True), AllocatorSettings(oldest_first=True))
    blocks = [allocator.malloc(40 * MIB) for _ in range(3)]
    for address in blocks:
        allocator.free(address)
    assert [allocator.malloc(40 * MIB) for _ in range(3)] == blocks
