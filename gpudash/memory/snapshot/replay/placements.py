"""Replaying a recorded trace through the model: did it predict every placement, and would another card do?"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudash.memory.allocator import AllocatorSettings, DeviceMemory, Segment
from gpudash.memory.allocator.blocks import Rounding
from gpudash.memory.allocator.caching import UNKNOWN
from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.allocator.recorded import RecordedAllocator
from gpudash.memory.snapshot.history.lives import columns_of
from gpudash.memory.snapshot.history.model import DeviceSnapshot, SnapshotError, TraceEntry
from gpudash.memory.snapshot.history.reverse_replay import ReverseReplay
from gpudash.memory.snapshot.replay.trace_program import cache_emptied, compiled
from gpudash.memory.snapshot.replay.trace_replay import UNLIMITED, Rerun


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What came of a replay, in bytes and in numbers of events.

    Attributes:
        allocations: requests in the trace.
        allocations_at_real_address: those that the model placed where the real allocator did; ``None`` in a what-if.
        segments: segments that the real allocator got from the card; in a what-if, the model.
        segments_of_real_size: those that the model would have got for the same request, of the same size.
        releases: times that the real allocator gave free segments back, and in `releases_as_real` those times that the
            model would have given back the same ones.
        peak_allocated, peak_reserved: of whole blocks, those from before the trace included.
        unrecorded_slack: bytes that blocks from before the trace had above their rounded requests, where the file
            shows it only by what was placed beside them later; `peak_allocated` does not count them.
        retries: refused requests to the card that were tried again after releasing what was cached.
        fits: whether the whole trace found memory; ``None`` where no capacity was given.
        failed_at_event: index in the trace of the first request refused, -1 when the layout before the trace does not
            fit; ``None`` when it fits, or no capacity was given.
    """

    allocations: int
    allocations_at_real_address: int | None
    segments: int
    segments_of_real_size: int | None
    releases: int
    releases_as_real: int | None
    peak_allocated: int
    peak_reserved: int
    final_allocated: int
    final_reserved: int
    unrecorded_slack: int
    retries: int
    fits: bool | None = None
    failed_at_event: int | None = None


def initial_layout(device: DeviceSnapshot) -> list[Segment]:
    """The segments before the first event of the trace.

    Raises:
        SnapshotError: the trace cannot have led to the segments.
    """
    return _undone(device).segments()


def replay(
    device: DeviceSnapshot, capacity: int | None = None, settings: AllocatorSettings | None = None
) -> ReplayOutcome:
    """Run a trace through the model of the allocator.

    With neither capacity nor settings every placement is checked against the real one, from which the replay goes on.
    With either, the model decides: its own segments, retries and refusals. Only what the program did is taken from the
    trace then: requests, frees and ``empty_cache``.

    Args:
        device: of a snapshot.
        capacity: bytes the allocator may take, which are those of the card less what is not PyTorch's.
        settings: instead of the recorded ones.

    Raises:
        SnapshotError: the trace cannot have led to the segments.
        ValueError: the capacity is not between 1 byte and 2**50 bytes.
    """
    if capacity is None and settings is None:
        return _Check(device).run()
    return _what_if(device, capacity, settings)


def _undone(device: DeviceSnapshot) -> ReverseReplay:
    undoing = ReverseReplay(device.segments, Rounding(device.settings))
    for entry in reversed(tuple(device.trace)):
        undoing.undo(entry)
    return undoing


@dataclass(frozen=True, slots=True)
class Release:
    """Segments given back one after the other, from event `begin` to before `end`.

    Attributes:
        is_retry: a request to the card had been refused; otherwise the program emptied the cache.
    """

    begin: int
    end: int
    is_retry: bool


def releases(device: DeviceSnapshot) -> list[Release]:
    """When segments were given back. A retry goes straight on to the card; ``empty_cache`` is told by its stack."""
    found, trace, place = [], tuple(device.trace), 0
    while place < len(trace):
        begin = place
        while place < len(trace) and trace[place].action in ("segment_free", "segment_unmap"):
            place += 1
        if place > begin:
            goes_on = place < len(trace) and trace[place].action in ("segment_alloc", "segment_map", "oom")
            found.append(Release(begin, place, goes_on and not _empties_cache(device, trace[begin])))
        place += 1
    return found


