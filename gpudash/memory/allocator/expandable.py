"""Segments that grow: ranges of addresses that get memory as it is needed.

After ``try_allocate_expandable_block`` and ``unmap_block`` of torch's c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from gpudash.memory.allocator.blocks import FREE, UNMAPPED, Block, ExpandableRange, FreeList
from gpudash.memory.allocator.heap import Heap, is_busy, is_free, is_whole

SMALL_GRANULE = 2 * 2**20


def allocate(heap: Heap, home: FreeList, size: int) -> Block | None:
    """A free block of at least ``size`` bytes, grown for it and in no list; ``None`` when the card has not as much.

    What could be mapped before the card refused stays mapped and free.
    """
    block = _find(heap, home, size)
    if block.state == UNMAPPED:
        grown = _map(heap, block, min(block.size, size))
        if grown is None:
            return None
        block = grown
    while block.size < size:
        following = block.after
        assert following is not None and following.state == UNMAPPED
        grown = _map(heap, following, min(size - block.size, following.size))
        if grown is None:
            return None
        block = grown
    heap.take_out(block)
    return block


def _find(heap: Heap, home: FreeList, size: int) -> Block:
    """The block at the lowest address from which free and unmapped blocks make up ``size`` bytes, or a new range."""
    for address in home.unmapped:
        block = heap.blocks[address]
        if block.before is not None and is_free(block.before):
            block = block.before
        if _room(block, size):
            return block
    granule = SMALL_GRANULE if home.pool.is_small else heap.settings.large_segment_size
    # torch reserves one and an eighth of the card's memory for each
    addresses = -(-(heap.memory.capacity * 9 // 8) // granule) * granule
    reserved = ExpandableRange(heap.memory.reserve(addresses), addresses, granule)
    block = heap.blocks[reserved.address] = Block(reserved.address, addresses, home)
    block.state, block.expandable = UNMAPPED, reserved
    home.insert_unmapped(block)
    return block


def _room(block: Block | None, size: int) -> bool:
    found = 0
    while found < size and block is not None and not is_busy(block):
        found += block.size
        block = block.after
    return found >= size


def _map(heap: Heap, block: Block, size: int) -> Block | None:
    """Give the first ``size`` bytes of an unmapped block memory, in whole granules, and merge it."""
    assert block.expandable is not None
    granule, home = block.expandable.granule, block.home
    size = -(-size // granule) * granule
    if not heap.memory.map(size):
        return None
    home.remove_unmapped(block)
    if size < block.size:
        home.insert_unmapped(heap.split(block, size))
    block.state = FREE
    heap.reserve(home, size)
    heap.note("segment_map", block.address, size, home.stream)
    if is_free(block.after):
        assert block.after is not None
        heap.take_out(block.after)
        heap.swallow(block, block.after)
    before = block.before
    if before is not None and is_free(before):
        heap.take_out(before)
        heap.swallow(before, block)
        block = before
    heap.put_in(block)
    return block


def unmap(heap: Heap, block: Block) -> None:
    """Give the whole granules of a free block back to the card, and the range with them if nothing is left in it."""
    assert block.expandable is not None
    reserved, home = block.expandable, block.home
    granule = reserved.granule
    begin = reserved.address + -(-(block.address - reserved.address) // granule) * granule
    end = reserved.address + (block.address + block.size - reserved.address) // granule * granule
    if begin >= end:
        return
    heap.take_out(block)
    size = end - begin
    if begin > block.address:
        middle = heap.split(block, begin - block.address)
        heap.put_in(block)
        block = middle
    if size < block.size:
        heap.put_in(heap.split(block, size))
    heap.memory.unmap(size)
    heap.unreserve(home, size)
    heap.note("segment_unmap", begin, size, home.stream)
    _join_unmapped(heap, block)


def _join_unmapped(heap: Heap, block: Block) -> None:
    home = block.home
    block.state = UNMAPPED
    after, before = block.after, block.before
    if after is not None and after.state == UNMAPPED:
        home.remove_unmapped(after)
        heap.swallow(block, after)
    if before is not None and before.state == UNMAPPED:
        home.remove_unmapped(before)
        heap.swallow(before, block)
        block = before
    if is_whole(block):
        del heap.blocks[block.address]
    else:
        home.insert_unmapped(block)
