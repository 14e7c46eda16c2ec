"""Runs a recorded program on a card of another size, or with other settings, with the allocator model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, CachingAllocator, Segment
from gpudash.memory.allocator.caching import UNKNOWN
from gpudash.memory.allocator.device_memory import MeteredMemory
from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.snapshot.replay.trace_program import AT, DONE, LAST, OWN, REFUSED, SPECIAL, WAIT, TraceProgram

UNLIMITED = 2**50

PATIENCE = 24
"""Number of windows without equal states after which states are only compared occasionally."""

SELDOM = 16

CHECKPOINTS = 48
"""Number of states stored by a run without a limit, from which runs on smaller cards continue."""

APART = 8192
"""Smallest distance between two of them, in operations."""


class ReplayedDevice(MeteredMemory):
    """Gives a segment its real address, as long as the model requests the same."""

    __slots__ = ("_suggested",)

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._suggested: tuple[int, int] | None = None

    def suggest(self, address: int, size: int) -> None:
        """Set the address of the next segment, if it has this size."""
        self._suggested = (address, size)

    def forget(self) -> None:
        """Clear the suggestion."""
        self._suggested = None

    def malloc(self, size: int) -> int | None:
        """Address of ``size`` new bytes; ``None`` if there are not as many."""
        # Valid for one call: a segment of another size is one that the real allocator did not request.
        found = self._suggested
        self._suggested = None
        if found is None or found[1] != size or not self._is_vacant(found[0], size):
            return super().malloc(size)
        if self.take(found[0], size):
            return found[0]
        return None

    @property
    def beyond(self) -> int:
        """Address after everything that was ever allocated."""
        return self._next

    def go_on_from(self, address: int) -> None:
        """Allocate nothing below ``address`` except at suggested addresses."""
        self._next = max(self._next, address)

    def _is_vacant(self, address: int, size: int) -> bool:
        return all(begin >= address + size or begin + held <= address for begin, held in self.held())


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """The result of a program on a card, in bytes; the same on every card from `least` to below `below`.

    Attributes:
        fits: whether every request succeeded.
        failed_at: event that failed; -1 if the layout before the trace does not fit; ``None`` if everything fits.
        requested: size of the failed request.
        retries: how often cached segments had to be freed first.
        peak_allocated, peak_reserved: peaks up to the end, or to the failure.
        final_allocated, final_reserved: values at that moment.
        segments: number of segments from the card.
        least, below: range of capacities with the same result.
    """

    fits: bool
    failed_at: int | None
    requested: int
    retries: int
    peak_allocated: int
    peak_reserved: int
    final_allocated: int
    final_reserved: int
    segments: int
    least: int
    below: int


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A run between two windows; the same on every card that has the memory used so far.

    Attributes:
        window: next window.
        held: block → address.
        most, peak_allocated: peaks of reserved and allocated bytes so far.
        beyond: address after everything that the card had allocated.
    """

    window: int
    segments: list[Segment]
    held: dict[int, int]
    most: int
    peak_allocated: int
    beyond: int


