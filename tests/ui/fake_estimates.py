"""Predictions made by hand, in place of those of the dry run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpudash.devices.names import SimulatedCard, size_of
from gpudash.drawing.ghost import Ghost
from gpudash.memory.predicting.estimate import CardEstimate, Estimate, Target
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.session import Answer
from gpudash.session.predicting.estimator import Problem
from gpudash.specs import Spec
from gpudash.speed.work import StepTime
from gpudash.units import GIB


class FakeEstimates:
    """Predictions made by hand.

    Attributes:
        free_bytes: of every device.
        answer: what has been answered to the newest question.
        questions: spec and device of each, in order.
        cards: about which the newest question asks beside its device.
    """

    def __init__(self) -> None:
        self.free_bytes = 8 * GIB
        self.answer: Answer | None = None
        self._call: Callable[[], object] = lambda: None
        self.questions: list[tuple[Spec, str]] = []
        self.refusal: str | None = None
        self.cards: Sequence[SimulatedCard] | None = None

    def target(self, device: str) -> Target:
        if self.refusal is not None:
            raise ValueError(self.refusal)
        return Target(device, 8 * GIB, self.free_bytes)

    def empty_target(self, card: SimulatedCard) -> Target:
        return Target("sim:0", size_of(card), size_of(card))

    def ask(
        self, spec: Spec, device: str, *, timeline: bool = False, cards: Sequence[SimulatedCard] | None = None
    ) -> int:
        self.questions.append((spec, device))
        self.cards = cards
        self.answer = None
        return len(self.questions)

    def leave(self) -> None:
        """What has been answered stays."""

    def on_answer(self, call: Callable[[], object]) -> None:
        self._call = call

    def newest(self) -> Answer | None:
        return self.answer

    def report(
        self,
        estimate: Estimate,
        *,
        final: bool = True,
        ghost: Ghost | None = None,
        remedies: Mapping[int, Ghost] | None = None,
        cards: Sequence[CardEstimate] = (),
        times: Mapping[str, StepTime] | None = None,
    ) -> None:
        """Answer the newest question."""
        known = {card.key: card for card in cards}
        number = len(self.questions)
        self.answer = Answer(number, estimate, None, final, ghost, remedies or {}, known, times or {})
        self._call()

    def report_servers(self, servers: Sequence[ServerOnCard]) -> None:
        """Answer a question about a server."""
        self.answer = Answer(len(self.questions), final=True, servers={server.key: server for server in servers})
        self._call()

    def fail(self, message: str, remedy: str = "") -> None:
        """Answer that nothing can be predicted."""
        self.answer = Answer(len(self.questions), None, Problem("raised", message, remedy), True)
        self._call()
