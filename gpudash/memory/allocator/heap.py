"""The state of an allocator: its pools, blocks and statistics, and how each change to a segment updates them.

Expandable segments are address ranges that get memory as needed. They follow ``try_allocate_expandable_block`` and
``unmap_block`` of torch's c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator

from gpudash.memory.allocator.blocks import (
    ALLOCATED,
    FREE,
    UNMAPPED,
    WAITING,
    Block,
    ExpandableRange,
    FreeList,
    Pool,
    PrivatePool,
)
from gpudash.memory.allocator.device_memory import DeviceMemory
from gpudash.memory.allocator.settings import AllocatorSettings
from gpudash.memory.allocator.statistics import AllocatorStatistics

Observer = Callable[[str, int, int, int], None]
"""Called with the action as torch's trace names it, an address, a size in bytes, and a stream."""


class Heap:
    """Everything the allocator keeps about one card.

    Attributes:
        blocks: every block by its address.
        reserved: bytes taken from the card.
        freed_at: address of a free block → number of searches of its pool at the time of the free; kept only when
            garbage is collected.
    """

    __slots__ = (
        "allowed",
        "blocks",
        "freed_at",
        "large",
        "memory",
        "observer",
        "orders",
        "private",
        "reserved",
        "settings",
        "small",
        "statistics",
    )

    def __init__(self, memory: DeviceMemory, settings: AllocatorSettings) -> None:
        self.memory = memory
        self.settings = settings
        self.observer: Observer | None = None
        self.allowed: int | None = None
        self.orders = 0
        self.reserved = 0
        self.blocks: dict[int, Block] = {}
        self.freed_at: dict[int, int] | None = None
        self.statistics = AllocatorStatistics()
        self.small = Pool(True, self.statistics.all, self.statistics.small, None)
        self.large = Pool(False, self.statistics.all, self.statistics.large, None)
        self.private: dict[Hashable, PrivatePool] = {}

    def pools(self) -> Iterator[Pool]:
        """All pools: the shared ones, then those of each private pool."""
        yield self.small
        yield self.large
        for private in self.private.values():
            yield private.small
            yield private.large

    def private_pool(self, identity: Hashable) -> PrivatePool:
        """The private pool ``identity``, created at its first use."""
        found = self.private.get(identity)
        if found is None:
            counted = self.statistics
            found = self.private[identity] = PrivatePool(identity, counted.all, counted.small, counted.large)
        return found

    def note(self, action: str, address: int, size: int, stream: int) -> None:
        """Call the observer."""
        if self.observer is not None:
            self.observer(action, address, size, stream)

    def reserve(self, home: FreeList, size: int) -> None:
        """Count ``size`` bytes as reserved."""
        self.reserved += size
        self.statistics.events["num_device_alloc"] += 1
        for pools in home.pool.counted:
            pools.reserved.add(size)

    def unreserve(self, home: FreeList, size: int) -> None:
        """Count ``size`` bytes as released to the card."""
        self.reserved -= size
        self.statistics.events["num_device_free"] += 1
        for pools in home.pool.counted:
            pools.reserved.add(-size)

    def next_order(self) -> int:
        """The order of a new segment."""
        # older versions of torch compare addresses only: there every segment has order 0
        self.orders += self.settings.oldest_first
        return self.orders

    def add_segment(self, home: FreeList, address: int, size: int) -> Block:
        """Add a segment from cudaMalloc as one free block, which is not in its list yet."""
        # not in its list: the caller uses it at once and would only have to remove it again
        block = self.blocks[address] = Block(address, size, home, self.next_order())
        self.reserve(home, size)
        for pools in home.pool.counted:
            pools.segment.add(1)
        limit = self.settings.max_split_size
        if limit is not None and size >= limit:
            self.statistics.oversize_segments.add(1)
        self.note("segment_alloc", address, size, home.stream)
        return block

    def release_segment(self, block: Block) -> None:
        """Release a segment that is one free block to the card."""
        home = block.home
        size = block.size
        self.note("segment_free", block.address, size, home.stream)
        # before anything changes: its size and address locate its entry
        self.take_out(block)
        del self.blocks[block.address]
        self.memory.free(block.address)
        self.unreserve(home, size)
        for pools in home.pool.counted:
            pools.segment.add(-1)
        limit = self.settings.max_split_size
        if limit is not None and size >= limit:
            self.statistics.oversize_segments.add(-1)

    def begin_with(self, home: FreeList, size: int, is_expandable: bool) -> None:
        """Count a recorded segment, which was not allocated by a call to the card."""
        self.reserved += size
        limit = self.settings.max_split_size
        if limit is not None and size >= limit:
            self.statistics.oversize_segments.add(1)
        for pools in home.pool.counted:
            pools.reserved.add(size)
            if not is_expandable:
                pools.segment.add(1)

    def count_seeded(self, block: Block) -> None:
        """Count a block of a recorded segment, and add it to its list if it is free."""
        size = block.size
        counted = block.home.pool.counted
        if block.state == FREE:
            self.put_in(block)
            if block.expandable is None and not is_whole(block):
                for pools in counted:
                    pools.add_split(1, size)
            return
        for pools in counted:
            # `reset_peak` sets the peaks once the whole layout is in
            pools.requested += block.requested
            if block.state == WAITING:
                pools.wait(size)
            else:
                pools.count += 1
                pools.size += size
        limit = self.settings.max_split_size
        if block.state == ALLOCATED and limit is not None and size >= limit:
            self.statistics.oversize_allocations.add(1)

    def put_in(self, block: Block) -> None:
        """Add a free block to its list."""
        # a block's size must not change while it is in the list: remove it before splitting or merging
        insort(block.home.entries, (block.size, block.order, block.address))
        if self.freed_at is not None:
            self.freed_at[block.address] = block.home.pool.searches

    def take_out(self, block: Block) -> None:
        """Remove a free block from its list."""
        entries = block.home.entries
        del entries[bisect_left(entries, (block.size, block.order, block.address))]
        if self.freed_at is not None:
            del self.freed_at[block.address]

    def split(self, block: Block, size: int) -> Block:
        """Cut ``block`` at ``size`` bytes and return the rest, which is in no list yet."""
        rest = Block(block.address + size, block.size - size, block.home, block.order)
        rest.state = block.state
        rest.expandable = block.expandable
        rest.before = block
        rest.after = block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        block.size = size
        self.blocks[rest.address] = rest
        return rest

    def swallow(self, block: Block, after: Block) -> None:
        """Merge ``after``, which is in no list, into ``block``, which lies right before it."""
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
        del self.blocks[after.address]

    def blocks_in_segments(self) -> Iterator[list[Block]]:
        """The blocks of each segment by address; for an expandable segment, of each mapped range."""
        # the dict is not sorted by address but the links are, so it is enough to sort one head for each segment
        heads = [
            b for b in self.blocks.values() if b.state != UNMAPPED and (b.before is None or b.before.state == UNMAPPED)
        ]
        for head in sorted(heads, key=lambda block: block.address):
            found: list[Block] = []
            block: Block | None = head
            while block is not None and block.state != UNMAPPED:
                found.append(block)
                block = block.after
            yield found


