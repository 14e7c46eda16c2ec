"""Reruns a program that ran out of memory without numbers, on a card that does not exist, to find its need.

It is predicted as by ``gpudash estimate -- COMMAND``, in the background: nothing it writes is kept, and it has no
network, no output, and the lowest priority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudash.memory.explaining.whole_need import NUMBERLESS, CardRequests, need_of
from gpudash.memory.predicting.estimate import Target
from gpudash.session.predicting.attempt import Attempt, FollowedRun, Launch, NotFollowed
from gpudash.session.predicting.program import check_options
from gpudash.session.watching.need.failed_run import (
    LEAST_S,
    LEFT,
    MOST_TIMES,
    REQUESTED_S,
    STEADY_STEPS,
    WRITES_AGAIN,
    FailedRun,
    NeedUnknownError,
    ProgramRerun,
    RemedyFailsError,
    check_own_cards,
    unknown,
)
from gpudash.session.watching.request import WatchRequest
from gpudash.system import sandbox
from gpudash.telemetry.explanation import Explanation, Need, Remedy

LONGEST_S = 300.0
"""Most processor time of a search that the user did not ask for, however long the run took to fail."""

WHOLE_SHARE = 0.5
"""Part of its time in which the program may end by itself; after that its data loaders are stopped early."""

FEWEST_STEPS = 3


@dataclass(frozen=True)
class FullCard:
    """The card whose memory ran out.

    Attributes:
        target: the card, as an estimate's target.
        index: index by which the program knows it.
        count: number of the program's cards.
    """

    target: Target
    index: int
    count: int = 1


class NumberlessRun(ProgramRerun):
    """A rerun without numbers, on a card that does not exist.

    Args:
        request, environment, failed, requested, remedy: as in `ProgramRerun`; without gpudash's own variables.
        found: why its memory ran out.
        card: card whose memory ran out.

    Attributes:
        cards: requests to each card, after the run.
    """

    def __init__(
        self,
        request: WatchRequest,
        environment: Mapping[str, str],
        failed: FailedRun,
        found: Explanation,
        card: FullCard,
        *,
        requested: bool,
        remedy: Remedy | None = None,
    ) -> None:
        super().__init__(request, environment, failed, requested=requested, remedy=remedy)
        self._found = found
        self._card = card
        self._attempts: list[Attempt] = []
        self.cards: Sequence[CardRequests] = ()

    @property
    def limit_s(self) -> float:
        """Limit on its processor time, in seconds."""
        if self.is_requested:
            return REQUESTED_S
        # A rerun with numbers may follow.
        times = MOST_TIMES
        if self._found.simulated:
            times = MOST_TIMES / 2
        return max(LEAST_S, min(LONGEST_S, times * self._failed.seconds))

    @property
    def waited_s(self) -> float:
        """Seconds for which it has waited for a processor."""
        return sum(attempt.waited_s for attempt in self._attempts)

    def find(self) -> Need:
        """Run the program again, and determine its need.

        Raises:
            RemedyFailsError: if it runs out of memory, or fails, with the remedy.
            NeedUnknownError: why it found nothing.
        """
        remedy = self._remedy
        # The user agreed to a rerun of the program, not of an edited one: that needs the sandbox.
        may_write = self.is_requested and remedy is None
        if not may_write and not sandbox.can_hold_back():
            raise NeedUnknownError(WRITES_AGAIN)
        followed = self._followed(self._launch())
        if isinstance(followed, NotFollowed):
            if remedy is not None and followed.problem.kind == "raised":
                raise RemedyFailsError(remedy)
            raise NeedUnknownError(unknown(_why(followed, requested=self.is_requested)))
        # With a remedy, every card must be large enough; without one, only the failed card is compared.
        cards = self._cards(followed)
        self.cards = cards
        if remedy is not None and not all(card.fits(self._found) for card in cards):
            raise RemedyFailsError(remedy, self._need(followed, cards))
        # A rerun with different requests than the failed run took another path: its need would be another program's.
        if remedy is None and not any(
            card.index == self._card.index and card.agrees_with(self._found) for card in cards
        ):
            raise NeedUnknownError(unknown("run again without numbers, the program asks for other memory than it did"))
        return self._need(followed, cards)

    def _need(self, followed: FollowedRun, cards: Sequence[CardRequests]) -> Need:
        answers = followed.answers
        steps = max((int(card["trace"]["followed"]) for answer in answers for card in answer["cards"]), default=0)
        remark = next((str(answer["remark"]) for answer in answers if answer["remark"]), "")
        whole, seconds = all(answer["is_whole"] for answer in answers), self.seconds
        needs = (
            need_of(card, steps=steps, is_whole=whole, seconds=seconds, found_by=NUMBERLESS, remark=remark)
            for card in cards
        )
        return max(needs, key=lambda need: need.capacity_bytes)

    def _launch(self) -> Launch:
        limit_s = self.limit_s
        command, environment = self._changed()
        return Launch(
            command,
            [self._card.target] * self._card.count,
            # Past the failed step: optimizer state and gradients are complete only after some steps.
            steps=max(FEWEST_STEPS, self._failed.step + STEADY_STEPS),
            time_limit_s=limit_s,
            folder=self._request.folder,
            environment=environment,
            is_aside=True,
            edit="" if self._remedy is None else self._remedy.patch,
            whole_s=WHOLE_SHARE * limit_s,
        )

    def _followed(self, launch: Launch) -> FollowedRun | NotFollowed:
        """Raises: NeedUnknownError: if it cannot be started, or was ended."""
        try:
            check_options(launch.command)
            followed = self._attempted(launch, "unknown")
            # With numbers if the program branches on them: slower, and not needed if a simulated card can run the
            # whole program.
            if isinstance(followed, NotFollowed) and followed.because_of_numbers and self._asks_for_numbers:
                return self._attempted(launch, "computed")
        except KeyboardInterrupt:
            raise NeedUnknownError(LEFT) from None
        except (ValueError, OSError) as error:
            raise NeedUnknownError(unknown(str(error))) from None
        return followed

    def _attempted(self, launch: Launch, numbers: str) -> FollowedRun | NotFollowed:
        attempt = Attempt(launch, numbers)
        self._attempts.append(attempt)
        return attempt.run(self._left.is_set)

    @property
    def _asks_for_numbers(self) -> bool:
        """Whether to rerun a program that branches on numbers with them: for a simulated card there is another way."""
        return self.is_requested and not self._found.simulated

    def _cards(self, followed: FollowedRun) -> Sequence[CardRequests]:
        """Raises: NeedUnknownError: if its requests are unknown."""
        others = self._found.part_bytes("process", "unattributed")
        context = self._found.part_bytes("context")
        cards = []
        try:
            for answer in followed.answers:
                for card in answer["cards"]:
                    # Other processes' memory is known only for the card that was full.
                    held = others if int(card["index"]) == self._card.index else 0
                    allocator = str(answer["allocator"])
                    cards.append(CardRequests.of_answer(card, allocator, context_bytes=context, others_bytes=held))
        except (ValueError, KeyError, TypeError) as error:
            raise NeedUnknownError(unknown(f"what it asked for could not be read ({error})")) from None
        check_own_cards(cards)
        return cards


def _why(failure: NotFollowed, *, requested: bool) -> str:
    """Why the program was not followed to its peak, in words after a colon."""
    why = f"run again without numbers: {failure.problem.message}"
    if requested or not failure.because_of_numbers:
        return why
    return f"{why.rstrip('.')}; --find-need runs it with numbers"
