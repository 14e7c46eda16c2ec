"""A run's fit on many cards, from as few dry runs as say it: one a generation, replayed on each of its cards.

What a run asks for depends on the card by its generation and, for scratch, by its multiprocessors. So each card is
answered first by the run as it was followed on one of its generation; where that leaves the verdict open, the run is
followed on the card itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpudash.memory.allocator.trace import GRADIENTS, INPUTS, OPTIMIZER_STATE, WEIGHTS, Trace
from gpudash.memory.predicting.estimate import CardEstimate, CardRequest, Target, judge_card
from gpudash.memory.predicting.fit import Peaks, minimum_room, peaks, reads_its_share
from gpudash.workloads.predicting.device_fit import Sized

BORROWED_RATIO = 0.25
"""How far the peaks of a run lie apart on cards of one generation at most: 766 to 960 MiB were found, for a training in
halves on a T4 and a V100, and a fifth less apart on later ones."""

EVERYWHERE = (WEIGHTS, GRADIENTS, OPTIMIZER_STATE, INPUTS)
"""Of what a run holds of a card as much on all of them: activations depend on the kernels that a card has, and so do
temporaries and workspace."""

ReportCards = Callable[[Sequence[CardEstimate]], object]
"""Is given the answers of all cards, each time with more than before."""


@dataclass
class CardsQuestion:
    """The cards about which a run is asked beside its own.

    Attributes:
        cards: which.
        report: called with the answers, before the next estimate is yielded.
    """

    cards: Sequence[CardRequest] = ()
    report: ReportCards = field(default=lambda _answers: None)


def cards_question(query: Mapping[str, Any], extras: dict[str, Any]) -> CardsQuestion:
    """The cards that a process is asked about in ``query``; the answers go into ``extras``."""
    requested = [CardRequest(str(card["key"]), Target.from_json(card["target"])) for card in query.get("cards", ())]

    def report(answers: Sequence[CardEstimate]) -> None:
        extras["cards"] = [asdict(answer) for answer in answers]

    return CardsQuestion(requested, report)


class CardFits:
    """The answers of many cards on their way.

    Args:
        question: which cards.
        own: where the run is to take place, on which it is followed anyway.
        follow: what the run asks of the allocator of a device.
        refusals: the errors with which it says that it cannot.
    """

    def __init__(
        self,
        question: CardsQuestion,
        own: Target,
        follow: Callable[[Target], Trace],
        refusals: tuple[type[Exception], ...],
    ) -> None:
        self._question = question
        self._follow = follow
        self._refusals = refusals
        self._found: dict[str, CardEstimate] = {}
        self._spacious: dict[tuple[int, str], Peaks] = {}
        self._least_rooms: dict[tuple[int, str], int] = {}
        self._own = own
        self._followed: dict[int, Target] = {}

    @property
    def requested(self) -> bool:
        """Whether there are cards that are asked about."""
        return bool(self._question.cards)

    def report_first(self) -> Iterator[None]:
        """Answer every card by its generation; goes on once, where there is any."""
        if not self._question.cards:
            return
        unchanging = self._unchanging_bytes()
        # One target of each generation stands for the others; the loop leaves the last, with the largest scratch.
        self._followed = {
            self._generation(card): card.target for card in self._by_size() if not _lacks(card.target, unchanging)
        }
        if self._own.device != "cpu":
            # The run is followed on its own device anyway: its generation costs nothing more.
            self._followed[self._own.architecture.generation] = self._own
        for card in self._question.cards:
            where = self._followed.get(self._generation(card), card.target)
            if not _lacks(card.target, unchanging):
                self._found[card.key] = self._judged(card, where)
                continue
            # It cannot fit, whatever its kernels take: that is no reason to follow the run once more.
            found = self._judged(card, self._own)
            self._found[card.key] = found if found.reason else replace(found, fits=False)
        self._report()
        yield

    def report_largest(
        self, requested: int, sizes: Mapping[int, Sized], tried: Callable[[int], Sized], limit: int
    ) -> None:
        """Add the largest batch of each card.

        What is spare at the batch in question tells how much larger it may become, by lines through the sizes that were
        followed. The ends of the lines are followed too: half the batch where a card is short, and what the lines tell
        of the card with most room, since the further they are gone on with the more they are off.

        Args:
            requested: the batch in question.
            sizes: what sizes need on the card in question.
            tried: what another size needs there.
            limit: the largest that may be asked for.
        """
        spares = {key: found.spare_bytes for key, found in self._found.items() if found.spare_bytes is not None}
        if requested not in sizes or not spares:
            return
        needs = {size: found.need for size, found in sizes.items()}
        # Where the batch in question is the smallest that was followed, a line downwards needs a second point.
        if requested > 1 and min(needs) == requested and min(spares.values()) < 0:
            needs[requested // 2] = tried(requested // 2).need
        if len(needs) < 2:
            return
        # Extrapolated first, and then followed: the further a line is gone on with, the more it is off.
        most = min(limit, _size_at(requested, needs, needs[requested] + max(spares.values())))
        if most > max(needs):
            needs[most] = tried(most).need
        for key, spare in spares.items():
            size = min(limit, max(0, _size_at(requested, needs, needs[requested] + spare)))
            # the lines are a little off; the verdict on the batch in question is not
            if spare < 0:
                size = min(size, requested - 1)
            else:
                size = max(size, requested)
            self._found[key] = replace(self._found[key], largest_batch_size=size, by_line=True)
        self._report()

    def report_open(self) -> Iterator[None]:
        """Follow the run on each card of which the verdict is open; goes on after each."""
        for card in self._question.cards:
            before = self._found.get(card.key)
            if before is None or not before.borrowed or before.fits is not None or before.reason:
                continue
            exact = self._judged(card, card.target)
            self._found[card.key] = replace(exact, largest_batch_size=before.largest_batch_size, by_line=before.by_line)
            self._report()
            yield

    def _judged(self, card: CardRequest, on: Target) -> CardEstimate:
        """The answer of a card by the run as it is followed ``on`` another, or on itself."""
        target = card.target
        # Another design than the one it was followed on: its peaks may differ by `BORROWED_RATIO`.
        borrowed = target.device != "cpu" and on.architecture != target.architecture
        if borrowed:
            target = replace(target, margin_ratio=max(target.margin_ratio, BORROWED_RATIO))
        try:
            trace = self._follow(on)
            spacious = self._with_room(trace, target)
            least_room = None
            if spacious is not None and not reads_its_share(target.settings):
                least_room = functools.partial(self._least_room, trace, target, spacious)
            found = judge_card(trace, replace(card, target=target), spacious, least_room)
        except self._refusals as error:
            return CardEstimate(device=target.device, key=card.key, reason=str(error))
        return replace(found, borrowed=borrowed)

    def _with_room(self, trace: Trace, target: Target) -> Peaks | None:
        """What a trace takes with room to spare, which is the same of every card."""
        if target.device == "cpu":
            return None
        # By identity: one trace serves all cards of a generation, and lives as long as this object does.
        key = id(trace), repr(target.settings)
        if key not in self._spacious:
            self._spacious[key] = peaks(trace, target.settings)
        return self._spacious[key]

    def _unchanging_bytes(self) -> int | None:
        """What the run holds of every card at its peak: all but what depends on a card's kernels."""
        if self._own.device == "cpu":
            return None
        try:
            return self._follow(self._own).most_held(EVERYWHERE)
        except self._refusals:
            return None

    def _least_room(self, trace: Trace, target: Target, spacious: Peaks) -> int:
        """The fewest bytes with which a trace passes: a search of many replays, and the same of every card."""
        key = id(trace), repr(target.settings)
        if key not in self._least_rooms:
            self._least_rooms[key] = minimum_room(trace, spacious.allocated, spacious.reserved, target.settings)
        return self._least_rooms[key]

    def _by_size(self) -> list[CardRequest]:
        """The GPUs, the one with most multiprocessors last: its scratch is the largest, so that the others' is less."""
        gpus = [card for card in self._question.cards if card.target.device != "cpu"]
        return sorted(gpus, key=lambda card: card.target.architecture.multiprocessors)

    def _generation(self, card: CardRequest) -> int:
        return card.target.architecture.generation

    def _report(self) -> None:
        self._question.report([self._found[card.key] for card in self._question.cards])


def _lacks(target: Target, unchanging: int | None) -> bool:
    """Whether a GPU has no room for what the run holds of every card."""
    if unchanging is None or target.device == "cpu" or target.room_bytes is None:
        return False
    return target.room_bytes < unchanging


# Between the largest size that fits and the smallest that does not, where both are known.
def _size_at(requested: int, needs: Mapping[int, int], room: int) -> int:
    """The size that needs ``room`` bytes, on the line through the sizes on either side of it; beyond all of them on the
    one through the last and the batch in question, since two that are near to each other say little of the rest.
    """
    fitting = [size for size in needs if needs[size] <= room]
    beyond = [size for size in needs if needs[size] > room]
    if fitting and beyond:
        low = max(fitting)
        high = min(beyond)
    elif fitting:
        high = max(fitting)
        if requested != high:
            low = requested
        else:
            low = min(needs)
    else:
        low = min(beyond)
        if requested != low:
            high = requested
        else:
            high = max(needs)
    slope = (needs[high] - needs[low]) / ((high - low) or 1)
    if slope <= 0:
        return low
    return int(low + (room - needs[low]) / slope)
