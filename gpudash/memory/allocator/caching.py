"""The model of torch's CUDA caching allocator.

It follows torch's c10/cuda/CUDACachingAllocator.cpp (torch 2.0 to 2.13). ``release_cached_blocks``,
``release_available_cached_blocks`` and ``garbage_collect_cached_blocks`` decide which free segments go back to the
card: all of them, the oversize ones, or those unused for long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from typing import Any

from gpudash.memory.allocator import layout
from gpudash.memory.allocator.blocks import (
    ALLOCATED,
    FREE,
    LARGEST_SMALL,
    SMALLEST_BLOCK,
    UNMAPPED,
    WAITING,
    Block,
    FreeList,
    Pool,
    Rounding,
    segment_size,
)
from gpudash.memory.allocator.device_memory import DeviceMemory
from gpudash.memory.allocator.heap import Heap, Observer, allocate_expandable, is_whole, unmap_expandable
from gpudash.memory.allocator.layout import Segment
from gpudash.memory.allocator.refusal import LARGEST_REQUEST, AllocationRefused
from gpudash.memory.allocator.settings import AllocatorSettings

NOT_SPLIT = LARGEST_SMALL
"""A large block is not split if at most 1 MiB would remain."""

UNKNOWN = -1
"""Stands for an unknown stream."""


class CachingAllocator:
    """Allocates memory on one card as torch would.

    Not thread-safe and not reentrant: a finalizer that frees memory must be deferred until the running call returns.

    Args:
        memory: the card.
        settings: torch's settings.
        device: index of the card, used in messages.
        observer: called at every event.

    Attributes:
        memory, settings, device: as given.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        settings: AllocatorSettings | None = None,
        device: int = 0,
        observer: Observer | None = None,
    ) -> None:
        self.memory = memory
        self.settings = settings or AllocatorSettings()
        self.device = device
        self._heap = Heap(memory, self.settings)
        self._heap.observer = observer
        self._blocks = self._heap.blocks
        self._rounding = Rounding(self.settings)
        self._used_by: dict[int, set[int]] = {}
        self._waiting: dict[int, set[int]] = {}
        self.set_fraction(self.settings.per_process_memory_fraction)
        # no block reaches this size, so it stands for no limit and every comparison is between numbers
        limit = self.settings.max_split_size
        if limit is None:
            self._limit = 2**63
        else:
            self._limit = limit
        # plain: the best fit may be taken without inspecting the block itself
        self._plain = limit is None and not self.settings.expandable_segments

    def malloc(self, size: int, stream: int = 0, pool: Hashable | None = None, owner: Any = None) -> int:
        """Allocate a block for ``size`` bytes and return its address, 0 for 0 bytes.

        Args:
            size: bytes.
            stream: the stream that will use it.
            pool: private pool to allocate from, such as that of a CUDA graph; the shared pools by default.
            owner: any object that identifies the block in `segments`.

        Raises:
            AllocationRefused: there is no memory for it, even after releasing what was free.
            ValueError: ``size`` is negative.
        """
        if size <= 0:
            return _nothing(size)
        heap = self._heap
        if self._rounding.is_plain:
            rounded = (size + 511) & -512
        else:
            rounded = self._rounding.rounded(size)
        is_small = rounded <= LARGEST_SMALL
        # inlined instead of calling `_pool`, since a replay comes here for every request
        if pool is not None:
            shared = self._pool(pool, is_small)
        elif is_small:
            shared = heap.small
        else:
            shared = heap.large
        home = shared.lists.get(stream) or shared.of(stream)
        # torch measures age in searches of the pool: its `get_free_blocks_call_count`
        if heap.freed_at is not None:
            shared.searches += 1
        place = self._best(home, rounded)
        if place >= 0:
            block = self._take(home, place)
        else:
            block = self._grow(home, rounded, size)
        return self._hand_out(block, rounded, size, owner)

    def _hand_out(self, block: Block, rounded: int, size: int, owner: Any) -> int:
        """Allocate from a block that is in no list, split it if the rest is worth it, and return its address."""
        heap = self._heap
        pool = block.home.pool
        taken = block.size
        rest = taken - rounded
        # torch's `should_split`; what is not split off counts as allocated with the block
        if rest >= SMALLEST_BLOCK and (
            pool.is_small or self.settings.expandable_segments or (rest > NOT_SPLIT and rounded < self._limit)
        ):
            self._split(block, rounded)
            taken = rounded
        elif block.expandable is None and (block.before is not None or block.after is not None):
            # this free part of a segment is used up; parts of expandable segments are never counted as split
            for pools in pool.counted:
                pools.add_split(-1, -taken)
        block.state = ALLOCATED
        block.requested = size
        block.owner = owner
        if heap.observer is not None:
            heap.observer("alloc", block.address, size, block.home.stream)
        # inlined instead of calling `Counter`: this is the inner loop of every replay
        for pools in pool.counted:
            pools.counts += 1
            pools.sizes += taken
            pools.requests += size
            pools.count = level = pools.count + 1
            if level > pools.count_peak:
                pools.count_peak = level
            pools.size = level = pools.size + taken
            if level > pools.size_peak:
                pools.size_peak = level
            pools.requested = level = pools.requested + size
            if level > pools.requested_peak:
                pools.requested_peak = level
            if pools.waiting:
                pools.note_active_peak()
        if taken >= self._limit:
            heap.statistics.oversize_allocations.add(1)
        return block.address

    def free(self, address: int) -> None:
        """Free the block at ``address``. If other streams used it, it waits until `process_events` reports them done.

        Raises:
            ValueError: no allocated block starts there.
        """
        if not address:
            return
        block = self._blocks.get(address)
        if block is None or block.state != ALLOCATED:
            raise ValueError(f"No allocated block begins at {address:#x}, so that it cannot be freed.")
        heap = self._heap
        size = block.size
        if heap.observer is not None:
            heap.observer("free_requested", address, block.requested, block.home.stream)
        for pools in block.home.pool.counted:
            pools.count -= 1
            pools.size -= size
        if size >= self._limit:
            heap.statistics.oversize_allocations.add(-1)
        streams = None
        if self._used_by:
            streams = self._used_by.pop(address, None)
        # torch records an event on every stream that used the block and frees it once all have completed; until then
        # it is neither merged nor reused
        if streams:
            block.state = WAITING
            self._waiting[address] = streams
            for pools in block.home.pool.counted:
                pools.wait(size)
        else:
            self._complete(block)

    def _split(self, block: Block, rounded: int) -> None:
        """Cut a block that was free at ``rounded`` bytes and make the rest a free block."""
        heap = self._heap
        size = block.size
        was_split = block.before is not None or block.after is not None
        rest = heap.split(block, rounded)
        heap.put_in(rest)
        if block.expandable is None:
            for pools in block.home.pool.counted:
                # if the block was itself a free part of a segment, only the allocated bytes leave the statistic;
                # otherwise a new free part starts
                if was_split:
                    pools.split_size -= rounded
                else:
                    pools.add_split(1, size - rounded)

    def _complete(self, block: Block) -> None:
        """Mark a block as free and merge it with its free neighbours."""
        heap = self._heap
        requested = block.requested
        # the change in inactive split blocks: each merged neighbour was one of them
        split_count = 0
        split_size = 0
        if heap.observer is not None:
            heap.observer("free_completed", block.address, requested, block.home.stream)
        block.state = FREE
        block.requested = 0
        block.owner = None
        # merge with the block behind first, then with the one before, so that the lowest address remains
        after = block.after
        if after is not None and after.state == FREE:
            heap.take_out(after)
            split_count = -1
            split_size = -after.size
            heap.swallow(block, after)
        before = block.before
        if before is not None and before.state == FREE:
            heap.take_out(before)
            split_count -= 1
            split_size -= before.size
            heap.swallow(before, block)
            block = before
        heap.put_in(block)
        counted = block.home.pool.counted
        for pools in counted:
            pools.requested -= requested
        if block.expandable is None:
            if block.before is not None or block.after is not None:
                split_count += 1
                split_size += block.size
            # 0 where the segment is a single block again: it has no inactive split part
            if split_size:
                for pools in counted:
                    pools.add_split(split_count, split_size)

    def _best(self, home: FreeList, rounded: int) -> int:
        """Index in the list of the free block that fits best, -1 if none does."""
        if not self._plain:
            return self._best_specially(home, rounded)
        # a tuple of the size alone sorts before all entries of that size, so this finds the best fit, and of equal
        # sizes the first in torch's order
        place = bisect_left(home.entries, (rounded,))
        if place < len(home.entries):
            return place
        return -1

    def _best_specially(self, home: FreeList, rounded: int) -> int:
        """Like `_best`, where blocks may be too large to split or able to grow."""
        blocks = self._blocks
        entries = home.entries
        place = bisect_left(entries, (rounded,))
        if place == len(entries):
            return -1
        block = blocks[entries[place][-1]]
        if self.settings.expandable_segments:
            # torch's `get_free_block` rates a growable block by the size it can grow to, and goes on while the next
            # one in the list would end up smaller: the end of a segment is kept for requests that need it
            while block.expandable is not None and place + 1 < len(entries):
                following = blocks[entries[place + 1][-1]]
                if self._can_grow_to(following) >= self._can_grow_to(block):
                    break
                block = following
                place += 1
        else:
            # the setting was switched off after such segments were created: requests now skip them
            while block.expandable is not None:
                place += 1
                if place == len(entries):
                    return -1
                block = blocks[entries[place][-1]]
        if block.size < self._limit:
            return place
        # the block cannot be split, so it is kept for requests of nearly its size. All later blocks are larger still:
        # the search ends here
        if rounded < self._limit or block.size >= rounded + self.settings.max_non_split_rounding:
            return -1
        return place

    def _can_grow_to(self, block: Block) -> int:
        after = block.after
        if after is None or after.state != UNMAPPED:
            return block.size
        return block.size + after.size

    def _take(self, home: FreeList, place: int) -> Block:
        """Remove the free block at index ``place`` from the list and return it."""
        address = home.entries.pop(place)[-1]
        if self._heap.freed_at is not None:
            del self._heap.freed_at[address]
        return self._blocks[address]

    def _grow(self, home: FreeList, rounded: int, size: int) -> Block:
        """Get a block from the card, releasing free memory if necessary."""
        heap = self._heap
        events = heap.statistics.events
        # torch refuses such a size before it tries anything
        if size >= LARGEST_REQUEST:
            raise self._refusal(size, rounded, home)
        wanted = segment_size(rounded, self.settings)
        # the order of torch's `malloc`: collect garbage, ask the card, release oversize blocks and retry, release
        # everything and retry for the last time; only that last attempt counts as a retry
        if heap.freed_at is not None:
            _collect_garbage(heap)
        block = self._from_card(home, rounded, wanted)
        if block is None and _release_oversize(heap, home, rounded):
            block = self._from_card(home, rounded, wanted)
        if block is None:
            self.empty_cache()
            events["num_alloc_retries"] += 1
            block = self._from_card(home, rounded, wanted)
        if block is None:
            events["num_ooms"] += 1
            heap.note("oom", heap.memory.free_bytes, rounded, home.stream)
            raise self._refusal(size, wanted, home)
        return block

    def _from_card(self, home: FreeList, rounded: int, wanted: int) -> Block | None:
        heap = self._heap
        # the whole segment counts against the limit, not the requested bytes: a request may fail with room left
        if heap.allowed is not None and heap.reserved + wanted > heap.allowed:
            return None
        # such a segment maps no more than the request needs, whatever the size of an ordinary segment
        if self.settings.expandable_segments:
            return allocate_expandable(heap, home, rounded)
        address = heap.memory.malloc(wanted)
        if address is None:
            return None
        return heap.add_segment(home, address, wanted)

    def _refusal(self, size: int, requested: int, home: FreeList) -> AllocationRefused:
        heap = self._heap
        everything = heap.statistics.all
        # Other pools cannot use free memory of a private pool, such as a CUDA graph's: the message states it
        # separately.
        private_reserved = 0
        private_idle = 0
        for block in self._blocks.values():
            if block.home.pool.private is None or block.state == UNMAPPED:
                continue
            private_reserved += block.size
            if block.state == FREE:
                private_idle += block.size
        return AllocationRefused(
            requested=requested,
            size=size,
            device=self.device,
            capacity=self.memory.capacity,
            device_free=self.memory.free_bytes,
            allowed=heap.allowed,
            allocated=everything.size,
            reserved=heap.reserved,
            private_reserved=private_reserved,
            private_idle=private_idle,
            pending=everything.waiting_size,
            stream=home.stream,
        )

    def record_stream(self, address: int, stream: int) -> None:
        """Make the block wait for ``stream`` when it is freed. Its own stream needs no waiting.

        Raises:
            ValueError: no allocated block starts there.
        """
        block = self._blocks.get(address)
        if block is None or block.state != ALLOCATED:
            raise ValueError(f"No allocated block begins at {address:#x}, so that no stream can use it.")
        # work on the block's own stream is already ordered: the next user of the block is queued behind it
        if stream != block.home.stream:
            self._used_by.setdefault(address, set()).add(stream)

    def process_events(self, streams: Iterable[int]) -> None:
        """Complete the frees that waited only for ``streams``, which have finished all their work."""
        done = set(streams)
        # a copy, because completing a free removes entries
        for address, waited in list(self._waiting.items()):
            waited -= done
            if not waited:
                del self._waiting[address]
                self._complete_waiting(self._blocks[address])

    def complete_free(self, address: int) -> None:
        """Complete the free of the block at ``address``, whose streams are done. Does nothing if it does not wait."""
        if self._waiting.pop(address, None) is not None:
            self._complete_waiting(self._blocks[address])

    def synchronize(self) -> None:
        """Complete all pending frees: every stream has finished its work."""
        for address in list(self._waiting):
            del self._waiting[address]
            self._complete_waiting(self._blocks[address])

    def _complete_waiting(self, block: Block) -> None:
        for pools in block.home.pool.counted:
            pools.stop_waiting(block.size)
        self._complete(block)

    def empty_cache(self) -> None:
        """Release all unused segments of the shared pools to the card, after all streams are done."""
        # torch's `release_cached_blocks` first waits for all events, so pending blocks become free and are released as
        # well
        self._heap.statistics.events["num_sync_all_streams"] += 1
        self.synchronize()
        # private pools keep theirs: a captured graph replays with the addresses of its capture
        _release_free(self._heap, self._heap.large)
        _release_free(self._heap, self._heap.small)

    def set_fraction(self, fraction: float) -> None:
        """Limit reserved memory to this fraction of the card's capacity; 1 removes the limit.

        Raises:
            ValueError: ``fraction`` is not between 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"The fraction of the memory must be between 0 and 1, not {fraction}.")
        heap = self._heap
        if fraction == 1:
            heap.allowed = None
        else:
            heap.allowed = int(fraction * self.memory.capacity)
        collects = heap.allowed is not None and self.settings.garbage_collection_threshold > 0
        # ages are kept only if garbage is collected: they cost a dict entry for every free block
        if not collects:
            heap.freed_at = None
        elif heap.freed_at is None:
            heap.freed_at = {address: 0 for address, block in self._blocks.items() if block.state == FREE}

    def seed(self, segments: Iterable[Segment]) -> None:
        """Start from a recorded layout. The card provides its memory, and the statistics start from it.

        Raises:
            ValueError: the allocator is not empty, or the card has too little memory.
        """
        layout.seed(self._heap, segments)
        # a recording does not say which streams a block waits for: `complete_free` or `synchronize` ends the wait
        self._waiting = {block.address: {UNKNOWN} for block in self._blocks.values() if block.state == WAITING}
        # recorded segments may be expandable even if the settings do not enable it
        self._plain = self._plain and all(block.expandable is None for block in self._blocks.values())

    def set_observer(self, observer: Observer | None) -> None:
        """Call ``observer`` at every event from now on; ``None`` removes it."""
        self._heap.observer = observer

    def _pool(self, identity: Hashable | None, is_small: bool) -> Pool:
        """The private pool ``identity``, created at its first use; the shared pool for ``None``."""
        heap = self._heap
        if identity is None:
            if is_small:
                return heap.small
            return heap.large
        private = heap.private_pool(identity)
        if is_small:
            return private.small
        return private.large

    def statistics(self) -> dict[str, int]:
        """The statistics of ``torch.cuda.memory_stats`` under the same names."""
        limit = self.settings.max_split_size
        if limit is None:
            limit = -1
        return self._heap.statistics.flat(limit)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of allocated blocks: ``torch.cuda.memory_allocated``."""
        return self._heap.statistics.all.size

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the card: ``torch.cuda.memory_reserved``."""
        return self._heap.reserved

    @property
    def pending_bytes(self) -> int:
        """Bytes that were freed but are still in use by another stream."""
        return self._heap.statistics.all.waiting_size

    def reset_peak(self) -> None:
        """Reset the peaks, like ``torch.cuda.reset_peak_memory_stats``."""
        self._heap.statistics.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset the accumulated figures, like ``torch.cuda.reset_accumulated_memory_stats``."""
        self._heap.statistics.reset_accumulated()

    def segments(self) -> list[Segment]:
        """All segments, by address."""
        return layout.segments(self._heap)

    def fingerprint(self) -> list[tuple[int, int, int]]:
        """Address, size and state of every block, by address: all that determines where later requests are placed."""
        # owners and requested sizes are left out: they affect statistics, not placement
        return sorted((block.address, block.size, block.state) for block in self._heap.blocks.values())

    @property
    def retries(self) -> int:
        """Number of requests that succeeded only after cached memory had been released."""
        events = self._heap.statistics.events
        # torch also counts retries that failed
        return events["num_alloc_retries"] - events["num_ooms"]