class Rerun:
    """One run of a program.

    Args:
        program: program of a trace.
        capacity: bytes available to the allocator.
        settings: settings of the allocator.

    Attributes:
        checkpoints: checkpoints of the run, if requested.
    """

    def __init__(self, program: TraceProgram, capacity: int, settings: AllocatorSettings) -> None:
        self._program = program
        self._settings = settings
        self._card = ReplayedDevice(capacity)
        self._model = CachingAllocator(self._card, settings)
        self._held: dict[int, int] = {}
        self._below = UNLIMITED + 1
        self._at = self._retries_passed = 0
        self._every = 0
        self.checkpoints: list[Checkpoint] = []

    def run(self, begin: Checkpoint | None = None, keeps: bool = False) -> ReplayRun:
        """Run until the end, or until a request fails.

        Args:
            begin: checkpoint of a run on a larger card from which to continue; the whole program by default.
            keeps: whether to store checkpoints; not possible with memory in expandable segments.
        """
        if keeps and not self._settings.expandable_segments:
            apart = max(APART, len(self._program.operations) // CHECKPOINTS)
            self._every = -(-apart * len(self._program.windows) // max(1, len(self._program.operations)))
        failed = None
        requested = 0
        try:
            if begin is not None:
                self._resume(begin)
            else:
                failed = -1
                if self._begin():
                    failed = None
            if failed is None and begin is not None:
                self._windows(begin.window)
            elif failed is None:
                self._windows(0)
        except AllocationRefused as refused:
            failed = int(self._program.events[self._at])
            requested = refused.size
        figures = self._model.statistics()
        peak_allocated = figures["allocated_bytes.all.peak"]
        peak_reserved = figures["reserved_bytes.all.peak"]
        least = self._card.most
        # The model started at the checkpoint: include the run's earlier peaks.
        if begin is not None:
            peak_allocated = max(peak_allocated, begin.peak_allocated)
            peak_reserved = max(peak_reserved, begin.most)
            least = max(least, begin.most)
        # A card with room for what failed here, even if only until a retry, would have run differently.
        below = self._below
        if self._card.lacking is not None:
            below = min(self._card.lacking, below)
        return ReplayRun(
            fits=failed is None,
            failed_at=failed,
            requested=requested,
            retries=self._model.retries + self._retries_passed,
            peak_allocated=peak_allocated,
            peak_reserved=peak_reserved,
            final_allocated=self._model.allocated_bytes,
            final_reserved=self._model.reserved_bytes,
            segments=figures["num_device_alloc"],
            least=least,
            below=below,
        )

    def _resume(self, begin: Checkpoint) -> None:
        self._model.seed(begin.segments)
        self._card.go_on_from(begin.beyond)
        self._held = dict(begin.held)

    def _checkpoint(self, window: int) -> Checkpoint:
        figures = self._model.statistics()
        return Checkpoint(
            window,
            self._model.segments(),
            dict(self._held),
            self._card.most,
            figures["allocated_bytes.all.peak"],
            self._card.beyond,
        )

    def _begin(self) -> bool:
        """Set up the layout before the trace: as recorded, without idle segments if necessary, else repacked."""
        layout = self._program.begin
        # An inconsistent layout cannot be used.
        if self._settings == self._program.settings and not self._program.disagreeing:
            for kept in (layout, [segment for segment in layout if segment.active_size]):
                total = sum(segment.total_size for segment in kept)
                if total <= self._card.free_bytes:
                    self._seed(kept)
                    return True
                # A card on which this fits starts differently.
                self._below = min(self._below, total)
        try:
            self._pack(layout)
        except AllocationRefused:
            return False
        return True

    def _seed(self, kept: Sequence[Segment]) -> None:
        self._model.seed(kept)
        block_at = self._program.block_at
        self._held = {}
        for segment in kept:
            for block in segment.blocks:
                if block.state != "inactive":
                    self._held[block_at[block.address]] = block.address

    def _pack(self, layout: Sequence[Segment]) -> None:
        model = self._model
        for segment in layout:
            pool = None
            if segment.pool_id != SHARED:
                pool = segment.pool_id
            for block in segment.blocks:
                if block.state == "inactive":
                    continue
                number = self._program.block_at[block.address]
                # A request of 0 bytes would get no block, but this one exists.
                self._held[number] = model.malloc(max(block.requested_size, 1), segment.stream, pool)
                if block.state == "active_pending_free":
                    model.record_stream(self._held[number], UNKNOWN)
                    model.free(self._held[number])

    def _windows(self, number: int) -> None:
        """Run window after window; those that would only repeat are skipped."""
        windows = self._program.windows
        last: object = None
        tried = 0
        retries = self._model.retries
        # Garbage collection depends on age, so equal layouts do not develop equally.
        can_repeat = self._settings.garbage_collection_threshold == 0
        while number < len(windows):
            if self._every and number and number % self._every == 0:
                self.checkpoints.append(self._checkpoint(number))
            self._operations(windows.bounds[number], windows.bounds[number + 1])
            repeats = number + 1 < len(windows) and windows.signature[number + 1] == windows.signature[number]
            if not repeats or not can_repeat or (tried > PATIENCE and tried % SELDOM > 1):
                last = None
                tried += repeats
                number += 1
                continue
            # Two windows with the same signature that leave the same state: every further one does so too.
            state = self._state(number)
            tried += 1
            if state == last:
                begin = number
                number = self._passed(number)
                self._retries_passed += (number - begin) * (self._model.retries - retries)
                state = None
            last = state
            retries = self._model.retries
            number += 1

    def _state(self, number: int) -> object:
        """Everything that determines what follows a window, in a comparable form."""
        windows = self._program.windows
        own = windows.first[number]
        before = 0
        if number:
            before = windows.first[number - 1]
        # Identify blocks as in signatures: otherwise no two windows would leave the same state.
        held: list[tuple[int, int]] = []
        for block, address in self._held.items():
            if block >= own:
                held.append((block - own + OWN, address))
            elif block >= before:
                held.append((block - before + LAST, address))
            else:
                held.append((block, address))
        held.sort()
        return held, self._model.fingerprint()

    def _passed(self, number: int) -> int:
        """The last of the windows that repeat this one; its blocks take the places of this one's."""
        windows = self._program.windows
        last = number
        while last + 1 < len(windows) and windows.signature[last + 1] == windows.signature[number]:
            last += 1
        moved = {}
        for block, address in self._held.items():
            for age in (0, 1):
                # This window's first: other blocks may be the previous one's; older ones keep their numbers.
                if number >= age and block >= windows.first[number - age]:
                    block += windows.first[last - age] - windows.first[number - age]
                    break
            moved[block] = address
        self._held = moved
        return last

    def _operations(self, begin: int, end: int) -> None:
        # Cached in locals: the loop below runs for every operation of every replay.
        program = self._program
        held = self._held
        size = program.size
        stream = program.stream
        pool = program.pool
        malloc = self._model.malloc
        free = self._model.free
        at = begin
        try:
            for at, operation in enumerate(program.operations[begin:end], begin):  # noqa: B007 - where it failed
                if operation < 0:
                    free(held.pop(~operation, 0))
                elif operation < SPECIAL:
                    held[operation] = malloc(size[operation], stream[operation], pool[operation])
                else:
                    self._special(*program.specials[operation - SPECIAL])
        finally:
            self._at = at

    def _special(self, kind: int, block: int, address: int, size: int) -> None:
        model = self._model
        held = self._held
        if kind == WAIT:
            # It stays in `held` until the other stream has finished, although it is freed: its address is in use.
            address = held.get(block, 0)
            if address:
                model.record_stream(address, UNKNOWN)
                model.free(address)
        elif kind == DONE:
            model.complete_free(held.pop(block, 0))
        elif kind == AT:
            self._card.suggest(address, size)
            program = self._program
            held[block] = model.malloc(program.size[block], program.stream[block], program.pool[block])
            self._card.forget()
        elif kind == REFUSED:
            # Its later use by the program is unknown: it only has to have been allocated.
            model.free(model.malloc(size, block))
        else:
            model.empty_cache()
