"""Giving free segments back to the card: all of them, the oversize ones, or those long unused.

After ``release_cached_blocks``, ``release_available_cached_blocks`` and ``garbage_collect_cached_blocks`` of torch's
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left

from gpudash.memory.allocator import expandable
from gpudash.memory.allocator.blocks import Block, FreeList, Pool
from gpudash.memory.allocator.heap import Heap, is_whole


def release_cached(heap: Heap) -> None:
    """Every segment of the shared pools that is wholly free."""
    _release(heap, heap.large)
    _release(heap, heap.small)


def release_private(heap: Heap) -> None:
    """Every wholly free segment of the private pools that nobody needs any more."""
    for private in list(heap.freeable):
        _release(heap, private.small)
        _release(heap, private.large)
        if not any(block.home.pool.private is private for block in heap.blocks.values()):
            heap.freeable.remove(private)
            del heap.private[private.identity]


def _release(heap: Heap, pool: Pool) -> None:
    free = _free_blocks(heap, pool)
    for block in free:
        if _is_segment(block):
            heap.release_segment(block)
    for block in free:
        if block.expandable is not None:
            expandable.unmap(heap, block)


def _free_blocks(heap: Heap, pool: Pool) -> list[Block]:
    """By stream, size and address, as torch's set has them."""
    return [heap.blocks[address] for _stream, home in sorted(pool.lists.items()) for _size, address in home.entries]


def release_oversize(heap: Heap, home: FreeList, size: int) -> bool:
    """Blocks too large to be split, of this list only: the smallest that is enough, else from the largest down.

    Returns:
        Whether as much as was asked for is now free.
    """
    limit = heap.settings.max_split_size
    if limit is None:
        return False
    wanted = max(size, limit)
    place = bisect_left(home.entries, (wanted,))
    if place < len(home.entries):
        block = heap.blocks[home.entries[place][1]]
        if _is_segment(block):
            heap.release_segment(block)
            return True
    released = 0
    for found, address in reversed(list(home.entries)):
        if released >= wanted or found < limit:
            break
        if _is_segment(heap.blocks[address]):
            released += found
            heap.release_segment(heap.blocks[address])
    return released >= wanted


def _is_segment(block: Block) -> bool:
    """Whether a free block is all of what one cudaMalloc gave."""
    return block.expandable is None and is_whole(block)


def collect_garbage(heap: Heap) -> None:
    """Free segments of the shared large pool that were unused for longer than the average, above the threshold."""
    if heap.allowed is None or heap.freed_at is None:
        return
    target = heap.reserved - int(heap.settings.garbage_collection_threshold * heap.allowed)
    if target <= 0:
        return
    pool, freed_at = heap.large, heap.freed_at
    ages = {
        block.address: pool.searches - freed_at[block.address]
        for block in _free_blocks(heap, pool)
        if _is_segment(block)
    }
    reclaimed = 0
    while ages and reclaimed < target:
        average = sum(ages.values()) / len(ages)
        # never empty: something is at least as old as the average
        for address in [address for address, age in ages.items() if age >= average]:
            del ages[address]
            reclaimed += heap.blocks[address].size
            heap.release_segment(heap.blocks[address])