def _nothing(size: int) -> int:
    if size < 0:
        raise ValueError(f"A negative number of bytes ({size}) cannot be allocated.")
    return 0


def _release_free(heap: Heap, pool: Pool) -> None:
    free = _free_blocks(heap, pool)
    for block in free:
        if _is_segment(block):
            heap.release_segment(block)
    # ordinary segments first, as in torch's `release_blocks`; unmapping then works on the blocks that remain
    for block in free:
        if block.expandable is not None:
            unmap_expandable(heap, block)


def _free_blocks(heap: Heap, pool: Pool) -> list[Block]:
    """Free blocks in the order of torch's set: by stream, size, order and address."""
    found = []
    for _stream, home in sorted(pool.lists.items()):
        for _size, _order, address in home.entries:
            found.append(heap.blocks[address])
    return found


def _release_oversize(heap: Heap, home: FreeList, size: int) -> bool:
    """Release blocks of this list that are too large to split: the smallest that suffices, else the largest first.

    Returns:
        Whether enough was released.
    """
    limit = heap.settings.max_split_size
    if limit is None:
        return False
    wanted = max(size, limit)
    place = bisect_left(home.entries, (wanted,))
    # torch's `release_available_cached_blocks`: if one block is large enough, all others are kept
    if place < len(home.entries):
        block = heap.blocks[home.entries[place][-1]]
        if _is_segment(block):
            heap.release_segment(block)
            return True
    released = 0
    # the largest first, so that the fewest segments go; blocks below the limit can be split and are kept
    for found, _order, address in reversed(list(home.entries)):
        if released >= wanted or found < limit:
            break
        if _is_segment(heap.blocks[address]):
            released += found
            heap.release_segment(heap.blocks[address])
    return released >= wanted


def _is_segment(block: Block) -> bool:
    """Whether a free block is a whole segment from one cudaMalloc."""
    return block.expandable is None and is_whole(block)


def _collect_garbage(heap: Heap) -> None:
    """Above the threshold, release free segments of the shared large pool that are unused longer than average."""
    if heap.allowed is None or heap.freed_at is None:
        return
    target = heap.reserved - int(heap.settings.garbage_collection_threshold * heap.allowed)
    if target <= 0:
        return
    pool = heap.large
    freed_at = heap.freed_at
    ages: dict[int, int] = {}
    for block in _free_blocks(heap, pool):
        if _is_segment(block):
            ages[block.address] = pool.searches - freed_at[block.address]
    reclaimed = 0
    while ages and reclaimed < target:
        # each round averages over what is left, so the average falls and younger blocks qualify
        average = sum(ages.values()) / len(ages)
        # never empty: at least one block is as old as the average
        for address in [address for address, age in ages.items() if age >= average]:
            del ages[address]
            reclaimed += heap.blocks[address].size
            heap.release_segment(heap.blocks[address])