def is_busy(block: Block) -> bool:
    """Whether a block can be neither merged nor allocated."""
    return block.state in (ALLOCATED, WAITING)


def is_whole(block: Block) -> bool:
    """Whether a block spans its whole segment."""
    return block.before is None and block.after is None


def is_free(block: Block | None) -> bool:
    """Whether there is a block that is free and has memory."""
    return block is not None and block.state == FREE


SMALL_GRANULE = 2 * 2**20


def allocate_expandable(heap: Heap, home: FreeList, size: int) -> Block | None:
    """Grow a free block to at least ``size`` bytes and take it out of its list; ``None`` if the card has too little.

    Whatever was mapped before the card refused stays mapped and free.
    """
    # either free with room behind it, or unmapped; everything behind it up to `size` is free or unmapped too
    block = _expandable_for(heap, home, size)
    if block.state == UNMAPPED:
        grown = _map_first(heap, block, min(block.size, size))
        if grown is None:
            return None
        block = grown
    # every mapping merges with the block before it, so the block grows until the request fits
    while block.size < size:
        following = block.after
        # a free neighbour would have been merged already, and `_has_room` found none in use
        assert following is not None and following.state == UNMAPPED
        grown = _map_first(heap, following, min(size - block.size, following.size))
        if grown is None:
            return None
        block = grown
    heap.take_out(block)
    return block


def _expandable_for(heap: Heap, home: FreeList, size: int) -> Block:
    """The block at the lowest address from which ``size`` bytes are free or unmapped, or a new range."""
    # torch's `find_expandable_block`: the unmapped ranges by address, each with the free block right before it
    for address in home.unmapped:
        block = heap.blocks[address]
        if block.before is not None and is_free(block.before):
            block = block.before
        if _has_room(block, size):
            return block
    if home.pool.is_small:
        granule = SMALL_GRANULE
    else:
        granule = heap.settings.large_segment_size
    # torch reserves nine eighths of the card's memory for each
    addresses = -(-(heap.memory.capacity * 9 // 8) // granule) * granule
    reserved = ExpandableRange(heap.memory.reserve(addresses), addresses, granule)
    block = heap.blocks[reserved.address] = Block(reserved.address, addresses, home, heap.next_order())
    block.state = UNMAPPED
    block.expandable = reserved
    home.insert_unmapped(block)
    return block


def _has_room(block: Block | None, size: int) -> bool:
    found = 0
    while found < size and block is not None and not is_busy(block):
        found += block.size
        block = block.after
    return found >= size


def _map_first(heap: Heap, block: Block, size: int) -> Block | None:
    """Map memory for the first ``size`` bytes of an unmapped block, in whole granules, and merge it."""
    assert block.expandable is not None
    granule = block.expandable.granule
    home = block.home
    size = -(-size // granule) * granule
    # before anything changes: a refusal leaves the range as it was
    if not heap.memory.map(size):
        return None
    home.remove_unmapped(block)
    # the list of unmapped ranges is sorted by address: the rest is added again under its own
    if size < block.size:
        home.insert_unmapped(heap.split(block, size))
    block.state = FREE
    # a mapping counts as memory of the card but not as a segment: torch counts only cudaMalloc in `segment`
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


def unmap_expandable(heap: Heap, block: Block) -> None:
    """Release the whole granules of a free block to the card, and the range too if nothing is left in it."""
    assert block.expandable is not None
    reserved = block.expandable
    home = block.home
    granule = reserved.granule
    # round inwards to whole granules of the range: a granule that another block shares stays mapped
    begin = reserved.address + -(-(block.address - reserved.address) // granule) * granule
    end = reserved.address + (block.address + block.size - reserved.address) // granule * granule
    if begin >= end:
        return
    heap.take_out(block)
    size = end - begin
    # what is cut off at either end stays free and keeps its memory
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
    after = block.after
    before = block.before
    if after is not None and after.state == UNMAPPED:
        home.remove_unmapped(after)
        heap.swallow(block, after)
    if before is not None and before.state == UNMAPPED:
        home.remove_unmapped(before)
        heap.swallow(before, block)
        block = before
    # nothing in the range has memory any more: torch releases its addresses as well
    if is_whole(block):
        del heap.blocks[block.address]
    else:
        home.insert_unmapped(block)
