"""Whether a traced run fits a card, and what it takes: the trace replayed by the allocator's model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, CachingAllocator, DeviceMemory
from gpudash.memory.allocator.device_memory import LARGEST_CAPACITY, MeteredMemory, Tried, smallest_capacity
from gpudash.memory.allocator.trace import Trace


@dataclass(frozen=True)
class PhasePeak:
    """The most a phase of a step had allocated, in bytes."""

    step: int
    phase: str
    allocated: int


@dataclass(frozen=True)
class Peaks:
    """What a run takes with room to spare, in bytes.

    Attributes:
        allocated, reserved: the highest of each.
        by_category: what the allocated bytes were for at their peak; adds up to `allocated`.
        first_step, steady: peaks of the first step and of the last one; `allocated` of a run without steps.
        phases: peak of every phase of the first and the last step.
    """

    allocated: int
    reserved: int
    by_category: dict[str, int]
    first_step: int
    steady: int
    phases: tuple[PhasePeak, ...]


@dataclass(frozen=True)
class Outcome:
    """How a replay on a card of some capacity ended.

    Attributes:
        fits: whether every request was served.
        failed_at: index of the event that was not; ``None`` when all were.
        retries: how often cached segments had to be released first.
        taken: the most bytes taken of the card.
        lacking: the smallest capacity that would have served a request that this one refused; ``None`` without one.
        live: bytes that were allocated where it ended.
    """

    fits: bool
    failed_at: int | None
    retries: int
    taken: int = 0
    lacking: int | None = None
    live: int = 0


def peaks(
    trace: Trace, settings: AllocatorSettings | None = None, room: int | None = None, allowed: int | None = None
) -> Peaks:
    """Replay ``trace`` with the figures of every peak.

    Args:
        trace: what is replayed.
        settings: of the allocator.
        room, allowed: bytes, as of `run_on`, for a trace that passes there; without ``room`` on a card without end, of
            which the allocator may have all.

    Raises:
        AllocationRefused: when it does not pass there.
    """
    allocator = allocator_for(trace, settings, room, allowed)
    held: dict[int, tuple[int, int]] = {}
    by_category = dict.fromkeys(trace.categories, 0)
    highest = 0
    at_highest = dict(by_category)
    phase_peaks: dict[tuple[int, str], int] = {}
    # marks and events are merged: `coming` is the next mark, `key` the step and phase that events now belong to
    marks = iter([*trace.marks, None])
    coming = next(marks)
    key = (0, "")
    allocated = 0
    emptied = set(trace.emptied)
    for index, event in enumerate(trace.events):
        while coming is not None and coming.at <= index:
            key = (coming.step, coming.phase)
            coming = next(marks)
        if index in emptied:
            allocator.empty_cache()
        block = abs(event)
        category = trace.categories[block - 1]
        if event > 0:
            address = allocator.malloc(trace.sizes[block - 1], trace.streams.get(block, 0))
            # the size of the whole block, which the allocator may not have split
            size = allocator.allocated_bytes - allocated
            held[block] = address, size
            allocated += size
            by_category[category] += size
            if allocated > highest:
                highest = allocated
                at_highest = dict(by_category)
            phase_peaks[key] = max(phase_peaks.get(key, 0), allocated)
        else:
            address, size = held.pop(block)
            allocator.free(address)
            allocated -= size
            by_category[category] -= size
    steps = _peaks_of_steps(phase_peaks)
    first_step = highest
    steady = highest
    ends: set[int] = set()
    if steps:
        ends = {min(steps), max(steps)}
        first_step = steps[min(steps)]
        steady = steps[max(steps)]
    phases = []
    for (step, phase), peak in phase_peaks.items():
        if step in ends:
            phases.append(PhasePeak(step, phase, peak))
    return Peaks(
        allocated=highest,
        reserved=allocator.statistics()["reserved_bytes.all.peak"],
        by_category={name: size for name, size in at_highest.items() if size},
        first_step=first_step,
        steady=steady,
        phases=tuple(phases),
    )


def _peaks_of_steps(phase_peaks: Mapping[tuple[int, str], int]) -> dict[int, int]:
    """The highest of each step's phases; what precedes the first step is left out."""
    steps: dict[int, int] = {}
    for (step, _phase), peak in phase_peaks.items():
        if step:
            steps[step] = max(steps.get(step, 0), peak)
    return steps


def allocator_for(
    trace: Trace, settings: AllocatorSettings | None, room: int | None, allowed: int | None
) -> CachingAllocator:
    """An allocator in which ``trace`` can be replayed; the arguments are those of `peaks`."""
    if room is not None:
        return _allocator_in(trace, room, settings, allowed)[0]
    return CachingAllocator(DeviceMemory(LARGEST_CAPACITY, falls=trace.addresses_fall), _of_everything(settings))


