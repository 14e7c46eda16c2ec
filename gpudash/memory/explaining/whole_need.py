"""The memory that a whole run needs that ran out of it: an exact figure, from its requests when it ran again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.blocks import SMALLEST_BLOCK
from gpudash.memory.allocator.trace import TEMPORARY, Trace
from gpudash.memory.explaining.remedies import REPLAY, is_bound, is_capacity, ordered
from gpudash.memory.predicting.estimate import smallest_card
from gpudash.memory.predicting.fit import Outcome, card_of, minimum_room, peaks, run_on
from gpudash.telemetry.explanation import Explanation, Need, Remedy
from gpudash.units import GIB, format_count, format_duration, needed

RERUN = "rerun"
NUMBERLESS = "rerun without numbers"
"""Values of `Remedy.verified_by`: a rerun on a simulated card, and one without a card."""

SIMULATED_TOLERANCE = 0.001
"""How far a run without numbers may deviate from the failed run at the point of failure, as a part of the live memory,
on a simulated card, whose allocator is the model itself."""

REAL_TOLERANCE = 0.02
"""The same on a real card: only the kernels know their workspaces."""

MOST_TRIED = 4
"""Most remedies that are tried, with a rerun each, until one works."""

MOST_EVENTS = 1_000_000
"""Most requests that are replayed, which takes some seconds; for more, the need is the peak with room to spare."""


@dataclass(frozen=True)
class CardRequests:
    """A process's requests to one card with room to spare; sizes in bytes.

    Attributes:
        index: index of the card.
        trace: the requests; ``None`` if some were not recorded.
        settings: allocator settings.
        context_bytes, others_bytes: memory outside of PyTorch.
        peak_allocated_bytes, peak_reserved_bytes: peaks of each.
        fraction: fraction of the card that PyTorch may use.
    """

    index: int
    trace: Trace | None
    settings: AllocatorSettings
    context_bytes: int
    others_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fraction: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, addresses_fall: bool) -> CardRequests:
        """Read the agent's JSON.

        Raises:
            KeyError, TypeError, ValueError: if it is malformed.
        """
        written = {
            "events": data["events"],
            "sizes": data["sizes"],
            "categories": [],
            "marks": [],
            "followed": 0,
            "streams": data["streams"],
            "addresses_fall": addresses_fall,
        }
        trace = Trace.from_json(written)
        # The purpose of blocks is unknown, and does not affect their placement.
        trace.categories = [TEMPORARY] * len(trace.sizes)
        kept = None
        if data["is_whole"] is True and len(trace.events) <= MOST_EVENTS:
            kept = trace
        return cls(
            index=int(data["index"]),
            trace=kept,
            settings=AllocatorSettings.parse(str(data["settings"])),
            context_bytes=int(data["context_bytes"]),
            others_bytes=int(data["others_bytes"]),
            peak_allocated_bytes=int(data["peak_allocated_bytes"]),
            peak_reserved_bytes=int(data["peak_reserved_bytes"]),
            fraction=float(data["fraction"]),
        )

    @classmethod
    def of_answer(
        cls, card: Mapping[str, Any], allocator: str, *, context_bytes: int, others_bytes: int
    ) -> CardRequests:
        """Read the answer of a run without numbers.

        Args:
            card: one of the answer's cards.
            allocator: its allocator settings, in the syntax of ``PYTORCH_CUDA_ALLOC_CONF``.
            context_bytes, others_bytes: as in the class.

        Raises:
            KeyError, TypeError, ValueError: if it is malformed.
        """
        trace = Trace.from_json(card["trace"])
        settings = AllocatorSettings.parse(allocator)
        highest = peaks(trace, replace(settings, per_process_memory_fraction=1.0))
        kept = None
        if len(trace.events) <= MOST_EVENTS:
            kept = trace
        return cls(
            index=int(card["index"]),
            trace=kept,
            settings=settings,
            context_bytes=context_bytes,
            others_bytes=others_bytes,
            peak_allocated_bytes=highest.allocated,
            peak_reserved_bytes=highest.reserved,
            fraction=float(card["fraction"]),
        )

    def on(self, room: int) -> Outcome:
        """Replay the requests with a limit on PyTorch's memory in bytes."""
        if self.trace is None:
            return Outcome(fits=self.peak_reserved_bytes <= room, failed_at=None, retries=0)
        return run_on(self.trace, room, replace(self.settings, per_process_memory_fraction=1.0))

    def fits(self, found: Explanation) -> bool:
        """Whether the requests succeed on the card in its state at the failure, under this rerun's cap."""
        room = _free_of_others(found)
        if self.fraction < 1:
            room = min(room, int(self.fraction * found.capacity_bytes))
        return self.on(room).fits

    def agrees_with(self, found: Explanation) -> bool:
        """Whether the requests fail on that card where the original run did."""
        ended = self.on(room_of(found))
        if self.trace is None or ended.failed_at is None:
            return False
        then = sum(found.by_category.values())
        tolerance = REAL_TOLERANCE
        if found.simulated:
            tolerance = SIMULATED_TOLERANCE
        # A real card may fail at another request: its own kernels also request workspaces.
        requested = self.trace.sizes[abs(self.trace.events[ended.failed_at]) - 1]
        is_same = _rounded(requested) == _rounded(found.requested_bytes or 0)
        return abs(ended.live - then) <= tolerance * then and (is_same or not found.simulated)

    def room(self) -> int:
        """The smallest limit for PyTorch with which every request succeeds."""
        most = self.peak_reserved_bytes
        if self.trace is None:
            return most
        settings = replace(self.settings, per_process_memory_fraction=1.0)
        found = minimum_room(self.trace, self.peak_allocated_bytes, most, settings)
        # The cache is then freed at other times, with another layout: a smaller limit may work where a larger one
        # fails.
        if run_on(self.trace, found, settings).fits:
            return found
        return most


