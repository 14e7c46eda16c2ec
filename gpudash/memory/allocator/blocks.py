"""Blocks, free lists and pools, and how block and segment sizes are rounded."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import Any

from gpudash.memory.allocator.settings import AllocatorSettings
from gpudash.memory.allocator.statistics import PoolStatistics

FREE, ALLOCATED, WAITING, UNMAPPED = range(4)
"""States of a block. WAITING: freed, but another stream still uses it. UNMAPPED: has addresses but no memory."""

STATE_NAMES = ("inactive", "active_allocated", "active_pending_free", "unmapped")
"""The names torch gives these states in a snapshot."""

MIB = 2**20

# torch's c10/core/AllocatorConfig.h: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kRoundLarge
SMALLEST_BLOCK = 512
LARGEST_SMALL = 1 * MIB
SMALL_SEGMENT = 2 * MIB
SMALLEST_DIRECT = 10 * MIB
ROUND_DIRECT = 2 * MIB


class FreeList:
    """The blocks of one stream in one pool: the free ones sorted by size and address, the unmapped ones by address."""

    __slots__ = ("entries", "pool", "stream", "unmapped")

    def __init__(self, pool: Pool, stream: int) -> None:
        self.pool = pool
        self.stream = stream
        # size, order and address of each block. In this order the first entry of at least a given size is the one that
        # torch's `get_free_block` picks (its comparator: size, then address; from 2.13 on age before address)
        self.entries: list[tuple[int, int, int]] = []
        self.unmapped: list[int] = []

    def insert_unmapped(self, block: Block) -> None:
        """Add a range that has no memory."""
        insort(self.unmapped, block.address)

    def remove_unmapped(self, block: Block) -> None:
        """Remove a range that has no memory."""
        del self.unmapped[bisect_left(self.unmapped, block.address)]


class Pool:
    """Blocks for small requests or for large ones, either shared by everyone or of one private pool."""

    __slots__ = ("counted", "is_small", "lists", "private", "searches", "statistics")

    def __init__(self, is_small: bool, everything: PoolStatistics, own: PoolStatistics, private: PrivatePool | None):
        self.is_small = is_small
        self.statistics = own
        # every statistic is kept twice: as torch's "all", and as "small_pool" or "large_pool"
        self.counted = (everything, own)
        self.private = private
        self.lists: dict[int, FreeList] = {}
        self.searches = 0

    def of(self, stream: int) -> FreeList:
        """The free list of ``stream``."""
        found = self.lists.get(stream)
        if found is None:
            found = self.lists[stream] = FreeList(self, stream)
        return found


class PrivatePool:
    """The pool of a single user, a captured graph or a MemPool. It keeps its segments."""

    __slots__ = ("identity", "large", "small")

    def __init__(
        self, identity: Hashable, everything: PoolStatistics, small: PoolStatistics, large: PoolStatistics
    ) -> None:
        self.identity = identity
        self.small = Pool(True, everything, small, self)
        self.large = Pool(False, everything, large, self)


class ExpandableRange:
    """The address range of one expandable segment.

    Attributes:
        address, size: of the range, in bytes.
        granule: bytes mapped at a time: 2 MiB for small requests, the size of a large segment for others.
    """

    __slots__ = ("address", "granule", "size")

    def __init__(self, address: int, size: int, granule: int) -> None:
        self.address = address
        self.size = size
        self.granule = granule


class Block:
    """A piece of a segment.

    Attributes:
        address, size: in bytes.
        requested: bytes requested for it, 0 while free.
        state: FREE, ALLOCATED, WAITING or UNMAPPED.
        home: the free list it belongs to.
        before, after: its neighbours in the segment.
        expandable: the range it is part of, ``None`` in an ordinary segment.
        order: age rank of its segment where older segments are preferred, 0 where only addresses count.
        owner: the caller's object that identifies the block.
    """

    __slots__ = ("address", "after", "before", "expandable", "home", "order", "owner", "requested", "size", "state")

    def __init__(self, address: int, size: int, home: FreeList, order: int = 0) -> None:
        self.address = address
        self.size = size
        self.home = home
        # all parts of a segment keep its order; splitting and merging never assign a new one
        self.order = order
        self.state = FREE
        self.requested = 0
        # neighbours always share segment, stream and pool, so merging need not compare those
        self.before: Block | None = None
        self.after: Block | None = None
        self.expandable: ExpandableRange | None = None
        self.owner: Any = None


class Rounding:
    """Rounds block sizes according to the settings."""

    __slots__ = ("_divisions", "is_plain")

    def __init__(self, settings: AllocatorSettings) -> None:
        self._divisions = settings.divisions()
        self.is_plain = max(self._divisions) <= 1

    def rounded(self, size: int) -> int:
        """Bytes of a block for ``size`` bytes, rounded up to the next division of its power of two or to 512 bytes."""
        # the index is log2 of the size in MiB, as in torch's `roundup_power2_divisions(size)`; the last interval is
        # open-ended
        # interval 0 holds everything below 2 MiB
        divisions = self._divisions[min(max(size.bit_length() - 21, 0), 15)]
        # for sizes this small a division would be less than a block of 512 bytes
        if divisions <= 1 or size <= SMALLEST_BLOCK * divisions:
            return (size + SMALLEST_BLOCK - 1) & -SMALLEST_BLOCK
        if size & (size - 1) == 0:
            return size
        # divide the interval from the power of two below into equal parts, and round up to the next of them
        part = (1 << (size.bit_length() - 1)) // divisions
        return -(-size // part) * part


def segment_size(rounded: int, settings: AllocatorSettings) -> int:
    """Bytes to request from the card for a block of ``rounded`` bytes."""
    # torch's `get_allocation_size`: small blocks share 2 MiB, those below 10 MiB share a large segment, and each of
    # the others gets its own, in whole 2 MiB pages
    if rounded <= LARGEST_SMALL:
        return SMALL_SEGMENT
    if rounded < SMALLEST_DIRECT:
        return settings.large_segment_size
    return (rounded + ROUND_DIRECT - 1) // ROUND_DIRECT * ROUND_DIRECT