def card_of(allowed: int, fraction: float) -> int:
    """Capacity in bytes of the smallest card of which the allocator may reserve ``allowed`` bytes.

    Args:
        allowed: bytes.
        fraction: above 0: torch lets the allocator reserve ``int(fraction * capacity)``.
    """
    # torch rounds the share down, and a float may be a little off: so the first guess is tried, and raised
    # until it is enough
    capacity = math.ceil(allowed / fraction)
    while int(fraction * capacity) < allowed:
        capacity += 1
    return capacity


def run_on(trace: Trace, room: int, settings: AllocatorSettings | None = None, allowed: int | None = None) -> Outcome:
    """Replay ``trace`` on a card with ``room`` bytes for the allocator, with its releasing and retrying.

    Args:
        trace: what is replayed.
        room: bytes.
        settings: of the allocator; their share of the card does not act but by ``allowed``.
        allowed: bytes that the share of the card comes to, by which the allocator's garbage collection goes; not below
            ``room``. ``None`` where there is no such limit.
    """
    if room <= 0 and trace.events:
        return Outcome(fits=False, failed_at=0, retries=0)
    if room <= 0:
        return Outcome(fits=True, failed_at=None, retries=0)
    allocator, memory = _allocator_in(trace, room, settings, allowed)
    held: dict[int, int] = {}
    # looked up once: a search for the least room runs this loop many times
    sizes = trace.sizes
    streams = trace.streams
    malloc = allocator.malloc
    free = allocator.free
    emptied = set(trace.emptied)
    index = 0
    try:
        for index, event in enumerate(trace.events):
            if index in emptied:
                allocator.empty_cache()
            if event < 0:
                free(held.pop(-event))
            elif streams:
                held[event] = malloc(sizes[event - 1], streams.get(event, 0))
            else:
                held[event] = malloc(sizes[event - 1])
    except AllocationRefused:
        return Outcome(False, index, _retries(allocator), memory.most, memory.lacking, allocator.allocated_bytes)
    return Outcome(True, None, _retries(allocator), memory.most, memory.lacking, allocator.allocated_bytes)


def minimum_room(trace: Trace, least: int, most: int, settings: AllocatorSettings | None = None) -> int:
    """The fewest bytes with which ``trace`` passes where the allocator may have all of them.

    A run that takes less than it could have passes in the same way with just that; one that was refused something
    fails in the same way up to the room that would have served the request. Neither holds where the allocator looks at
    how much of its share of the card is taken.

    Args:
        trace: what is replayed.
        least: with anything less it fails: the peak of what is allocated.
        most: with this it passes: the peak of what is reserved with room to spare.
        settings: of the allocator.
    """
    leaps = not reads_its_share(settings)

    def tried(room: int) -> Tried:
        if not leaps:
            return Tried(run_on(trace, room, settings, room).fits)
        outcome = run_on(trace, room, settings)
        return Tried(outcome.fits, outcome.taken, outcome.lacking)

    return smallest_capacity(tried, least, most)


def reads_its_share(settings: AllocatorSettings | None) -> bool:
    """Whether the allocator releases memory by how much of its share of the card it has taken."""
    if settings is None:
        return False
    return settings.per_process_memory_fraction < 1 and bool(settings.garbage_collection_threshold)


def _allocator_in(
    trace: Trace, room: int, settings: AllocatorSettings | None, allowed: int | None
) -> tuple[CachingAllocator, MeteredMemory]:
    """An allocator on a card with ``room`` bytes for it, and the card's memory; the arguments are those of `run_on`."""
    room = min(room, LARGEST_CAPACITY)
    settings = settings or AllocatorSettings()
    if allowed is None or not settings.per_process_memory_fraction:
        capacity = room
        settings = _of_everything(settings)
    else:
        # a card of which the share comes to as much: what the room leaves of it is in use by others
        capacity = min(LARGEST_CAPACITY, card_of(max(room, allowed), settings.per_process_memory_fraction))
    memory = MeteredMemory(capacity, capacity - room, falls=trace.addresses_fall)
    return CachingAllocator(memory, settings), memory


def _of_everything(settings: AllocatorSettings | None) -> AllocatorSettings | None:
    """``settings`` with the whole card for the allocator."""
    if settings is None:
        return None
    return replace(settings, per_process_memory_fraction=1.0)


def _retries(allocator: CachingAllocator) -> int:
    return int(allocator.statistics()["num_alloc_retries"])
