"""Replays a recorded trace through the allocator model, to check whether it predicts every placement."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

from gpudash.memory.allocator import DeviceMemory, Segment
from gpudash.memory.allocator.blocks import (
    FREE,
    LARGEST_SMALL,
    SMALL_SEGMENT,
    Block,
    ExpandableRange,
    FreeList,
    segment_size,
)
from gpudash.memory.allocator.caching import UNKNOWN, CachingAllocator
from gpudash.memory.allocator.heap import SMALL_GRANULE, is_free, is_whole
from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.snapshot.history.model import DeviceSnapshot, SnapshotError, TraceEntry
from gpudash.memory.snapshot.replay.trace_program import TraceProgram, compiled, releases
from gpudash.memory.snapshot.replay.trace_replay import UNLIMITED


class RecordedAllocator(CachingAllocator):
    """Predicts each placement before it gets the real one, from which it continues."""

    def preview(self, size: int, stream: int, pool: Hashable | None = None) -> int | None:
        """Address that `malloc` would return from the cache; ``None`` if it would ask the card."""
        home = self._home(size, stream, pool)
        # The search of `malloc`, without taking anything: its result is the prediction.
        place = self._best(home, self._rounding.rounded(size))
        if place < 0:
            return None
        return home.entries[place][-1]

    def passed_over(self, address: int) -> tuple[int, list[int]]:
        """Orders of the segment of the free block at ``address``, and of those with another block of its size."""
        block = self._blocks.get(address)
        if block is None or block.state != FREE:
            return 0, []
        entries = block.home.entries
        others = []
        for place in range(bisect_left(entries, (block.size,)), len(entries)):
            size, order, _address = entries[place]
            if size != block.size:
                break
            if order != block.order:
                # Equal orders are parts of one segment, among which the address decides: that says nothing about age.
                others.append(order)
        return block.order, others

    def segment_for(self, size: int) -> int:
        """Size of the segment that `malloc` would request from the card."""
        return segment_size(self._rounding.rounded(size), self.settings)

    def growth_for(self, size: int, address: int, stream: int, pool: Hashable | None = None) -> int:
        """Bytes that `malloc` would map for a request that begins at ``address``, or extends a free block there."""
        home = self._home(size, stream, pool)
        before = self._ending_at(address, home)
        missing = self._rounding.rounded(size)
        if before is not None and is_free(before):
            missing -= before.size
        if home.pool.is_small:
            granule = SMALL_GRANULE
        else:
            granule = self.settings.large_segment_size
        return -(-missing // granule) * granule

    def is_small(self, size: int) -> bool:
        """Whether a request is served by the small pools."""
        return self._rounding.rounded(size) <= LARGEST_SMALL

    def add_segment(self, address: int, size: int, stream: int, pool: Hashable | None = None) -> None:
        """Record that the real allocator got a segment from the card.

        Raises:
            ValueError: if the card has too little memory, or the address is in use.
        """
        if address in self._blocks or not self.memory.take(address, size):
            raise ValueError(f"No segment of {size} bytes can be at {address:#x}.")
        # The event does not name the pools; only those for small blocks request 2 MiB.
        home = self._pool(pool, size == SMALL_SEGMENT).of(stream)
        self._heap.put_in(self._heap.add_segment(home, address, size))

    def map_range(self, address: int, size: int, stream: int, is_small: bool, pool: Hashable | None = None) -> None:
        """Record that the real allocator mapped memory into an expandable segment.

        Raises:
            ValueError: if the card has too little memory, or the address is in use.
        """
        if address in self._blocks or not self.memory.map(size):
            raise ValueError(f"No {size} bytes can be mapped at {address:#x}.")
        heap = self._heap
        home = self._pool(pool, is_small).of(stream)
        block = heap.blocks[address] = Block(address, size, home)
        block.expandable = ExpandableRange(address, size, size)
        heap.reserve(home, size)
        # A trace does not identify expandable segments: adjacent ranges of one free list count as one.
        block.before = self._ending_at(address, home)
        block.after = self._beginning_at(address + size, home)
        neighbour = block.before or block.after
        if neighbour is None:
            block.order = heap.next_order()
        else:
            block.order = neighbour.order
        if block.before is not None:
            block.before.after = block
        if block.after is not None:
            block.after.before = block
        if is_free(block.after) and block.after is not None:
            heap.take_out(block.after)
            heap.swallow(block, block.after)
        if is_free(block.before) and block.before is not None:
            heap.take_out(block.before)
            heap.swallow(block.before, block)
            block = block.before
        heap.put_in(block)
        # From now on the search has to consider expandable blocks.
        self._plain = False

    def unmap_range(self, address: int, size: int) -> None:
        """Record that the real allocator unmapped part of an expandable segment.

        Raises:
            ValueError: if not all of it is free.
        """
        heap = self._heap
        # The range may begin inside a free block, so looking up its address is not enough.
        around = (b for b in heap.blocks.values() if b.address <= address < b.address + b.size)
        block = next(around, None)
        if block is None or block.state != FREE or address + size > block.address + block.size:
            raise ValueError(f"The {size} bytes at {address:#x} are not free.")
        heap.take_out(block)
        if block.address < address:
            rest = heap.split(block, address - block.address)
            heap.put_in(block)
            block = rest
        if size < block.size:
            heap.put_in(heap.split(block, size))
        if block.before is not None:
            block.before.after = None
        if block.after is not None:
            block.after.before = None
        # The blocks before and after it are no longer neighbours: there is a gap in the addresses.
        del heap.blocks[address]
        self.memory.unmap(size)
        heap.unreserve(block.home, size)

    def _ending_at(self, address: int, home: FreeList) -> Block | None:
        blocks = self._blocks.values()
        return next((b for b in blocks if b.address + b.size == address and b.home is home and b.expandable), None)

    def _beginning_at(self, address: int, home: FreeList) -> Block | None:
        block = self._blocks.get(address)
        if block is not None and block.home is home and block.expandable:
            return block
        return None

    def _can_grow_to(self, block: Block) -> int:
        if block.after is not None:
            return block.size
        # The model has no unmapped blocks here, so the base class would see nothing to grow into. The size reserved
        # after the last mapped block is not recorded: assume more than any card has.
        end = block.address + block.size
        home = block.home
        behind = (b.address for b in self._blocks.values() if b.home is home and b.expandable and b.address >= end)
        return block.size + min(behind, default=end + 2**62) - end

    def release_segment(self, address: int) -> None:
        """Record that the real allocator freed a segment.

        Raises:
            ValueError: if no entirely free segment begins there.
        """
        block = self._blocks.get(address)
        if block is None or block.state != FREE or block.expandable is not None or not is_whole(block):
            raise ValueError(f"No wholly free segment begins at {address:#x}.")
        self._heap.release_segment(block)

    def releasable(self) -> set[tuple[int, int]]:
        """Address and size of what a retry or ``empty_cache`` would free."""
        found = set()
        for block in self._blocks.values():
            # Of an expandable segment only whole granules are freed, which may be part of a block.
            if block.state == FREE and block.expandable is not None:
                if block.home.pool.is_small:
                    granule = SMALL_GRANULE
                else:
                    granule = self.settings.large_segment_size
                origin = self._origin(block)
                begin = origin + -(-(block.address - origin) // granule) * granule
                end = origin + (block.address + block.size - origin) // granule * granule
                if begin < end:
                    found.add((begin, end - begin))
            elif block.state == FREE and is_whole(block):
                found.add((block.address, block.size))
        return found

    def _origin(self, block: Block) -> int:
        """Start of the mapped range, on a granule."""
        while block.before is not None:
            block = block.before
        return block.address

    def place(self, address: int, size: int, stream: int, pool: Hashable | None = None, owner: Any = None) -> None:
        """Record that the real allocator placed a request at ``address``.

        Raises:
            ValueError: if there is no free block for it.
        """
        rounded = self._rounding.rounded(size)
        block = self._free_block_around(self._home(size, stream, pool), address, rounded)
        # From here on like `malloc`, but at the real address: the next prediction starts from the real layout.
        self._heap.take_out(block)
        # The real allocator left a free block below: it had allocated a block that the trace missed.
        if block.address < address:
            rest = self._cut(block, address - block.address)
            self._heap.put_in(block)
            block = rest
        self._hand_out(block, rounded, size, owner)

    def _cut(self, block: Block, size: int) -> Block:
        was_split = not is_whole(block)
        rest = self._heap.split(block, size)
        for pools in block.home.pool.counted:
            # A cut adds one part to a split segment, or makes two of a whole one.
            if was_split:
                pools.add_split(1, 0)
            else:
                pools.add_split(2, block.size + rest.size)
        return rest

    def _home(self, size: int, stream: int, pool: Hashable | None) -> FreeList:
        return self._pool(pool, self._rounding.rounded(size) <= LARGEST_SMALL).of(stream)

    def _free_block_around(self, home: FreeList, address: int, size: int) -> Block:
        # Nearly always a free block begins there; only gaps in the trace put a request inside one.
        found = self._blocks.get(address)
        if found is not None and found.state == FREE and found.size >= size:
            return found
        for *_, begin in home.entries:
            block = self._blocks[begin]
            if begin < address and address + size <= begin + block.size:
                return block
        raise ValueError(f"No free block holds the {size} bytes at {address:#x}.")


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The result of a replay, in bytes and numbers of events.

    Attributes:
        allocations: number of requests in the trace.
        allocations_at_real_address: number of those that the model placed where the real allocator did.
        segments: number of segments that the real allocator got from the card.
        segments_of_real_size: number of those for which the model would have requested the same size.
        releases: how often the real allocator freed segments; `releases_as_real` counts those for which the model
            would have freed the same ones.
        peak_allocated, peak_reserved: peaks, counting whole blocks, including those from before the trace.
        unrecorded_slack: bytes by which blocks from before the trace were larger than their rounded requests, as only
            later placements show; `peak_allocated` excludes them.
        retries: number of requests to the card that were retried after freeing the cache.
        failed_at_event: index of the first failed request; -1 if the layout before the trace does not fit; ``None`` if
            everything fits, or no capacity was given.
    """

    allocations: int
    allocations_at_real_address: int
    segments: int
    segments_of_real_size: int
    releases: int
    releases_as_real: int
    peak_allocated: int
    peak_reserved: int
    final_allocated: int
    final_reserved: int
    unrecorded_slack: int
    retries: int