def _empties_cache(device: DeviceSnapshot, entry: TraceEntry) -> bool:
    stack = () if entry.stack is None else device.stacks[entry.stack]
    return any("empty_cache" in name.lower() or "emptycache" in name.lower() for _file, _line, name in stack)


class _Pools:
    """Which private pool an event is of: as it says, or as the segment of the file says that its address is in."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = [s for s in segments if s.pool_id != SHARED]
        self._begins = [segment.address for segment in self._segments]

    def of(self, entry: TraceEntry) -> tuple[int, ...] | None:
        """Its identity; ``None`` for the shared pools."""
        if entry.pool_id is not None:
            return None if entry.pool_id == SHARED else entry.pool_id
        place = bisect_right(self._begins, entry.address) - 1
        if place < 0 or entry.address >= self._begins[place] + self._segments[place].total_size:
            return None
        identity = self._segments[place].pool_id
        return identity if isinstance(identity, tuple) else None


class _Check:
    """Follows the trace: each placement is predicted, counted, and then made where the real one was."""

    def __init__(self, device: DeviceSnapshot) -> None:
        # each entry is made when it is asked for, and all are asked for several times
        device = replace(device, trace=tuple(device.trace))
        self._trace = device.trace
        self._releases = releases(device)
        self._pools = _Pools(device.segments)
        program, _, _ = compiled(device)
        if program.disagreeing:
            # says which event cannot have been
            _undone(device)
        self._slack = dict(program.unrecorded_slack)
        self._unrecorded_slack = sum(self._slack.values())
        self._model = RecordedAllocator(DeviceMemory(UNLIMITED), device.settings)
        try:
            self._model.seed(program.begin)
        except ValueError as error:
            raise SnapshotError(f"The layout before the trace cannot have been: {error}") from error
        self._live_slack = self._unrecorded_slack
        self._peak = self._model.allocated_bytes - self._live_slack
        self._fresh: list[TraceEntry] = []
        self._retried = False
        self._hits = self._allocations = self._segments = self._segments_right = self._releases_right = 0

    def run(self) -> ReplayOutcome:
        """Follow every event."""
        begins = {release.begin: release for release in self._releases}
        for number, entry in enumerate(self._trace):
            if number in begins:
                freed = {(e.address, e.size) for e in self._trace[number : begins[number].end]}
                self._take_unused(number)
                self._releases_right += freed == self._model.releasable()
                self._retried = begins[number].is_retry
            try:
                self._follow(number, entry)
            except ValueError as error:
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
        if self._fresh:
            predicted = self._grow(entry, pool, predicted)
        self._retried = False
        if predicted == entry.address:
            self._hits += 1
        model.place(entry.address, entry.size, entry.stream, pool, entry.stack)
        self._peak = max(self._peak, model.allocated_bytes - self._live_slack)

    def _take_unused(self, number: int) -> None:
        """Take what the card gave for a request that it then refused, which is the next one in the trace."""
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
            right = size == model.segment_for(entry.size) and len(fresh) == 1
            for event in fresh:
                model.add_segment(event.address, event.size, event.stream, pool)
        fresh.clear()
        # a retry goes to the card again, also where the frees it waited for have left a block that would do
        if (predicted is not None and not self._retried) or not right:
            return predicted
        self._segments_right += count
        return model.preview(entry.size, entry.stream, pool)


def _what_if(device: DeviceSnapshot, capacity: int | None, settings: AllocatorSettings | None) -> ReplayOutcome:
    """Let the model decide, on a card of some capacity and under some settings."""
    program, _, _ = compiled(device)
    chosen = device.settings if settings is None else settings
    ran = Rerun(program, UNLIMITED if capacity is None else capacity, chosen).run()
    emptied = len(cache_emptied(columns_of(device), device))
    return ReplayOutcome(
        allocations=sum(entry.action == "alloc" for entry in device.trace),
        allocations_at_real_address=None,
        segments=ran.segments,
        segments_of_real_size=None,
        releases=emptied + ran.retries,
        releases_as_real=None,
        peak_allocated=ran.peak_allocated,
        peak_reserved=ran.peak_reserved,
        final_allocated=ran.final_allocated,
        final_reserved=ran.final_reserved,
        unrecorded_slack=sum(program.unrecorded_slack.values()),
        retries=ran.retries,
        fits=ran.fits,
        failed_at_event=ran.failed_at,
    )
