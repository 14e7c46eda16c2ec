"""Replaying a recorded trace through the model: did it predict every placement?"""

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
    """Predicts each placement before it is told the real one, and goes on from the real one."""

    def preview(self, size: int, stream: int, pool: Hashable | None = None) -> int | None:
        """Address that `malloc` would give from what is cached; ``None`` when it would ask the card."""
        home = self._home(size, stream, pool)
        # the search of `malloc`, without taking anything: what it finds is the prediction
        place = self._best(home, self._rounding.rounded(size))
        if place < 0:
            return None
        return home.entries[place][-1]

    def passed_over(self, address: int) -> tuple[int, list[int]]:
        """Orders of the segment of the free block at ``address``, and of those that have another of its size."""
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
                # equal orders are parts of one segment: between them the address decides, which tells nothing
                others.append(order)
        return block.order, others

    def segment_for(self, size: int) -> int:
        """Bytes that `malloc` would ask of the card for a segment."""
        return segment_size(self._rounding.rounded(size), self.settings)

    def growth_for(self, size: int, address: int, stream: int, pool: Hashable | None = None) -> int:
        """Bytes that `malloc` would map for a request that begins, or goes on from a free block, at ``address``."""
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
        """Whether a request goes to the small pools."""
        return self._rounding.rounded(size) <= LARGEST_SMALL

    def add_segment(self, address: int, size: int, stream: int, pool: Hashable | None = None) -> None:
        """The real allocator got a segment from the card.

        Raises:
            ValueError: the card has not as much, or something is there.
        """
        if address in self._blocks or not self.memory.take(address, size):
            raise ValueError(f"No segment of {size} bytes can be at {address:#x}.")
        # the event does not say which pools it was for; only those of small blocks ask for 2 MiB
        home = self._pool(pool, size == SMALL_SEGMENT).of(stream)
        self._heap.put_in(self._heap.add_segment(home, address, size))

    def map_range(self, address: int, size: int, stream: int, is_small: bool, pool: Hashable | None = None) -> None:
        """The real allocator mapped memory into an expandable segment.

        Raises:
            ValueError: the card has not as much, or something is there.
        """
        if address in self._blocks or not self.memory.map(size):
            raise ValueError(f"No {size} bytes can be mapped at {address:#x}.")
        heap = self._heap
        home = self._pool(pool, is_small).of(stream)
        block = heap.blocks[address] = Block(address, size, home)
        block.expandable = ExpandableRange(address, size, size)
        heap.reserve(home, size)
        # a trace names no expandable segment: ranges of one free list that touch are taken to be parts of one
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
        # from now on the search has to look at blocks that can grow
        self._plain = False

    def unmap_range(self, address: int, size: int) -> None:
        """The real allocator gave a part of an expandable segment back.

        Raises:
            ValueError: not all of it is free.
        """
        heap = self._heap
        # what is unmapped may begin within a free block, so that looking its address up is not enough
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
        # what was before and behind it are no longer neighbours: there is a hole in the addresses
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
        # the model has no unmapped blocks here, so that the base class would see nothing to grow into
        # what is reserved behind the last mapped block is not recorded: more than any card has
        end = block.address + block.size
        home = block.home
        behind = (b.address for b in self._blocks.values() if b.home is home and b.expandable and b.address >= end)
        return block.size + min(behind, default=end + 2**62) - end

    def release_segment(self, address: int) -> None:
        """The real allocator gave a segment back.

        Raises:
            ValueError: no wholly free segment begins there.
        """
        block = self._blocks.get(address)
        if block is None or block.state != FREE or block.expandable is not None or not is_whole(block):
            raise ValueError(f"No wholly free segment begins at {address:#x}.")
        self._heap.release_segment(block)

    def releasable(self) -> set[tuple[int, int]]:
        """Address and size of what a retry or ``empty_cache`` would give back."""
        found = set()
        for block in self._blocks.values():
            # of an expandable segment only whole granules go back, and they may be a part of a block
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
        """Where the mapped range begins: on a granule."""
        while block.before is not None:
            block = block.before
        return block.address

    def place(self, address: int, size: int, stream: int, pool: Hashable | None = None, owner: Any = None) -> None:
        """The real allocator placed a request at ``address``.

        Raises:
            ValueError: there is no free block for it.
        """
        rounded = self._rounding.rounded(size)
        block = self._free_block_around(self._home(size, stream, pool), address, rounded)
        # from here on as `malloc` does, but at the real address: the next prediction begins with the real
        # layout
        self._heap.take_out(block)
        # the real allocator left a free block below: it had handed out one that the trace did not see
        if block.address < address:
            rest = self._cut(block, address - block.address)
            self._heap.put_in(block)
            block = rest
        self._hand_out(block, rounded, size, owner)

    def _cut(self, block: Block, size: int) -> Block:
        was_split = not is_whole(block)
        rest = self._heap.split(block, size)
        for pools in block.home.pool.counted:
            # cutting adds one part of a split segment, or makes two of a segment that was whole
            if was_split:
                pools.add_split(1, 0)
            else:
                pools.add_split(2, block.size + rest.size)
        return rest

    def _home(self, size: int, stream: int, pool: Hashable | None) -> FreeList:
        return self._pool(pool, self._rounding.rounded(size) <= LARGEST_SMALL).of(stream)

    def _free_block_around(self, home: FreeList, address: int, size: int) -> Block:
        # nearly always a free block begins there; only what the trace left out puts a request inside one
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
    """What came of a replay, in bytes and in numbers of events.

    Attributes:
        allocations: requests in the trace.
        allocations_at_real_address: those that the model placed where the real allocator did.
        segments: segments that the real allocator got from the card.
        segments_of_real_size: those that the model would have got for the same request, of the same size.
        releases: times that the real allocator gave free segments back, and in `releases_as_real` those times that the
            model would have given back the same ones.
        peak_allocated, peak_reserved: of whole blocks, those from before the trace included.
        unrecorded_slack: bytes that blocks from before the trace had above their rounded requests, where the file
            shows it only by what was placed beside them later; `peak_allocated` does not count them.
        retries: refused requests to the card that were tried again after releasing what was cached.
        failed_at_event: index in the trace of the first request refused, -1 when the layout before the trace does not
            fit; ``None`` when it fits, or no capacity was given.
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
    """Run a trace through the model of the allocator: every placement is predicted and checked against the real one,
    from which the replay goes on.

    Args:
        device: of a snapshot.

    Raises:
        SnapshotError: the trace cannot have led to the segments.
    """
    return _Check(device, aged(device, compiled(device)[0])).run()


class _Pools:
    """Which private pool an event is of: as it says, or as the segment of the file says that its address is in."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = [s for s in segments if s.pool_id != SHARED]
        self._begins = [segment.address for segment in self._segments]

    def of(self, entry: TraceEntry) -> tuple[int, ...] | None:
        """Its identity; ``None`` for the shared pools."""
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
    """``program`` with its first segments in the order in which torch had got them, where that decides.

    No snapshot tells it. Whenever a block is taken, its segment is older than those of all free blocks of its size;
    where nothing tells, the one at the higher address is taken to be older, since the driver's addresses fall.
    """
    if not device.settings.oldest_first or program.disagreeing or len(program.begin) < 2:
        return program
    # first a guess, from which the placements are followed: they tell which segments are younger than others
    falling = sorted(program.begin, key=lambda segment: -segment.address)
    guessed = replace(program, begin=[replace(segment, order=at) for at, segment in enumerate(falling, 1)])
    younger_than: dict[int, set[int]] = {}
    # a trace that contradicts itself later has taught something up to there
    with suppress(SnapshotError):
        check = _Check(device, guessed)
        younger_than = check.younger_than
        check.run()
    # a topological order of what was learnt; of those that are free to come next the one at the highest
    # address first, which has the lowest number
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
    if len(found) < len(falling):  # they contradict each other, as in a trace that torch did not write
        return guessed
    return replace(program, begin=[replace(falling[order - 1], order=at) for at, order in enumerate(found, 1)])