def room_of(found: Explanation) -> int:
    """Bytes of a card that were available to PyTorch when memory ran out."""
    room = _free_of_others(found)
    if found.allowed_bytes is None:
        return room
    return min(room, found.allowed_bytes)


def _free_of_others(found: Explanation) -> int:
    return found.capacity_bytes - found.part_bytes("context", "process", "unattributed")


def _rounded(size: int) -> int:
    return -(-size // SMALLEST_BLOCK) * SMALLEST_BLOCK


def need_of(
    requests: CardRequests, *, steps: int, is_whole: bool, seconds: float, found_by: str = RERUN, remark: str = ""
) -> Need:
    """The card that all requests need.

    Args:
        requests: the requests.
        steps, is_whole, seconds, found_by, remark: as in `Need`.
    """
    # For part of a run, use the peak with room to spare: later requests find the cache fragmented.
    if is_whole:
        room = requests.room()
    else:
        room = requests.peak_reserved_bytes
    capacity = room + requests.context_bytes + requests.others_bytes
    if 0 < requests.fraction < 1:
        capacity = max(capacity, card_of(room, requests.fraction))
    return Need(
        capacity_bytes=capacity,
        pytorch_bytes=room,
        peak_allocated_bytes=requests.peak_allocated_bytes,
        peak_reserved_bytes=requests.peak_reserved_bytes,
        steps=steps,
        is_whole=is_whole,
        seconds=seconds,
        found_by=found_by,
        remark=remark,
    )


def need_on_card(need: Need, found: Explanation) -> Need:
    """PyTorch's need, as the need of a card that also holds the other memory."""
    others_bytes = found.part_bytes("context", "process", "unattributed")
    return replace(need, capacity_bytes=need.pytorch_bytes + others_bytes)


def with_need(found: Explanation, need: Need) -> Explanation:
    """``found`` with the need of the whole run, replacing lower bounds and a replay's results."""
    remedies = (remedy for remedy in found.remedies if not is_capacity(remedy))
    made = ordered((*remedies, _remedy(need)), found.verdict)
    return replace(found, remedies=made, remedies_note=need_text(need), need=need)


def to_be_tried(found: Explanation) -> Iterator[Remedy]:
    """The remedies that can be tried by running the program again, the most promising first."""
    can_be = (remedy for remedy in found.remedies if remedy.fits is None and changes_the_run(remedy))
    yield from list(can_be)[:MOST_TRIED]


def variables_of(remedy: Remedy) -> dict[str, str]:
    """The environment variables that a remedy sets, with their values."""
    found = {}
    for word in shlex.split(remedy.flags):
        name, given, value = word.partition("=")
        if not given or not name.isidentifier():
            return {}
        found[name] = value
    return found


def changes_the_run(remedy: Remedy) -> bool:
    """Whether a remedy defines an exact change of the program, its command or its variables."""
    return bool(remedy.patch or remedy.command or variables_of(remedy))


def with_tried(found: Explanation, remedy: Remedy, need: Need | None) -> Explanation:
    """``found`` after a rerun has tried one of its remedies.

    Args:
        remedy: the remedy.
        need: need of the whole run with it; ``None`` if it does not help.
    """
    rest = tuple(other for other in found.remedies if other != remedy)
    if need is None:
        return replace(found, remedies=rest)
    # With room to spare the cache is never freed, and grows larger than the card.
    peak = min(need.peak_reserved_bytes, room_of(found))
    works = replace(remedy, fits=True, verified_by=need.found_by, predicted_peak_bytes=peak)
    if need.is_whole:
        works = replace(works, puts_off="")
    return replace(found, remedies=ordered((works, *rest), found.verdict))


def with_settings_replayed(found: Explanation, cards: Sequence[CardRequests]) -> Explanation:
    """``found`` after replaying a rerun's requests with each allocator setting.

    A setting does not change the program's requests, so no further run is needed.

    Args:
        found: why memory ran out; settings that do not help are removed from its remedies.
        cards: the rerun's requests to each card.
    """
    made = []
    for remedy in found.remedies:
        is_setting = bool(remedy.allocator) and not remedy.patch and not remedy.command
        if not is_setting or remedy.fits is not None:
            made.append(remedy)
            continue
        settings = AllocatorSettings.parse(remedy.allocator)
        peak = 0
        does = True
        for card in cards:
            if card.trace is None:
                return found
            does = does and replace(card, settings=settings).fits(found)
            peak = max(peak, peaks(card.trace, settings).reserved)
        if does:
            # With room to spare the cache is never freed, and grows larger than the card.
            peak = min(peak, room_of(found))
            made.append(replace(remedy, fits=True, verified_by=REPLAY, predicted_peak_bytes=peak))
    return replace(found, remedies=ordered(made, found.verdict))


def with_reruns_of(found: Explanation, earlier: Explanation) -> Explanation:
    """``found``, a new explanation of a moment, with the results of reruns for the earlier one.

    Args:
        found: the new explanation; its remedies have their diffs.
        earlier: the earlier explanation.
    """
    # For settings, the result is a replay of a rerun's requests.
    tried = [
        remedy
        for remedy in earlier.remedies
        if remedy.verified_by in (RERUN, NUMBERLESS) or (remedy.fits and remedy.allocator)
    ]
    need = earlier.need
    if need is not None and need.found_by not in (RERUN, NUMBERLESS):
        need = None
    if earlier.requested_bytes != found.requested_bytes or not (tried or need):
        return found
    fresh = {remedy.change: remedy for remedy in found.remedies}
    before = {remedy.change for remedy in earlier.remedies}
    made = []
    for remedy in tried:
        if remedy.change in fresh:
            remedy = replace(remedy, patch=fresh[remedy.change].patch)
        made.append(remedy)
    changes = {remedy.change for remedy in tried}
    for remedy in found.remedies:
        # A remedy that could be tried, and is no longer listed, was tried and did not help.
        was_dropped = remedy.change not in before and (changes_the_run(remedy) or is_bound(remedy))
        if remedy.change not in changes and not was_dropped:
            made.append(remedy)
    return replace(
        found, remedies=ordered(made, found.verdict), remedies_note=earlier.remedies_note, need=need or found.need
    )


def without_need(found: Explanation, why: str) -> Explanation:
    """``found`` if the need of the whole run could not be determined.

    Args:
        why: reason in a sentence.
    """
    return found.with_remedies(found.remedies, f"{found.remedies_note} {why}".strip())


def need_text(need: Need) -> str:
    """How the need was determined, in a sentence."""
    took = format_duration(need.seconds)
    if need.found_by == NUMBERLESS:
        how = f"The same command ran without numbers, on a GPU that is not there, {{}} in {took}"
        if need.is_whole:
            return f"{how.format('to its end')}."
        more = need.remark or "the data loaders of its training were ended early"
        return f"{how.format(f'for {_steps(need)}')}: {more}. --find-need runs it for longer."
    if need.is_whole:
        return f"The same command ran to its end on a larger simulated GPU in {took}."
    return (
        f"The same command ran for {_steps(need)} on a larger simulated GPU in {took}; what only comes later, such as "
        "an evaluation, is not in the figure. --find-need runs it for longer."
    )


def _steps(need: Need) -> str:
    if need.steps == 1:
        return "1 step"
    return f"{format_count(need.steps)} steps"


def _remedy(need: Need) -> Remedy:
    card = smallest_card(need.capacity_bytes)
    text = f"{needed(need.capacity_bytes)} of the card ({needed(need.pytorch_bytes)} for PyTorch, and its context)"
    if not need.is_whole:
        text += f", for {_steps(need)}"
    if card is not None:
        text += f": a card with {card // GIB} GiB"
    fits = None
    if need.is_whole:
        fits = True
    peak = min(need.peak_reserved_bytes, need.pytorch_bytes)
    return Remedy(text, predicted_peak_bytes=peak, fits=fits, verified_by=need.found_by)
