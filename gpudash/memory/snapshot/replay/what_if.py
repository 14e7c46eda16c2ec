"""What a recorded run would have done on another card, or with other allocator settings, found by a replay."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.device_memory import GRANULE, Tried, smallest_capacity
from gpudash.memory.predicting.estimate import CARDS_BYTES, smallest_card
from gpudash.memory.snapshot.history.model import DeviceSnapshot
from gpudash.memory.snapshot.replay.placements import aged
from gpudash.memory.snapshot.replay.trace_program import TraceProgram, compiled
from gpudash.memory.snapshot.replay.trace_replay import UNLIMITED, Checkpoint, ReplayRun, Rerun
from gpudash.units import GIB, available, format_bytes, format_count, needed


@dataclass(frozen=True)
class WhatIfAnswer:
    """What a run would have done; sizes in bytes.

    Attributes:
        capacity: bytes available to PyTorch; ``None`` without a limit.
        settings: allocator settings as text; ``None`` for the recorded ones.
        sentence: the answer in a sentence.
        fits: whether every request succeeds; ``None`` if the question could not be answered.
        failed_at_event: event that fails; -1 if the layout before the recording does not fit.
        requested_bytes: size requested by that event.
        retries: requests that only succeeded after the cache was freed.
        peak_allocated_bytes, peak_reserved_bytes: peaks up to the end, or to the failure.
        smallest_capacity: smallest capacity on which every request succeeds under these settings; always given without
            a capacity, otherwise ``None`` if not known yet.
        seconds: time that the answer took.
    """

    capacity: int | None
    settings: str | None
    sentence: str
    fits: bool | None = None
    failed_at_event: int | None = None
    requested_bytes: int = 0
    retries: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    smallest_capacity: int | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON types; read by `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WhatIfAnswer:
        """Read the output of `to_json`; ignores unknown keys.

        Raises:
            ValueError: if something is missing.
        """
        known = {field.name for field in fields(cls)}
        try:
            return cls(**{key: value for key, value in data.items() if key in known})
        except TypeError:
            raise ValueError("This is no answer to a what-if question: it says nothing in words.") from None


class WhatIf:
    """Answers for one device of a snapshot; an answer is reused for all capacities with the same result.

    Args:
        device: device of a snapshot.
        program: program to replay; by default the requests in the device's trace.
        ends_refused: whether it ends with a failed request, so that later ones are unknown.

    Attributes:
        ends_refused: the same.
        goes_on: whether the replay continues beyond the device's trace.
    """

    def __init__(
        self, device: DeviceSnapshot, program: TraceProgram | None = None, *, ends_refused: bool = False
    ) -> None:
        self.ends_refused = ends_refused
        self.goes_on = program is not None
        self._device = device
        self._program = program
        self._ran: dict[tuple[Any, ...], list[ReplayRun]] = {}
        self._smallest: dict[tuple[Any, ...], int] = {}
        self._checkpoints: dict[tuple[Any, ...], list[Checkpoint]] = {}

    @property
    def program(self) -> TraceProgram:
        """The requests in the trace."""
        if self._program is None:
            self._program = aged(self._device, compiled(self._device)[0])
        return self._program

    @property
    def has_trace(self) -> bool:
        """Whether there is anything to replay."""
        return bool(len(self._device.trace))

    def prepare(self) -> bool:
        """Do one piece of work that speeds up later answers: the run without a limit, then the usual cards, then
        expandable segments.

        Returns:
            Whether there may be more to do.
        """
        if not self.has_trace:
            return False
        settings = self._device.settings
        # The run without a limit first: all others continue from its checkpoints.
        if not self._ran.get(_key(settings)):
            self.run(None, settings)
            return True
        if _key(settings) not in self._smallest:
            self.smallest_capacity(settings)
            return True
        # From the largest down: a result holds for a range of capacities, which covers most cards quickly.
        for capacity in sorted(CARDS_BYTES, reverse=True):
            if self._known(capacity, settings) is None:
                self.run(capacity, settings)
                return True
        expandable = replace(settings, expandable_segments=True)
        if self._known(UNLIMITED, expandable) is None:
            self.run(None, expandable)
            return True
        return False

    def answer(self, capacity: int | None = None, settings: str | None = None) -> WhatIfAnswer:
        """The result on a card that gives PyTorch ``capacity`` bytes, under settings in PYTORCH_ALLOC_CONF's syntax.

        Args:
            capacity: bytes; ``None`` for a card without a limit.
            settings: settings as text; ``None`` or "" for the recorded ones.
        """
        began = time.perf_counter()
        settings = settings or None
        if not self.has_trace:
            return WhatIfAnswer(capacity, settings, "The snapshot has no trace, so that nothing can be replayed.")
        if capacity is not None and not 0 < capacity <= UNLIMITED:
            return WhatIfAnswer(capacity, settings, "A capacity lies between 1 byte and 1 PiB.")
        parsed = None
        try:
            if settings is not None:
                parsed = AllocatorSettings.parse(settings)
            chosen = self._chosen(parsed)
        except ValueError as error:
            return WhatIfAnswer(capacity, settings, str(error))
        ran = self.run(capacity, chosen)
        sentence = self.describe(ran, capacity, settings)
        # The search takes several replays: do it only for a question without a capacity.
        if capacity is None:
            smallest: int | None = self.smallest_capacity(chosen)
            sentence += self._smallest_text(smallest)
        else:
            smallest = self._smallest.get(_key(chosen))
        return WhatIfAnswer(
            capacity=capacity,
            settings=settings,
            sentence=sentence,
            fits=ran.fits,
            failed_at_event=ran.failed_at,
            requested_bytes=ran.requested,
            retries=ran.retries,
            peak_allocated_bytes=ran.peak_allocated,
            peak_reserved_bytes=ran.peak_reserved,
            smallest_capacity=smallest,
            seconds=time.perf_counter() - began,
        )

    def run(self, capacity: int | None, settings: AllocatorSettings | None = None) -> ReplayRun:
        """The result on a card, replayed unless it follows from an earlier one."""
        chosen = self._chosen(settings)
        if capacity is None:
            room = UNLIMITED
        else:
            room = capacity
        known = self._known(room, chosen)
        if known is not None:
            return known
        rerun = Rerun(self.program, room, chosen)
        key = _key(chosen)
        ran = rerun.run(self._last_checkpoint(room, key), keeps=room == UNLIMITED)
        if room == UNLIMITED:
            self._checkpoints[key] = rerun.checkpoints
        if chosen.per_process_memory_fraction != 1:
            # With a fraction of the card, the allocator may check how full the card is: the result holds for one size.
            ran = replace(ran, least=room, below=room + 1)
        self._ran.setdefault(key, []).append(ran)
        return ran

    def _chosen(self, settings: AllocatorSettings | None) -> AllocatorSettings:
        """The recorded settings, or others of the same torch."""
        recorded = self._device.settings
        if settings is None:
            return recorded
        return replace(settings, oldest_first=recorded.oldest_first)

    def _last_checkpoint(self, capacity: int, key: tuple[Any, ...]) -> Checkpoint | None:
        """The last checkpoint that a run on such a card also passes; its initial layout must fit as recorded."""
        if sum(segment.total_size for segment in self.program.begin) > capacity:
            return None
        passed = [checkpoint for checkpoint in self._checkpoints.get(key, ()) if checkpoint.most <= capacity]
        if passed:
            return passed[-1]
        return None

    def _known(self, capacity: int, settings: AllocatorSettings) -> ReplayRun | None:
        found = self._ran.get(_key(settings), ())
        return next((ran for ran in found if ran.least <= capacity < ran.below), None)

    def smallest_capacity(self, settings: AllocatorSettings | None = None) -> int:
        """The fewest bytes, in whole 2 MiB, with which the whole trace succeeds."""
        chosen = self._chosen(settings)
        known = self._smallest.get(_key(chosen))
        if known is not None:
            return known

        def tried(capacity: int) -> Tried:
            ran = self.run(capacity, chosen)
            return Tried(ran.fits, ran.least, ran.below)

        # Blocks alive at the same time must fit, however well they are packed.
        least = max(GRANULE, self.program.highest // GRANULE * GRANULE)
        found = smallest_capacity(tried, least, self.run(None, chosen).peak_reserved)
        self._smallest[_key(chosen)] = found
        return found

    def describe(self, ran: ReplayRun, capacity: int | None, settings: str | None = None) -> str:
        """A result in a sentence: "22.0 GiB for PyTorch: fails at event 18 053, 156 MiB asked."."""
        if capacity is None:
            head = "Without a limit"
        else:
            head = f"{format_bytes(capacity)} for PyTorch"
        if settings:
            head += f" with {settings}"
        if ran.failed_at == -1:
            return f"{head}: too little for what was there before the recording began."
        if ran.failed_at is not None:
            held = available(ran.final_allocated)
            refused = f"{needed(ran.requested)} asked beside {held} in use"
            return f"{head}: fails at event {format_count(ran.failed_at)}, {refused}."
        if not ran.retries:
            retries = ""
        elif ran.retries == 1:
            retries = " after one retry"
        else:
            retries = f" after {ran.retries} retries"
        fits = "fits"
        end = ""
        if self.ends_refused:
            fits = "gets past the refused request"
            end = "; what came after it is not in the file"
        return f"{head}: {fits}{retries}, {format_bytes(ran.peak_reserved)} reserved at most{end}."

    def _smallest_text(self, smallest: int | None) -> str:
        if smallest is None:
            return ""
        if self.ends_refused:
            return f" It takes at least {needed(smallest)} to get there."
        card = smallest_card(smallest)
        if card is None:
            named = ""
        else:
            named = f" (a {card // GIB} GiB card, for example)"
        if self.goes_on:
            return f" It takes at least {needed(smallest)}{named}; a later step may need more."
        return f" It fits from {needed(smallest)} on{named}."


def _key(settings: AllocatorSettings) -> tuple[Any, ...]:
    # What affects placements: settings that only differ in `ignored` share their answers.
    return (
        settings.max_split_size,
        settings.divisions(),
        settings.garbage_collection_threshold,
        settings.expandable_segments,
        settings.per_process_memory_fraction,
        settings.large_segment_size,
        settings.max_non_split_rounding,
        settings.oldest_first,
    )
