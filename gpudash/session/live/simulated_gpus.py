"""The simulated GPUs of a session: those that were asked for, or one where there is no other GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpudash.devices.names import OFFERED_BYTES, Gpu, SimulatedCard, Simulation, simulated_gpu, size_of
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import allocator_text, variable
from gpudash.simulator.device.simulated_gpu import OTHER_PROCESS, SimulatedGpu, card_of
from gpudash.sources.simulated_gpus import MirroredCard, ShownCard

HOST_NAME = "gpudash-run"
"""What a run's own process is called in lists of processes."""


class SimulatedGpus:
    """The cards behind ``sim:0``, ``sim:1`` and so on, and what they are listed as. Any thread may ask.

    Args:
        wanted: what was asked for.
        watch: called once with the cards as they are shown, as soon as there are any, so that they are read.

    Attributes:
        cards: the cards by index; none before `start` or `offer` made them.
        gpus: the cards as GPUs.
        problem: why no run can use them, in one sentence; ``None`` when one can.
    """

    def __init__(self, wanted: Simulation, watch: Callable[[Sequence[ShownCard]], None] | None = None) -> None:
        self.cards: tuple[SimulatedGpu, ...] = ()
        self.gpus: tuple[Gpu, ...] = ()
        self._settings, self.problem = allocator_settings()
        self._wanted = wanted
        self._watch = watch
        self._made: tuple[SimulatedCard, ...] = ()
        self._shown: tuple[ShownCard, ...] = ()
        self._hosted: dict[int, MirroredCard] = {}

    def start(self) -> None:
        """Make the cards that were asked for."""
        if self._wanted.cards:
            self._make(self._wanted.cards)

    def offer(self) -> None:
        """There is no GPU: make one card, unless there is one already, or none may be offered."""
        if not self.cards and self._wanted.offered:
            self._make((OFFERED_BYTES,))

    def provide(self, wanted: Sequence[SimulatedCard]) -> None:
        """See to it that there are as many cards as a program that is watched asks for.

        Raises:
            ValueError: one sentence, when there are some already, but fewer.
        """
        if not self.cards:
            self._make(tuple(wanted))
        if len(self.cards) < len(wanted):
            raise ValueError(
                f"This session simulates {len(self.cards)} GPUs, not {len(wanted)}; begin it with --simulate for each."
            )

    @property
    def others_bytes(self) -> int:
        """What other processes hold of ``sim:0``, as this session simulates them."""
        return self._wanted.others

    def mirror(self, index: int, figures: MirroredCard | None) -> None:
        """Show a card whose allocator lives in another process in place of ``sim:index``; with ``None`` no longer.

        Raises:
            ValueError: one sentence, when there is no such card.
        """
        shown = self._shown
        if not 0 <= index < len(shown):
            raise ValueError(f"There is no sim:{index} that could show another process's; --simulate 8GiB adds one.")
        shown[index].mirror = figures
        capacity = (figures or shown[index].own).capacity
        if self.gpus[index].total_bytes != capacity:  # a watched program's card may be of another size
            made = self._made[index]
            card = made if size_of(made) == capacity else capacity
            self.gpus = (*self.gpus[:index], simulated_gpu(index, card), *self.gpus[index + 1 :])

    def hosted(self, pid: int, cards: Sequence[Mapping[str, Any]]) -> None:
        """Show the cards of a run's own process, by what it tells of them; this one's again when it tells of none.

        Called by the worker's thread.
        """
        for index in self._hosted.keys() - {card["index"] for card in cards}:
            self.mirror(index, None)
            del self._hosted[index]
        for card in cards:
            index = card["index"]
            mirror = self._hosted.get(index)
            if mirror is None or mirror.pid != pid:
                mirror = MirroredCard(index, card["capacity_bytes"], time.monotonic, pid, HOST_NAME)
            mirror.put(
                reserved_bytes=card["reserved_bytes"],
                context_bytes=card["context_bytes"],
                others_bytes={int(number): held for number, held in card["others_bytes"].items()},
                busy_s=card["busy_s"],
            )
            self._hosted[index] = mirror
            self.mirror(index, mirror)

    def _make(self, wanted: Sequence[SimulatedCard]) -> None:
        others = {OTHER_PROCESS: self._wanted.others} if self._wanted.others else {}
        cards = tuple(
            card_of(index, card, others=None if index else others, settings=self._settings)
            for index, card in enumerate(wanted)
        )
        self.gpus = tuple(simulated_gpu(index, card) for index, card in enumerate(wanted))
        self._made = tuple(wanted)
        self._shown = tuple(ShownCard(card) for card in cards)
        self.cards = cards
        if self._watch is not None:
            self._watch(self._shown)


def allocator_settings() -> tuple[AllocatorSettings, str | None]:
    """The settings, and in one sentence why they are torch's defaults instead of those of the environment."""
    text = allocator_text()
    try:
        return AllocatorSettings.parse(text), None
    except ValueError as error:
        return AllocatorSettings(), f"{variable()} is {text!r}, which torch refuses: {str(error).rstrip('.')}."
