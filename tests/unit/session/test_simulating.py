"""Simulated cards that are added while a session runs: each is a device of its own, on which runs can take place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpudash.devices.known_gpus import KNOWN_GPUS, find
from gpudash.devices.names import MOST_SIMULATED, OFFERED_BYTES, SimulatedCard, Simulation
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.sources.simulated_gpus import ShownCard
from gpudash.units import GIB


def known(name: str) -> SimulatedCard:
    found = find(name)
    assert found is not None
    return found


def test_a_card_that_is_added_is_a_device_of_its_own_beside_those_that_were_there() -> None:
    listed: list[Sequence[ShownCard]] = []
    gpus = SimulatedGpus(Simulation((8 * GIB,)), listed.append)
    gpus.start()
    assert gpus.simulate(known("rtx4060")) == "sim:1"
    assert [(card.name, card.uuid) for card in listed[-1]] == [("sim:0", "SIM-0-8GiB"), ("sim:1", "SIM-1-rtx4060")]
    assert [device.problem for device in gpus.devices(None)] == [None, None]
    assert gpus.chosen == {"SIM-1-rtx4060"}


def test_a_card_that_is_there_already_is_not_made_again() -> None:
    gpus = SimulatedGpus(Simulation((8 * GIB, known("h100"))))
    gpus.start()
    assert gpus.simulate(8 * GIB) == "sim:0" and gpus.simulate(known("h100")) == "sim:1"
    assert gpus.chosen == frozenset() and len(gpus.cards) == 2


def test_of_cards_that_were_only_looked_at_the_last_alone_stays() -> None:
    gpus = SimulatedGpus(Simulation((8 * GIB,)))
    gpus.start()
    for gpu in KNOWN_GPUS:
        assert gpus.simulate(gpu) == "sim:1"
    assert [gpu.uuid for gpu in gpus.gpus] == ["SIM-0-8GiB", f"SIM-1-{KNOWN_GPUS[-1].key}"]


def test_a_card_on_which_something_has_run_stays() -> None:
    gpus = SimulatedGpus(Simulation())
    gpus.offer()
    assert gpus.simulate(known("l4")) == "sim:1"
    gpus.cards[1].release(gpus.cards[1].allocate(2**20))
    assert gpus.simulate(known("l40s")) == "sim:2"
    assert gpus.simulate(known("l4")) == "sim:1"
    assert gpus.cards[0].capacity == OFFERED_BYTES


def test_where_there_is_a_real_gpu_the_first_card_is_the_one_that_is_asked_for() -> None:
    gpus = SimulatedGpus(Simulation())
    assert gpus.simulate(known("b200")) == "sim:0"


def test_more_cards_than_there_can_be_are_refused_in_a_sentence() -> None:
    gpus = SimulatedGpus(Simulation((GIB,) * MOST_SIMULATED))
    gpus.start()
    with pytest.raises(ValueError, match="There are 16 simulated GPUs, as many as there can be in one session"):
        gpus.simulate(known("h100"))


def test_a_card_that_was_only_offered_counts_as_unused_until_something_runs_on_it() -> None:
    gpus = SimulatedGpus(Simulation())
    gpus.offer()
    assert gpus.unused == {gpus.gpus[0].uuid}
    gpus.cards[0].open()
    assert not gpus.unused
    asked_for = SimulatedGpus(Simulation((8 * GIB,)))
    asked_for.start()
    assert not asked_for.unused, "its user wants to see it"


def test_a_program_s_card_has_another_name_than_one_that_was_chosen_where_none_is_offered() -> None:
    gpus = SimulatedGpus(Simulation(offered=False))
    assert gpus.simulate(8 * GIB) == "sim:0"
    assert gpus.provide([24 * GIB]) == ["sim:0@24GiB"]