def replay(device: DeviceSnapshot) -> ReplayOutcome:
    """Run a trace through the allocator model: every placement is predicted and compared with the real one, from which
    the replay continues.

    Args:
        device: device of a snapshot.

    Raises:
        SnapshotError: if the trace cannot have led to the segments.
    """
    return _Check(device, aged(device, compiled(device)[0])).run()


class _Pools:
    """The private pool of an event: as it says, or that of the file's segment at its address."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = [s for s in segments if s.pool_id != SHARED]
        self._begins = [segment.address for segment in self._segments]

    def of(self, entry: TraceEntry) -> tuple[int, ...] | None:
        """The pool's identity; ``None`` for the shared pools."""
        if entry.pool_id is not None:
            if entry.pool_id == SHARED:
                return None
            return entry.pool_id
        place = bisect_right(self._begins, entry.address) - 1
        if place < 0 or entry.address >= self._begins[place] + self._segments[place].total_size:
            return None
        identity = self._segments[place].pool_id
        if isinstance(identity, tuple):
            return identity
        return None


def aged(device: DeviceSnapshot, program: TraceProgram) -> TraceProgram:
    """``program`` with its initial segments in the order in which torch got them, where that matters.

    Snapshots do not record it. But when a block is used, its segment is older than those of all free blocks of its
    size. Without such evidence, the segment at the higher address counts as older, since the driver's addresses fall.
    """
    if not device.settings.oldest_first or program.disagreeing or len(program.begin) < 2:
        return program
    # Start with a guess and follow the placements, which show which segments are younger than others.
    falling = sorted(program.begin, key=lambda segment: -segment.address)
    guessed = replace(program, begin=[replace(segment, order=at) for at, segment in enumerate(falling, 1)])
    younger_than: dict[int, set[int]] = {}
    # A trace that later becomes inconsistent is still informative up to there.
    with suppress(SnapshotError):
        check = _Check(device, guessed)
        younger_than = check.younger_than
        check.run()
    # A topological order of the evidence; among segments without predecessors, the one at the highest address first,
    # which has the lowest number.
    waits: dict[int, int] = dict.fromkeys(range(1, len(falling) + 1), 0)
    for younger in younger_than.values():
        for order in younger:
            waits[order] += 1
    ready = [order for order, count in waits.items() if not count]
    found: list[int] = []
    while ready:
        found.append(heappop(ready))
        for order in younger_than.get(found[-1], ()):
            waits[order] -= 1
            if not waits[order]:
                heappush(ready, order)
    if len(found) < len(falling):  # contradictory, as in a trace not written by torch
        return guessed
    return replace(program, begin=[replace(falling[order - 1], order=at) for at, order in enumerate(found, 1)])


