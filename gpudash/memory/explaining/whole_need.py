"""What a whole run needs that ran out of memory: a figure and no bound, from what it asked for when it ran again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.blocks import SMALLEST_BLOCK
from gpudash.memory.allocator.trace import TEMPORARY, Trace
from gpudash.memory.explaining.remedies import AT_LEAST, REPLAY, ordered
from gpudash.memory.explaining.wording import needed
from gpudash.memory.predicting.estimate import smallest_card
from gpudash.memory.predicting.fit import Outcome, card_of, minimum_room, peaks, run_on
from gpudash.telemetry.explanation import Explanation, Need, Remedy
from gpudash.units import GIB, format_count, format_duration

RERUN = "rerun"
NUMBERLESS = "rerun without numbers"
"""What a remedy is verified by: a rerun on a simulated card, and one on a card that is not there."""

SIMULATED_TOLERANCE = 0.001
"""How far a run without numbers may lie from the one that failed where memory ran out, as a part of what was live then,
on a simulated card, whose allocator is the model's own."""

REAL_TOLERANCE = 0.02
"""The same on a real card: kernels ask for workspaces that only they know."""

_CAPACITY = re.compile(rf"({AT_LEAST})?[\d.,]+ \w+ for PyTorch\b")
"""Begins a capacity among the remedies."""

MOST_TRIED = 4
"""Remedies that a rerun each tries, until one does."""

MOST_EVENTS = 1_000_000
"""Requests that are replayed: some seconds each time. Of more the peak with room to spare is the need."""


@dataclass(frozen=True)
class CardRequests:
    """What a process has asked of one card with room to spare; sizes in bytes.

    Attributes:
        index: of the card.
        trace: the requests; ``None`` where not all of them were kept.
        settings: of the allocator.
        context_bytes, others_bytes: that lie beside what PyTorch has.
        peak_allocated_bytes, peak_reserved_bytes: the highest of each.
        fraction: of the card that PyTorch may have.
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
        """Of what the agent has written.

        Raises:
            KeyError, TypeError, ValueError: when it did not.
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
        # what blocks were for is not told, and does not count for where they go
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
        """Of what a run without numbers has answered.

        Args:
            card: one of its cards.
            allocator: its settings of the allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` has them.
            context_bytes, others_bytes: as of the class.

        Raises:
            KeyError, TypeError, ValueError: when it did not.
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
        """How the requests end where PyTorch can have so many bytes."""
        if self.trace is None:
            return Outcome(fits=self.peak_reserved_bytes <= room, failed_at=None, retries=0)
        return run_on(self.trace, room, replace(self.settings, per_process_memory_fraction=1.0))

    def fits(self, found: Explanation) -> bool:
        """Whether the requests are served on the card as it was, under the cap that was set this time."""
        room = _free_of_others(found)
        if self.fraction < 1:
            room = min(room, int(self.fraction * found.capacity_bytes))
        return self.on(room).fits

    def agrees_with(self, found: Explanation) -> bool:
        """Whether the requests run out on the card as it was where the run did that failed."""
        ended = self.on(room_of(found))
        if self.trace is None or ended.failed_at is None:
            return False
        then = sum(found.by_category.values())
        tolerance = REAL_TOLERANCE
        if found.simulated:
            tolerance = SIMULATED_TOLERANCE
        # a real card may refuse at another request: kernels that only it has ask for workspaces in between
        requested = self.trace.sizes[abs(self.trace.events[ended.failed_at]) - 1]
        is_same = _rounded(requested) == _rounded(found.requested_bytes or 0)
        return abs(ended.live - then) <= tolerance * then and (is_same or not found.simulated)

    def room(self) -> int:
        """The fewest bytes for PyTorch with which every request is served."""
        most = self.peak_reserved_bytes
        if self.trace is None:
            return most
        settings = replace(self.settings, per_process_memory_fraction=1.0)
        found = minimum_room(self.trace, self.peak_allocated_bytes, most, settings)
        # a cache that is released at other times may lie otherwise, so that less passes where more does not
        if run_on(self.trace, found, settings).fits:
            return found
        return most


def room_of(found: Explanation) -> int:
    """Bytes that PyTorch could have of a card when memory ran out, as it was."""
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
    """What a card must have for all that was asked of it.

    Args:
        requests: the requests.
        steps, is_whole, seconds, found_by, remark: as of `Need`.
    """
    # a part of a run is taken with room to spare: what comes later finds the cache in pieces
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
    """A need of PyTorch's, on a card that has to hold what lies beside it, too."""
    others_bytes = found.part_bytes("context", "process", "unattributed")
    return replace(need, capacity_bytes=need.pytorch_bytes + others_bytes)


