"""A run's fit on many cards: each is answered, and as few dry runs as say it are made."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpudash.devices.known_gpus import KNOWN_GPUS, KnownGpu, find
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import CardEstimate, CardRequest, Target, judge
from gpudash.units import GIB, MIB
from gpudash.workloads.predicting.card_fits import CardFits, CardsQuestion
from gpudash.workloads.predicting.device_fit import Sized

TWENTY = [gpu for gpu in KNOWN_GPUS if gpu.capability >= (8, 0)][:20]


class RefusedRunError(Exception):
    """The run cannot be followed there."""


def target(gpu: KnownGpu) -> Target:
    architecture = Architecture(gpu.capability, gpu.multiprocessors)
    return Target("sim:0", gpu.total_bytes, gpu.total_bytes, 300 * MIB, architecture=architecture)


def known(name: str) -> KnownGpu:
    found = find(name)
    assert found is not None
    return found


class Run:
    """A run that takes so much, and scratch by the multiprocessors; it counts how often it is followed."""

    def __init__(self, size: int, scratch: int = 0, category: str = "activations") -> None:
        self.size, self.scratch, self.category = size, scratch, category
        self.followed: list[Architecture] = []
        self._traces: dict[Architecture, Trace] = {}

    def on(self, where: Target) -> Trace:
        design = where.architecture
        if design.capability < (8, 0):
            raise RefusedRunError("It needs another card.")
        if design not in self._traces:
            self.followed.append(design)
            trace = self._traces[design] = Trace()
            trace.sizes.extend([self.size, max(1, self.scratch * design.multiprocessors)])
            trace.events.extend([1, 2, -2, -1])
            trace.categories.extend([self.category, "temporary"])
        return self._traces[design]

    def ask(self, cards: Sequence[KnownGpu], own: KnownGpu, *, whole: bool = True) -> dict[str, CardEstimate]:
        report: list[Sequence[CardEstimate]] = []
        question = CardsQuestion([CardRequest(gpu.key, target(gpu)) for gpu in cards], report.append)
        fits = CardFits(question, target(own), self.on, (RefusedRunError,))
        self.on(target(own))
        list(fits.report_first())
        if whole:
            list(fits.report_open())
        return {card.key: card for card in report[-1]}


def test_twenty_cards_take_one_dry_run_more_than_one_where_they_are_of_two_generations() -> None:
    run = Run(2 * GIB)
    found = run.ask(TWENTY, known("a100-80gb"))
    assert len(found) == 20 and all(card.fits is True for card in found.values())
    assert len(run.followed) == 2


def test_each_card_has_what_is_spare_of_its_own_memory() -> None:
    found = Run(10 * GIB).ask([known("rtx4060"), known("h100")], known("a100-80gb"))
    assert found["rtx4060"].fits is False and found["rtx4060"].spare_bytes is not None
    assert found["rtx4060"].spare_bytes < 0
    whole = judge(Run(10 * GIB).on(target(known("h100"))), target(known("h100")), "training")
    assert found["h100"].spare_bytes == whole.spare_bytes and found["h100"].fits is whole.fits


def test_a_card_whose_verdict_another_cards_scratch_leaves_open_is_followed_itself() -> None:
    near = known("rtx4060")
    run = Run(near.total_bytes - 500 * MIB, scratch=2 * MIB)
    first = run.ask([near, known("l40s")], known("a100-80gb"), whole=False)
    assert first["rtx4060"].fits is None and first["rtx4060"].borrowed
    assert first["l40s"].fits is True
    found = run.ask([near, known("l40s")], known("a100-80gb"))
    assert found["rtx4060"].fits is True and not found["rtx4060"].borrowed
    assert found["l40s"].borrowed, "nothing is open there"


def test_a_generation_on_which_a_run_cannot_be_followed_says_why_and_the_others_are_answered() -> None:
    found = Run(GIB).ask([known("t4"), known("l4")], known("a100-80gb"))
    assert found["t4"].reason == "It needs another card." and found["t4"].fits is None
    assert found["l4"].fits is True and not found["l4"].reason


def test_the_computers_memory_is_answered_beside_the_cards() -> None:
    report: list[Sequence[CardEstimate]] = []
    cpu = CardRequest("cpu", Target("cpu", 16 * GIB, 8 * GIB, margin_ratio=0.2))
    fits = CardFits(CardsQuestion([cpu], report.append), target(known("l4")), Run(GIB).on, (RefusedRunError,))
    list(fits.report_first())
    (found,) = report[-1]
    assert found.fits is True and found.peak_reserved_bytes is None


def test_nothing_is_told_where_no_card_is_asked_about() -> None:
    report: list[Sequence[CardEstimate]] = []
    fits = CardFits(CardsQuestion((), report.append), target(known("l4")), Run(GIB).on, (RefusedRunError,))
    assert list(fits.report_first()) == [] and list(fits.report_open()) == [] and report == []


@pytest.mark.parametrize(("name", "largest"), [("rtx4060", 14), ("l4", 43), ("a100-80gb", 158)])
def test_the_largest_batch_of_each_card_is_told_by_what_is_spare(name: str, largest: int) -> None:
    report: list[Sequence[CardEstimate]] = []
    own = target(known("l4"))
    question = CardsQuestion([CardRequest(name, target(known(name)))], report.append)
    fits = CardFits(question, own, Run(8 * GIB).on, (RefusedRunError,))
    list(fits.report_first())

    def sized(size: int) -> Sized:
        return Sized(size, size * GIB // 2, fits=True, releases=False)

    fits.report_largest(16, {16: sized(16), 32: sized(32)}, sized, 1000)
    (found,) = report[-1]
    assert found.largest_batch_size == largest and found.by_line
    assert (found.largest_batch_size < 16) is ((found.spare_bytes or 0) < 0)


def test_a_run_whose_weights_are_too_many_for_every_card_is_followed_on_its_own_alone() -> None:
    run = Run(600 * GIB, category="weights")
    found = run.ask(KNOWN_GPUS[:30], known("h100"))
    assert len(found) == 30 and all(card.fits is False for card in found.values())
    assert [design.capability for design in run.followed] == [(9, 0)]
    whole = judge(run.on(target(known("h100"))), target(known("h100")), "training")
    assert found["h100"].spare_bytes == whole.spare_bytes


def test_a_card_that_weights_leave_room_for_is_followed_by_its_generation_though_smaller_ones_are_not() -> None:
    run = Run(30 * GIB, category="weights")
    found = run.ask([known("rtx4090"), known("t4"), known("a100-80gb")], known("h100"))
    assert [design.capability for design in run.followed] == [(9, 0), (8, 0)]
    assert [found[name].fits for name in ("rtx4090", "t4", "a100-80gb")] == [False, False, True]


def test_the_most_that_some_categories_hold_at_once_is_counted_without_the_others() -> None:
    trace = Trace()
    trace.sizes.extend([5, 7, 100, 4])
    trace.categories.extend(["weights", "gradients", "activations", "weights"])
    trace.events.extend([1, 2, 3, -2, 4])
    assert trace.most_held(("weights", "gradients")) == 12 and trace.most_held(()) == 0
