"""Segments that grow: where they are mapped, and what is unmapped."""

from __future__ import annotations

from gpudash.memory.allocator import AllocatorSettings, CachingAllocator, DeviceMemory, Segment
from gpudash.units import GIB, MIB

FREE, ALLOCATED = "inactive", "active_allocated"


def model(capacity: int = GIB) -> CachingAllocator:
    return CachingAllocator(DeviceMemory(capacity), AllocatorSettings(expandable_segments=True))


def sizes(segments: list[Segment]) -> list[int]:
    return [segment.total_size for segment in segments]


def layout(segment: Segment) -> list[tuple[int, str]]:
    return [(block.size, block.state) for block in segment.blocks]


def test_an_expandable_segment_grows_where_a_new_one_would_come() -> None:
    allocator = model()
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
    allocator = model()
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
    allocator = model(100 * MIB)
    hole = allocator.malloc(40 * MIB, stream=1)
    allocator.free(hole)
    assert allocator.malloc(90 * MIB)
    assert allocator.statistics()["num_alloc_retries"] == 1
    assert sizes(allocator.segments()) == [100 * MIB]


def test_small_requests_grow_by_2_mib_in_a_segment_of_their_own() -> None:
    allocator = model()
    for _ in range(3):
        allocator.malloc(MIB)
    allocator.malloc(2 * MIB)
    small, large = allocator.segments()
    assert (small.is_small, small.total_size) == (True, 4 * MIB)
    assert (large.is_small, large.total_size) == (False, 20 * MIB)


def test_a_block_at_the_growing_end_is_spared_for_what_needs_to_grow() -> None:
    allocator = model()
    first = allocator.malloc(20 * MIB)
    allocator.malloc(15 * MIB)
    allocator.free(first)
    assert layout(allocator.segments()[0]) == [(20 * MIB, FREE), (15 * MIB, ALLOCATED), (5 * MIB, FREE)]
    assert allocator.malloc(4 * MIB) == first


def test_a_mapped_gap_is_merged_with_the_free_block_behind_it() -> None:
    allocator = model()
    blocks = [allocator.malloc(20 * MIB) for _ in range(4)]
    allocator.free(blocks[1])
    allocator.empty_cache()
    allocator.free(blocks[2])
    assert allocator.malloc(40 * MIB) == blocks[1]
    assert layout(allocator.segments()[0]) == [(20 * MIB, ALLOCATED), (40 * MIB, ALLOCATED), (20 * MIB, ALLOCATED)]
    assert allocator.reserved_bytes == 80 * MIB


def test_unmapped_memory_is_had_again_by_others() -> None:
    allocator = model(100 * MIB)
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
