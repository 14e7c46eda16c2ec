"""The state of an allocator: its pools, blocks and figures, and what every change of a segment does to them.

Segments that grow are ranges of addresses that get memory as it is needed, after ``try_allocate_expandable_block`` and
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
"""Called with an action in the words of torch's trace, an address, a size in bytes, and a stream."""


class Heap:
    """Everything the allocator knows of one card.

    Attributes:
        blocks: by address; every block that is not part of another.
        reserved: bytes taken from the card.
        freed_at: address of a free block → searches of its pool when it was freed; kept only when garbage is collected.
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
        """Every pool: the shared ones, then those of each private pool."""
        yield self.small
        yield self.large
        for private in self.private.values():
            yield private.small
            yield private.large

    def private_pool(self, identity: Hashable) -> PrivatePool:
        """The private pool of this name, made at its first use."""
        found = self.private.get(identity)
        if found is None:
            counted = self.statistics
            found = self.private[identity] = PrivatePool(identity, counted.all, counted.small, counted.large)
        return found

    def note(self, action: str, address: int, size: int, stream: int) -> None:
        """Tell the observer."""
        if self.observer is not None:
            self.observer(action, address, size, stream)

    def reserve(self, home: FreeList, size: int) -> None:
        """Count ``size`` bytes more from the card."""
        self.reserved += size
        self.statistics.events["num_device_alloc"] += 1
        for pools in home.pool.counted:
            pools.reserved.add(size)

    def unreserve(self, home: FreeList, size: int) -> None:
        """Count ``size`` bytes given back to the card."""
        self.reserved -= size
        self.statistics.events["num_device_free"] += 1
        for pools in home.pool.counted:
            pools.reserved.add(-size)

    def next_order(self) -> int:
        """The order of a segment that is new."""
        # with the rule of older torches every segment has order 0, and addresses alone decide
        self.orders += self.settings.oldest_first
        return self.orders

    def add_segment(self, home: FreeList, address: int, size: int) -> Block:
        """A segment from cudaMalloc as one free block, which is not in its list yet."""
        # not in its list: the caller hands it out at once, and would only have to take it out again
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
        """Give a segment that is one free block back to the card."""
        home = block.home
        size = block.size
        self.note("segment_free", block.address, size, home.stream)
        # while it is still known: its size and address are what finds its entry
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
        """Count a recorded segment, which no call of the card gave."""
        self.reserved += size
        limit = self.settings.max_split_size
        if limit is not None and size >= limit:
            self.statistics.oversize_segments.add(1)
        for pools in home.pool.counted:
            pools.reserved.add(size)
            if not is_expandable:
                pools.segment.add(1)

    def count_seeded(self, block: Block) -> None:
        """Count a block of a recorded segment, and enter it in its list if it is free."""
        size = block.size
        counted = block.home.pool.counted
        if block.state == FREE:
            self.put_in(block)
            if block.expandable is None and not is_whole(block):
                for pools in counted:
                    pools.add_split(1, size)
            return
        for pools in counted:
            # the peaks follow by `reset_peak`, when all of the layout is in
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
        """Enter a free block in its list."""
        # a block's size must not change while it is in the list: whoever splits or merges takes it out first
        insort(block.home.entries, (block.size, block.order, block.address))
        if self.freed_at is not None:
            self.freed_at[block.address] = block.home.pool.searches

    def take_out(self, block: Block) -> None:
        """Take a free block out of its list."""
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
        """Merge ``after``, which is in no list, into the block before it."""
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
        del self.blocks[after.address]

    def blocks_in_segments(self) -> Iterator[list[Block]]:
        """The blocks of each segment by address; of an expandable segment, of each mapped range."""
        # the dict is in no order of addresses; the links are, so one head for each segment is enough to sort
        heads = [b for b in self.blocks.values() if b.state != UNMAPPED and _is_head(b)]
        for head in sorted(heads, key=lambda block: block.address):
            found: list[Block] = []
            block: Block | None = head
            while block is not None and block.state != UNMAPPED:
                found.append(block)
                block = block.after
            yield found


def _is_head(block: Block) -> bool:
    return block.before is None or block.before.state == UNMAPPED


def is_busy(block: Block) -> bool:
    """Whether a block can be neither merged nor handed out."""
    return block.state in (ALLOCATED, WAITING)


def is_whole(block: Block) -> bool:
    """Whether a block is all of its segment."""
    return block.before is None and block.after is None


def is_free(block: Block | None) -> bool:
    """Whether there is a block and it is free, with memory."""
    return block is not None and block.state == FREE


SMALL_GRANULE = 2 * 2**20


def allocate_expandable(heap: Heap, home: FreeList, size: int) -> Block | None:
    """A free block of at least ``size`` bytes, grown for it and in no list; ``None`` when the card has not as much.

    What could be mapped before the card refused stays mapped and free.
    """
    # either free, with room behind it, or unmapped; what follows it up to `size` is free or unmapped too
    block = _expandable_for(heap, home, size)
    if block.state == UNMAPPED:
        grown = _map_first(heap, block, min(block.size, size))
        if grown is None:
            return None
        block = grown
    # every mapping merges with what is before it, so that the block grows until the request fits
    while block.size < size:
        following = block.after
        # a free neighbour would have been merged already, and `_has_room` has seen none in use
        assert following is not None and following.state == UNMAPPED
        grown = _map_first(heap, following, min(size - block.size, following.size))
        if grown is None:
            return None
        block = grown
    heap.take_out(block)
    return block


def _expandable_for(heap: Heap, home: FreeList, size: int) -> Block:
    """The block at the lowest address from which free and unmapped blocks make up ``size`` bytes, or a new range."""
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
    # torch reserves one and an eighth of the card's memory for each
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
    """Give the first ``size`` bytes of an unmapped block memory, in whole granules, and merge it."""
    assert block.expandable is not None
    granule = block.expandable.granule
    home = block.home
    size = -(-size // granule) * granule
    # before anything is changed: a refusal leaves the range as it was
    if not heap.memory.map(size):
        return None
    home.remove_unmapped(block)
    # the list of unmapped ranges is by address: the rest is entered anew, under its own
    if size < block.size:
        home.insert_unmapped(heap.split(block, size))
    block.state = FREE
    # a mapping counts as memory of the card, but not as a segment: torch keeps `segment` for cudaMalloc
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
    """Give the whole granules of a free block back to the card, and the range with them if nothing is left in it."""
    assert block.expandable is not None
    reserved = block.expandable
    home = block.home
    granule = reserved.granule
    # inwards to whole granules of the range: one that another block reaches into stays mapped
    begin = reserved.address + -(-(block.address - reserved.address) // granule) * granule
    end = reserved.address + (block.address + block.size - reserved.address) // granule * granule
    if begin >= end:
        return
    heap.take_out(block)
    size = end - begin
    # what is cut off at either end stays free, with its memory
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
    # nothing of the range has memory any more: torch gives its addresses back as well
    if is_whole(block):
        del heap.blocks[block.address]
    else:
        home.insert_unmapped(block)
