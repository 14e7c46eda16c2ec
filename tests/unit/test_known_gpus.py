"""GPUs that are simulated by their names."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.devices.known_gpus import KNOWN_GPUS, KnownGpu, find, nearest
from gpudash.devices.names import (
    LEAST_SIMULATED,
    SIMULATED,
    Simulation,
    parse_card,
    parse_simulated,
    read_card,
    shown_name,
    simulated_card,
    simulated_device,
    simulated_gpu,
    simulated_text,
    size_of,
    written,
)
from gpudash.memory.predicting.architecture import workspace_bytes
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES, card_of
from gpudash.units import GIB, MIB

KNOWN = st.sampled_from(KNOWN_GPUS)


def known(text: str) -> KnownGpu:
    found = find(text)
    assert found is not None
    return found


@given(KNOWN, st.sampled_from(["", " ", "-", "_"]), st.booleans())
def test_a_gpu_is_found_by_its_name_however_it_is_typed(gpu: KnownGpu, gap: str, upper: bool) -> None:
    for text in (gpu.key, gpu.name, gpu.product):
        typed = f" {text.replace('-', gap).replace(' ', gap)} "
        assert find(typed.upper() if upper else typed) is gpu


@given(KNOWN)
def test_every_name_means_one_gpu_and_its_figures_can_be(gpu: KnownGpu) -> None:
    assert [other for other in KNOWN_GPUS if find(other.key) is gpu or find(other.product) is gpu] == [gpu]
    assert 4 * GIB <= gpu.total_bytes <= 288 * GIB
    assert (6, 0) <= gpu.capability <= (12, 1)
    assert 16 <= gpu.multiprocessors <= 192
    assert gpu.source


def test_the_cards_that_people_ask_for_are_known() -> None:
    asked = (
        "rtx4090 rtx5090 rtx3090 rtx3060 a100-40gb a100-80gb h100 h200 b200 l4 l40s t4 v100-16gb v100-32gb a10 a6000"
    )
    for name in (*asked.split(), "gtx1080ti", "rtx4060-laptop"):
        assert known(name).key == name


def test_what_a_driver_reports_is_less_than_what_a_card_is_sold_with() -> None:
    assert [known(name).total_bytes // MIB for name in ("h100", "t4", "rtx4090")] == [81_089, 15_095, 24_072]
    assert [known(name).capability for name in ("h100", "t4", "rtx4090")] == [(9, 0), (7, 5), (8, 9)]
    assert workspace_bytes(None, known("h100").capability) > workspace_bytes(None, known("t4").capability)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8", "8 without a unit is a count of bytes; did you mean 8GiB?"),
        ("0.5", "0.5 without a unit is a count of bytes; did you mean 0.5GiB?"),
        ("470", "470 without a unit is a count of bytes; did you mean 470MiB?"),
        ("4090", "4090 without a unit is a count of bytes; did you mean 4090MiB, rtx4090 or rtx4090-laptop?"),
        ("a100", "There is no known GPU 'a100'; did you mean a100-80gb or a100-40gb, or a size such as 8GiB?"),
        (
            "rtx5091",
            "There is no known GPU 'rtx5091'; did you mean rtx5090, rtx5080 or rtx4090, or a size such as 8GiB?",
        ),
        ("big", "'big' is not a size; write for example 512MiB or 8GiB"),
        ("", "'' is not a size; write for example 512MiB or 8GiB"),
        ("-1GiB", "'-1GiB' is not a size; write for example 512MiB or 8GiB"),
    ],
)
def test_what_is_neither_a_size_nor_a_name_is_refused_with_what_may_be_meant(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse_card(text)


@given(st.text(max_size=20))
def test_any_text_is_a_card_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert size_of(parse_card(text)) >= 0
    assert len(nearest(text)) <= 3


def test_a_card_without_room_beside_its_context_is_refused() -> None:
    assert LEAST_SIMULATED == CONTEXT_BYTES + 2 * MIB
    assert parse_simulated("302MiB") == LEAST_SIMULATED
    for text in ("300MiB", "301MiB", "0", "64MiB"):
        with pytest.raises(ValueError, match="has no room for a tensor: the CUDA context takes about 300 MiB of it"):
            parse_simulated(text)
    assert parse_card("64MiB") == 64 * MIB  # of which a replay needs no context


@given(st.lists(st.one_of(KNOWN, st.integers(GIB, 100 * GIB)), max_size=4))
def test_sizes_and_names_can_be_mixed_and_kept(cards: list[int | KnownGpu]) -> None:
    simulation = Simulation(tuple(cards))
    assert simulation.sizes == tuple(size_of(card) for card in cards)
    assert [read_card(written(card)) for card in simulation.cards] == cards
    assert [read_card(str(written(card))) for card in simulation.cards] == cards, "as lists of runs keep it"
    devices = [simulated_device(simulated_gpu(index, card)) for index, card in enumerate(cards)]
    assert [simulated_card(device) for device in devices] == cards


@pytest.mark.parametrize("told", [None, True, 1.5, "unheard of", ["h100"]])
def test_what_no_card_was_written_as_is_read_as_none(told: object) -> None:
    assert read_card(told) is None


def test_a_simulated_gpu_is_called_simulated_with_the_name_of_what_it_simulates() -> None:
    gpu = simulated_gpu(0, known("h100"))
    assert (gpu.product, gpu.cuda_capability, gpu.multiprocessors) == ("Simulated H100 80GB", (9, 0), 132)
    assert shown_name("sim:0", gpu.product) == "sim:0 (SIMULATED H100 80GB)"
    assert shown_name("sim:0", simulated_gpu(0, GIB).product) == "sim:0 (SIMULATED)"
    assert shown_name("cuda:0", "NVIDIA H200") == "cuda:0"
    assert simulated_text(gpu.product) == f"{SIMULATED} H100 80GB"


@given(st.one_of(KNOWN, st.just(GIB)))
def test_the_card_behind_it_has_the_same_name_size_and_design(wanted: int | KnownGpu) -> None:
    card, gpu = card_of(0, wanted), simulated_gpu(0, wanted)
    assert (card.product, card.capacity) == (gpu.product, gpu.total_bytes)
    if isinstance(wanted, KnownGpu):
        assert (card.architecture.capability, card.architecture.multiprocessors) == (
            wanted.capability,
            wanted.multiprocessors,
        )
