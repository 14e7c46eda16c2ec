"""The simulated GPUs of a session: those that were asked for, or one where there is no other GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpudash.devices import OFFERED_BYTES, Gpu, Simulation, simulated_gpu
from gpudash.session.allocator_settings import allocator_settings
from gpudash.simulator.card import OTHER_PROCESS, Card


class SimulatedGpus:
    """The cards behind ``sim:0``, ``sim:1`` and so on, and what they are listed as. Any thread may ask.

    Args:
        wanted: what was asked for.
        watch: called once with the cards, as soon as there are any, so that they are read.

    Attributes:
        cards: the cards by index; none before `start` or `offer` made them.
        gpus: the cards as GPUs.
        problem: why no run can use them, in one sentence; ``None`` when one can.
    """

    def __init__(self, wanted: Simulation, watch: Callable[[Sequence[Card]], None] | None = None) -> None:
        self.cards: tuple[Card, ...] = ()
        self.gpus: tuple[Gpu, ...] = ()
        self._settings, self.problem = allocator_settings()
        self._wanted = wanted
        self._watch = watch

    def start(self) -> None:
        """Make the cards that were asked for."""
        if self._wanted.sizes:
            self._make(self._wanted.sizes)

    def offer(self) -> None:
        """There is no GPU: make one card, unless there is one already."""
        if not self.cards:
            self._make((OFFERED_BYTES,))

    def _make(self, sizes: Sequence[int]) -> None:
        others = {OTHER_PROCESS: self._wanted.others} if self._wanted.others else {}
        cards = tuple(
            Card(index, size, others=others if index == 0 else None, settings=self._settings)
            for index, size in enumerate(sizes)
        )
        self.gpus = tuple(simulated_gpu(card.index, card.capacity) for card in cards)
        self.cards = cards
        if self._watch is not None:
            self._watch(cards)