class _Check:
    """Follows the trace: each placement is predicted, counted, and then made as in reality.

    Attributes:
        younger_than: order of an initial segment → orders of those known to be younger.
    """

    def __init__(self, device: DeviceSnapshot, program: TraceProgram) -> None:
        # Entries are created on access, and all are accessed several times.
        self._trace = tuple(device.trace)
        self._releases = releases(device)
        self._pools = _Pools(device.segments)
        if program.disagreeing:
            raise SnapshotError(
                f"The trace and the segments of the snapshot disagree in {program.disagreeing} of their events "
                "and blocks."
            )
        self._slack = dict(program.unrecorded_slack)
        self._unrecorded_slack = sum(self._slack.values())
        self._model = RecordedAllocator(DeviceMemory(UNLIMITED), device.settings)
        try:
            self._model.seed(program.begin)
        except ValueError as error:
            raise SnapshotError(f"The layout before the trace cannot have been: {error}") from error
        # The model includes these bytes, the history does not: subtract them, so that both have the same peak.
        self._live_slack = self._unrecorded_slack
        self._peak = self._model.allocated_bytes - self._live_slack
        self._fresh: list[TraceEntry] = []
        self._retried = False
        if device.settings.oldest_first:
            self._first = len(program.begin)
        else:
            self._first = 0
        self.younger_than: dict[int, set[int]] = {}
        self._hits = self._allocations = self._segments = self._segments_right = self._releases_right = 0

    def run(self) -> ReplayOutcome:
        """Follow all events."""
        begins = {release.begin: release for release in self._releases}
        for number, entry in enumerate(self._trace):
            try:
                if number in begins:
                    # The release as a whole, at its first event: the model would free everything together.
                    freed = {(e.address, e.size) for e in self._trace[number : begins[number].end]}
                    self._take_unused(number)
                    self._releases_right += freed == self._model.releasable()
                    self._retried = begins[number].is_retry
                self._follow(number, entry)
            except (ValueError, LookupError) as error:
                # Events of size zero, or on no block, can agree with the segments and still be impossible.
                raise SnapshotError(f"The trace cannot be followed at event {number}: {error}") from error
        return ReplayOutcome(
            allocations=self._allocations,
            allocations_at_real_address=self._hits,
            segments=self._segments,
            segments_of_real_size=self._segments_right,
            releases=len(self._releases),
            releases_as_real=self._releases_right,
            peak_allocated=self._peak,
            peak_reserved=self._model.statistics()["reserved_bytes.all.peak"],
            final_allocated=self._model.allocated_bytes,
            final_reserved=self._model.reserved_bytes,
            unrecorded_slack=self._unrecorded_slack,
            retries=sum(release.is_retry for release in self._releases),
        )

    def _follow(self, number: int, entry: TraceEntry) -> None:
        model = self._model
        if entry.action == "alloc":
            self._allocate(entry)
        elif entry.action == "free_requested":
            model.record_stream(entry.address, UNKNOWN)
            model.free(entry.address)
            self._live_slack -= self._slack.pop(entry.address, 0)
        elif entry.action == "free_completed":
            model.complete_free(entry.address)
        elif entry.action in ("segment_alloc", "segment_map"):
            self._fresh.append(entry)
        elif entry.action == "segment_free":
            model.release_segment(entry.address)
        elif entry.action == "oom":
            self._take_unused(number)
            self._retried = False
        elif entry.action == "segment_unmap":
            model.unmap_range(entry.address, entry.size)

    def _allocate(self, entry: TraceEntry) -> None:
        model, pool = self._model, self._pools.of(entry)
        self._allocations += 1
        predicted = model.preview(entry.size, entry.stream, pool)
        # The card's segment precedes the request that caused it.
        if self._fresh:
            predicted = self._grow(entry, pool, predicted)
        self._retried = False
        if predicted == entry.address:
            self._hits += 1
        # Only while the age of some initial segments is unknown.
        if self._first:
            self._learn(*model.passed_over(entry.address))
        model.place(entry.address, entry.size, entry.stream, pool, entry.stack)
        self._peak = max(self._peak, model.allocated_bytes - self._live_slack)

    def _learn(self, taken: int, others: list[int]) -> None:
        if 0 < taken <= self._first:
            self.younger_than.setdefault(taken, set()).update(order for order in others if order <= self._first)

    def _take_unused(self, number: int) -> None:
        """Add the segment that the card gave for a request that it then refused, which is the next one in the
        trace."""
        # A mapping does not name its pools: the request that caused it does.
        request = next((e for e in self._trace[number:] if e.action in ("alloc", "oom")), None)
        is_small = request is not None and self._model.is_small(request.size)
        for event in self._fresh:
            self._model.map_range(event.address, event.size, event.stream, is_small, self._pools.of(event))
        self._segments += len(self._fresh)
        self._segments_right += len(self._fresh)
        self._fresh.clear()

    def _grow(self, entry: TraceEntry, pool: tuple[int, ...] | None, predicted: int | None) -> int | None:
        """Add what the card gave for this request, and predict the request's placement then."""
        model, fresh = self._model, self._fresh
        count = len(fresh)
        self._segments += count
        size = sum(event.size for event in fresh)
        if fresh[0].action == "segment_map":
            right = size == model.growth_for(entry.size, fresh[0].address, entry.stream, pool)
            for event in fresh:
                model.map_range(event.address, event.size, event.stream, model.is_small(entry.size), pool)
        else:
            # An ordinary segment comes in one piece, an expandable one in a mapping for each granule.
            right = size == model.segment_for(entry.size) and len(fresh) == 1
            for event in fresh:
                model.add_segment(event.address, event.size, event.stream, pool)
        fresh.clear()
        # A retry asks the card again, even if the frees that it waited for left a suitable block.
        if (predicted is not None and not self._retried) or not right:
            return predicted
        self._segments_right += count
        return model.preview(entry.size, entry.stream, pool)