class _Check:
    """Follows the trace: each placement is predicted, counted, and then made where the real one was.

    Attributes:
        younger_than: order of a first segment → orders of those that have shown to be younger.
    """

    def __init__(self, device: DeviceSnapshot, program: TraceProgram) -> None:
        # each entry is made when it is asked for, and all are asked for several times
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
        # the model holds these bytes, and the history does not count them: so that both tell the same peak,
        # they are taken off
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
        """Follow every event."""
        begins = {release.begin: release for release in self._releases}
        for number, entry in enumerate(self._trace):
            try:
                if number in begins:
                    # the release as a whole, at its first event: what the model would give back it would give
                    # back at once
                    freed = {(e.address, e.size) for e in self._trace[number : begins[number].end]}
                    self._take_unused(number)
                    self._releases_right += freed == self._model.releasable()
                    self._retried = begins[number].is_retry
                self._follow(number, entry)
            except (ValueError, LookupError) as error:
                # events of no size, or on what is no block, can agree with the segments and still not have been
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
        # what the card gave comes before the request it was for
        if self._fresh:
            predicted = self._grow(entry, pool, predicted)
        self._retried = False
        if predicted == entry.address:
            self._hits += 1
        # only while there are first segments whose age is not known
        if self._first:
            self._learn(*model.passed_over(entry.address))
        model.place(entry.address, entry.size, entry.stream, pool, entry.stack)
        self._peak = max(self._peak, model.allocated_bytes - self._live_slack)

    def _learn(self, taken: int, others: list[int]) -> None:
        if 0 < taken <= self._first:
            self.younger_than.setdefault(taken, set()).update(order for order in others if order <= self._first)

    def _take_unused(self, number: int) -> None:
        """Take what the card gave for a request that it then refused, which is the next one in the trace."""
        # a mapping does not say for which pools it was: the request that it was for does
        request = next((e for e in self._trace[number:] if e.action in ("alloc", "oom")), None)
        is_small = request is not None and self._model.is_small(request.size)
        for event in self._fresh:
            self._model.map_range(event.address, event.size, event.stream, is_small, self._pools.of(event))
        self._segments += len(self._fresh)
        self._segments_right += len(self._fresh)
        self._fresh.clear()

    def _grow(self, entry: TraceEntry, pool: tuple[int, ...] | None, predicted: int | None) -> int | None:
        """Take what the card gave for this request, and predict where the request goes then."""
        model, fresh = self._model, self._fresh
        count = len(fresh)
        self._segments += count
        size = sum(event.size for event in fresh)
        if fresh[0].action == "segment_map":
            right = size == model.growth_for(entry.size, fresh[0].address, entry.stream, pool)
            for event in fresh:
                model.map_range(event.address, event.size, event.stream, model.is_small(entry.size), pool)
        else:
            # an ordinary segment comes in one piece, an expandable one in as many mappings as there are
            # granules
            right = size == model.segment_for(entry.size) and len(fresh) == 1
            for event in fresh:
                model.add_segment(event.address, event.size, event.stream, pool)
        fresh.clear()
        # a retry goes to the card again, also where the frees it waited for have left a block that would do
        if (predicted is not None and not self._retried) or not right:
            return predicted
        self._segments_right += count
        return model.preview(entry.size, entry.stream, pool)
