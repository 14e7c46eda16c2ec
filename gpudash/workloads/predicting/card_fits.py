"""Whether a run fits on each of many cards, with few dry runs: one per generation, replayed on each of its cards.

A run's requests depend on the card's generation and, for workspaces, on its multiprocessors. So the first answer for
each card comes from a dry run on a card of its generation; if that does not decide, the run is followed on the card
itself.
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
"""By how much a run's peaks differ between cards of one generation at most: 766 and 960 MiB were found for training in
half precision on a T4 and a V100, and a fifth less on later ones."""

EVERYWHERE = (WEIGHTS, GRADIENTS, OPTIMIZER_STATE, INPUTS)
"""Categories that take the same on all cards. Activations, temporaries and workspaces depend on the card's kernels."""

ReportCards = Callable[[Sequence[CardEstimate]], object]
"""Called with the answers for all cards, each time with more than before."""


@dataclass
class CardsQuestion:
    """The cards for which a run is judged in addition to its own.

    Attributes:
        cards: the cards.
        report: called with the answers, before the next estimate is yielded.
    """

    cards: Sequence[CardRequest] = ()
    report: ReportCards = field(default=lambda _answers: None)


def cards_question(query: Mapping[str, Any], extras: dict[str, Any]) -> CardsQuestion:
    """The cards that ``query`` lists; the answers go into ``extras``."""
    requested = [CardRequest(str(card["key"]), Target.from_json(card["target"])) for card in query.get("cards", ())]

    def report(answers: Sequence[CardEstimate]) -> None:
        extras["cards"] = list(map(asdict, answers))

    return CardsQuestion(requested, report)


class CardFits:
    """The answers for many cards, as they become known.

    Args:
        question: which cards.
        own: the run's own device, on which it is followed anyway.
        follow: returns the run's requests to the allocator of a device.
        refusals: the exceptions that ``follow`` raises if it cannot.
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
        """Whether there are cards to judge."""
        return bool(self._question.cards)

    def report_first(self) -> Iterator[None]:
        """Answer for every card by its generation; yields once if there is any card."""
        if not self._question.cards:
            return
        unchanging = self._unchanging_bytes()
        # One target represents its generation; the loop keeps the last, which has the largest workspaces.
        self._followed = {
            self._generation(card): card.target for card in self._by_size() if not _lacks(card.target, unchanging)
        }
        if self._own.device != "cpu":
            # The run is followed on its own device anyway, so its generation costs no extra dry run.
            self._followed[self._own.architecture.generation] = self._own
        for card in self._question.cards:
            where = self._followed.get(self._generation(card), card.target)
            if not _lacks(card.target, unchanging):
                self._found[card.key] = self._judged(card, where)
                continue
            # It cannot fit, whatever its kernels allocate, so following the run again is not worth it.
            found = self._judged(card, self._own)
            self._found[card.key] = found if found.reason else replace(found, fits=False)
        self._report()
        yield

    def report_largest(
        self, requested: int, sizes: Mapping[int, Sized], tried: Callable[[int], Sized], limit: int
    ) -> None:
        """Add the largest batch for each card.

        The memory left at the requested batch shows how much larger it may become, along lines through the sizes that
        were followed. The ends of the lines are followed too, since extrapolation gets less accurate with distance:
        half the batch if a card is short of memory, and the size that the lines give for the card with the most room.

        Args:
            requested: the requested batch.
            sizes: what sizes need on the requested card.
            tried: returns what another size needs there.
            limit: the largest allowed size.
        """
        spares = {key: found.spare_bytes for key, found in self._found.items() if found.spare_bytes is not None}
        if requested not in sizes or not spares:
            return
        needs = {size: found.need for size, found in sizes.items()}
        # If the requested batch is the smallest that was followed, a line downwards needs a second point.
        if requested > 1 and min(needs) == requested and min(spares.values()) < 0:
            needs[requested // 2] = tried(requested // 2).need
        if len(needs) < 2:
            return
        # Extrapolate first, then follow the result: lines get less accurate with distance.
        most = min(limit, _size_at(requested, needs, needs[requested] + max(spares.values())))
        if most > max(needs):
            needs[most] = tried(most).need
        for key, spare in spares.items():
            size = min(limit, max(0, _size_at(requested, needs, needs[requested] + spare)))
            # the lines are slightly off; the verdict on the requested batch is not
            if spare < 0:
                size = min(size, requested - 1)
            else:
                size = max(size, requested)
            self._found[key] = replace(
                self._found[key], largest_batch_size=size, largest_batch_capped=size == limit, by_line=True
            )
        self._report()

    def report_open(self) -> Iterator[None]:
        """Follow the run on each undecided card; yields after each."""
        for card in self._question.cards:
            before = self._found.get(card.key)
            if before is None or not before.borrowed or before.fits is not None or before.reason:
                continue
            exact = self._judged(card, card.target)
            self._found[card.key] = exact.with_largest_of(before)
            self._report()
            yield

    def _judged(self, card: CardRequest, on: Target) -> CardEstimate:
        """The answer for a card from the run as followed ``on`` another card, or on itself."""
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
        """The peaks of a trace with ample memory, which are the same for every card."""
        if target.device == "cpu":
            return None
        # By identity: one trace serves all cards of a generation, and lives as long as this object.
        key = id(trace), repr(target.settings)
        if key not in self._spacious:
            self._spacious[key] = peaks(trace, target.settings)
        return self._spacious[key]

    def _unchanging_bytes(self) -> int | None:
        """What the run needs at its peak on every card, without what depends on the card's kernels."""
        if self._own.device == "cpu":
            return None
        try:
            return self._follow(self._own).most_held(EVERYWHERE)
        except self._refusals:
            return None

    def _least_room(self, trace: Trace, target: Target, spacious: Peaks) -> int:
        """The smallest capacity in bytes with which a trace passes: found by many replays, the same for every card."""
        key = id(trace), repr(target.settings)
        if key not in self._least_rooms:
            self._least_rooms[key] = minimum_room(trace, spacious.allocated, spacious.reserved, target.settings)
        return self._least_rooms[key]

    def _by_size(self) -> list[CardRequest]:
        """The GPUs, the one with the most multiprocessors, and so the largest workspaces, last."""
        gpus = [card for card in self._question.cards if card.target.device != "cpu"]
        return sorted(gpus, key=lambda card: card.target.architecture.multiprocessors)

    def _generation(self, card: CardRequest) -> int:
        return card.target.architecture.generation

    def _report(self) -> None:
        self._question.report([self._found[card.key] for card in self._question.cards])


def _lacks(target: Target, unchanging: int | None) -> bool:
    """Whether a GPU has too little room for what the run needs on every card."""
    if unchanging is None or target.device == "cpu" or target.room_bytes is None:
        return False
    return target.room_bytes < unchanging


# Between the largest size that fits and the smallest that does not, if both are known.
def _size_at(requested: int, needs: Mapping[int, int], room: int) -> int:
    """The size that needs ``room`` bytes, on the line through the sizes on either side of it. Beyond all sizes, the
    line goes through the last and the requested one, since two close sizes predict little about others.
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