def with_need(found: Explanation, need: Need) -> Explanation:
    """``found`` with the need of the whole run in place of a bound of it, and of what a replay made of it."""
    remedies = (remedy for remedy in found.remedies if not _is_capacity(remedy))
    made = ordered((*remedies, _remedy(need)))
    return replace(found, remedies=made, remedies_note=need_text(need), need=need)


def to_be_tried(found: Explanation) -> Iterator[Remedy]:
    """The remedies that can be tried by running the program again with them, the most promising first."""
    can_be = (remedy for remedy in found.remedies if remedy.fits is None and changes_the_run(remedy))
    yield from list(can_be)[:MOST_TRIED]


def variables_of(remedy: Remedy) -> dict[str, str]:
    """The variables that a remedy sets, with their values; nothing where it sets none."""
    found = {}
    for word in shlex.split(remedy.flags):
        name, given, value = word.partition("=")
        if not given or not name.isidentifier():
            return {}
        found[name] = value
    return found


def changes_the_run(remedy: Remedy) -> bool:
    """Whether a remedy says to the letter what is changed of the program, its command or its variables."""
    return bool(remedy.patch or remedy.command or variables_of(remedy))


def with_tried(found: Explanation, remedy: Remedy, need: Need | None) -> Explanation:
    """``found`` where one of its remedies was tried by a rerun.

    Args:
        remedy: that was tried.
        need: of the whole run with it; ``None`` where it is no remedy.
    """
    rest = tuple(other for other in found.remedies if other != remedy)
    if need is None:
        return replace(found, remedies=rest)
    # with room to spare a cache is not released, and comes to more than the card has
    peak = min(need.peak_reserved_bytes, room_of(found))
    works = replace(remedy, fits=True, verified_by=need.found_by, predicted_peak_bytes=peak)
    return replace(found, remedies=ordered((works, *rest)))


def with_settings_replayed(found: Explanation, cards: Sequence[CardRequests]) -> Explanation:
    """``found`` in which it is known of each setting of the allocator whether the requests of a rerun pass with it.

    A setting changes nothing of what a program asks for, so that no further run of it is needed.

    Args:
        found: why memory ran out; settings that do not do are taken out of its remedies.
        cards: what the rerun asked of each card.
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
            # with room to spare a cache is not released, and comes to more than the card has
            peak = min(peak, room_of(found))
            made.append(replace(remedy, fits=True, verified_by=REPLAY, predicted_peak_bytes=peak))
    return replace(found, remedies=ordered(made))


def with_reruns_of(found: Explanation, earlier: Explanation) -> Explanation:
    """``found``, which explains a moment anew, with what reruns had found when it was explained before.

    Args:
        found: its remedies have their diffs.
        earlier: the explanation of before.
    """
    # of a setting it is known by a replay of what a rerun asked for
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
        # one that a rerun could have tried, and that was not there any more, was tried and is none
        was_dropped = remedy.change not in before and (changes_the_run(remedy) or is_bound(remedy))
        if remedy.change not in changes and not was_dropped:
            made.append(remedy)
    return replace(found, remedies=ordered(made), remedies_note=earlier.remedies_note, need=need or found.need)


def without_need(found: Explanation, why: str) -> Explanation:
    """``found`` where the need of the whole run could not be found.

    Args:
        why: in a sentence.
    """
    return found.with_remedies(found.remedies, f"{found.remedies_note} {why}".strip())


def is_bound(remedy: Remedy) -> bool:
    """Whether a remedy says of a capacity only that less would not have done."""
    return remedy.change.startswith(AT_LEAST)


def _is_capacity(remedy: Remedy) -> bool:
    """Whether a remedy is a larger card."""
    return _CAPACITY.match(remedy.change) is not None


def need_text(need: Need) -> str:
    """What the need was found by, in a sentence."""
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
    text = f"{needed(need.pytorch_bytes)} for PyTorch, {needed(need.capacity_bytes)} of the card with its context"
    if not need.is_whole:
        text += f", for {_steps(need)}"
    if card is not None:
        text += f": a card with {card // GIB} GiB"
    fits = None
    if need.is_whole:
        fits = True
    peak = min(need.peak_reserved_bytes, need.pytorch_bytes)
    return Remedy(text, predicted_peak_bytes=peak, fits=fits, verified_by=need.found_by)
