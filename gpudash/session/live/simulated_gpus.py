"""The simulated GPUs of a session: its own, which were asked for or offered where there is no GPU, and programs'."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpudash.devices.names import (
    MOST_SIMULATED,
    OFFERED_BYTES,
    Device,
    Gpu,
    SimulatedCard,
    Simulation,
    simulated_gpu,
    simulated_product,
    size_of,
)
from gpudash.devices.simulated_cards import program_card_name
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import allocator_text, variable
from gpudash.simulator.device.simulated_gpu import OTHER_PROCESS, SimulatedGpu, card_of
from gpudash.sources.simulated_gpus import MirroredCard, ShownCard

HOST_NAME = "gpudash-run"
"""What a run's own process is called in lists of processes."""


OF_A_PROGRAM = "It is the card of a program that is watched; nothing else can use it."


class SimulatedGpus:
    """The simulated cards of a session: its own, behind ``sim:0``, ``sim:1`` and so on, and those of programs that are
    watched. Any thread may ask.

    A program's card is the session's own where both are the same (`simulated_uuid`), else another card with a name, a
    memory and a history of its own. Those of the newest program are listed.

    Args:
        wanted: what was asked for.
        watch: called with the cards that are listed, whenever they become others, so that they are read.

    Attributes:
        cards: the session's own by index; none before `start` or `offer` made them.
        gpus: the cards that are listed, as GPUs.
        settings: of the cards' allocators.
        problem: why no run can use the session's own, in one sentence; ``None`` when one can.
    """

    def __init__(self, wanted: Simulation, watch: Callable[[Sequence[ShownCard]], None] | None = None) -> None:
        self.cards: tuple[SimulatedGpu, ...] = ()
        self.gpus: tuple[Gpu, ...] = ()
        self.settings, self.problem = allocator_settings()
        self._wanted = wanted
        self._watch = watch
        self._own: tuple[ShownCard, ...] = ()
        self._of_programs: tuple[ShownCard, ...] = ()
        self._hosted: dict[int, MirroredCard] = {}
        self._given = 0
        self._ran: set[int] = set()

    def start(self) -> None:
        """Make the cards that were asked for."""
        if self._wanted.cards:
            self._make(self._wanted.cards)

    def offer(self) -> None:
        """There is no GPU: make one card, unless there is one already, or none may be offered."""
        if not self.cards and self._wanted.offered:
            self._make((OFFERED_BYTES,))

    def simulate(self, card: SimulatedCard) -> str:
        """The name of a card of this kind, on which runs can take place; made unless there is one.

        One that was made so before takes the place of the last on which nothing has run, so that looking at many leaves
        one behind.

        Raises:
            ValueError: one sentence, when there are as many as can be.
        """
        size = size_of(card)
        for one in self._own:
            if one.own is not None and (one.own.product, one.capacity) == (simulated_product(card), size):
                return one.name
        kept = self.cards
        if len(kept) > self._given and not self._has_run(kept[-1]):
            kept = kept[:-1]
        if len(kept) >= MOST_SIMULATED:
            raise ValueError(f"There are {len(kept)} simulated GPUs, as many as there can be in one session.")
        made = card_of(len(kept), card, settings=self.settings)
        self.cards = (*kept, made)
        self._own = (*self._own[: len(kept)], ShownCard.of(made))
        self._list()
        return self._own[-1].name

    @property
    def given(self) -> tuple[SimulatedCard, ...]:
        """The cards that were asked for when the session was made."""
        return self._wanted.cards

    @property
    def chosen(self) -> frozenset[str]:
        """UUIDs of the cards that `simulate` has made."""
        return frozenset(card.uuid for card in self._own[self._given :])

    @property
    def unused(self) -> frozenset[str]:
        """UUIDs of the cards that nobody asked for and nothing has run on: they are only offered."""
        if self._wanted.cards:
            return frozenset()
        given = zip(self._own[: self._given], self.cards, strict=False)
        return frozenset(shown.uuid for shown, card in given if not self._has_run(card))

    def _has_run(self, card: SimulatedGpu) -> bool:
        return card.opened or card.busy_s > 0 or card.index in self._ran

    def provide(self, wanted: Sequence[SimulatedCard]) -> list[str]:
        """List the cards of a program that is about to be watched.

        Args:
            wanted: what its ``sim:0``, ``sim:1`` and so on are.

        Returns:
            their names here, in that order.
        """
        cards = [self._card_of(index, card) for index, card in enumerate(wanted)]
        self._of_programs = tuple(card for card in cards if card not in self._own)
        self._list()
        return [card.name for card in cards]

    def provide_reported(self, index: int, capacity: int) -> str:
        """The name of the ``sim:index`` that a program tells of which it made itself; it is listed from now on."""
        card = self._card_of(index, capacity)
        if card not in (*self._own, *self._of_programs):
            self._of_programs = (*self._of_programs, card)
            self._list()
        return card.name

    @property
    def others_bytes(self) -> int:
        """What other processes hold of ``sim:0``, as this session simulates them."""
        return self._wanted.others

    def devices(self, problem: str | None) -> list[Device]:
        """The cards that are listed, as devices; no run of the session can use a program's.

        Args:
            problem: why none can use the session's own.
        """
        problems = [(card, problem) for card in self._own] + [(card, OF_A_PROGRAM) for card in self._of_programs]
        return [Device(card.name, card.gpu.product, card.capacity, card.uuid, why) for card, why in problems]

    def mirror(self, name: str, figures: MirroredCard | None) -> None:
        """Show a card whose allocator lives in another process as ``name``; with ``None`` no longer.

        One that is not listed any more is left alone: its program may tell of its end after the next one has begun.
        """
        for card in (*self._own, *self._of_programs):
            if card.name == name:
                card.mirror = figures

    def hosted(self, pid: int, cards: Sequence[Mapping[str, Any]]) -> None:
        """Show the cards of a run's own process, by what it tells of them; this one's again when it tells of none.

        Called by the worker's thread.

        Args:
            pid: of the process; a card whose figures say another ``pid`` belongs to that one, a rank of the run.
            cards: the figures of each, as `gpudash.workloads.running.sim_backend.card_figures` reads them.
        """
        for index in self._hosted.keys() - {card["index"] for card in cards}:
            self.mirror(f"sim:{index}", None)
            del self._hosted[index]
        for card in cards:
            index = card["index"]
            mirror, owner = self._hosted.get(index), card.get("pid", pid)
            if mirror is None or mirror.pid != owner:
                mirror = MirroredCard(index, card["capacity_bytes"], time.monotonic, owner, HOST_NAME)
            mirror.put(
                reserved_bytes=card["reserved_bytes"],
                context_bytes=card["context_bytes"],
                others_bytes={int(number): held for number, held in card["others_bytes"].items()},
                busy_s=card["busy_s"],
            )
            self._hosted[index] = mirror
            self._ran.add(index)
            self.mirror(f"sim:{index}", mirror)

    def _make(self, wanted: Sequence[SimulatedCard]) -> None:
        others = {}
        if self._wanted.others:
            others = {OTHER_PROCESS: self._wanted.others}
        self.cards = tuple(
            card_of(index, card, others=None if index else others, settings=self.settings)
            for index, card in enumerate(wanted)
        )
        self._own = tuple(map(ShownCard.of, self.cards))
        self._given = len(self.cards)
        self._list()

    def _card_of(self, index: int, card: SimulatedCard) -> ShownCard:
        """A program's ``sim:index``: one that is known, or a new one."""
        gpu = simulated_gpu(index, card)
        known = next((one for one in (*self._own, *self._of_programs) if one.uuid == gpu.uuid), None)
        if known is not None:
            return known
        has_own = self._wanted.offered or index < max(len(self._wanted.cards), len(self._own))
        return ShownCard(program_card_name(index, card) if has_own else f"sim:{index}", gpu)

    def _list(self) -> None:
        listed = (*self._own, *self._of_programs)
        self.gpus = tuple(card.gpu for card in listed)
        if self._watch is not None:
            self._watch(listed)


def allocator_settings() -> tuple[AllocatorSettings, str | None]:
    """The settings, and in one sentence why they are torch's defaults instead of those of the environment."""
    text = allocator_text()
    try:
        return AllocatorSettings.parse(text), None
    except ValueError as error:
        return AllocatorSettings(), f"{variable()} is {text!r}, which torch refuses: {str(error).rstrip('.')}."
