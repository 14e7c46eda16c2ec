"""What cards can do, by their data sheets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.devices.card_performance import (
    CARD_PERFORMANCE,
    CardPerformance,
    guessed_performance,
    pcie_bytes_per_s,
    performance_in_machine,
    performance_of,
)
from gpudash.devices.known_gpus import KNOWN_GPUS, KnownGpu

KNOWN = st.sampled_from(KNOWN_GPUS)

CORES = {(6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64}
"""Cores of a multiprocessor that do fp32, by capability; 128 in every later one (CUDA C++ Programming Guide)."""


def performance(gpu: KnownGpu) -> CardPerformance:
    found = performance_of(gpu.key)
    assert found is not None
    return found


def test_every_known_card_and_no_other_has_its_figures() -> None:
    assert sorted(CARD_PERFORMANCE) == sorted(gpu.key for gpu in KNOWN_GPUS)


@given(KNOWN)
def test_the_peak_of_fp32_is_two_a_clock_of_each_core(gpu: KnownGpu) -> None:
    card = performance(gpu)
    cores = card.multiprocessors * CORES.get(gpu.capability, 128)
    assert card.multiprocessors == gpu.multiprocessors
    assert card.flops["float32"] == pytest.approx(2 * cores * card.clock_hz, rel=0.03)


@given(KNOWN)
def test_tensor_cores_do_what_their_architecture_has_and_faster_the_shorter_the_numbers(gpu: KnownGpu) -> None:
    flops = performance(gpu).flops
    kinds = {"float32"}
    if gpu.capability >= (7, 0):
        kinds.add("float16")
        assert flops["float16"] >= 1.95 * flops["float32"]
    if gpu.capability >= (8, 0):
        kinds |= {"tf32", "bfloat16"}
        assert flops["bfloat16"] == flops["float16"]
        assert flops["float32"] <= flops["tf32"] * 1.001
        assert flops["tf32"] * 2 == pytest.approx(flops["float16"], rel=0.02)
    if gpu.capability >= (8, 9):
        kinds.add("float8")
        assert flops["float8"] == 2 * flops["float16"]
    assert set(flops) == kinds


@given(KNOWN)
def test_geforce_cards_sum_in_fp32_at_half_the_rate_of_their_tensor_cores(gpu: KnownGpu) -> None:
    flops = performance(gpu).flops
    if "GeForce" in gpu.product and gpu.capability >= (8, 0):
        assert flops["float16"] == pytest.approx(2 * flops["float32"], rel=0.01)


@given(KNOWN)
def test_the_other_figures_are_those_of_cards(gpu: KnownGpu) -> None:
    card = performance(gpu)
    assert 190e9 <= card.bytes_per_s <= 8e12
    assert 1.5 * 2**20 <= card.l2_bytes <= 128 * 2**20
    assert 1.2e9 <= card.clock_hz <= 2.7e9
    assert pcie_bytes_per_s(3, 16) <= card.link_bytes_per_s <= pcie_bytes_per_s(5, 16)
    assert card.link_bytes_per_s <= card.peer_bytes_per_s <= 900e9
    assert 70 <= card.power_w <= 1000
    assert card.source
    assert not card.derived


def test_a_link_carries_what_its_generation_and_width_let_it() -> None:
    assert pcie_bytes_per_s(3, 16) == pytest.approx(15.75e9, rel=0.001)
    assert pcie_bytes_per_s(4, 8) == pytest.approx(15.75e9, rel=0.001)
    assert pcie_bytes_per_s(5, 16) == pytest.approx(63.0e9, rel=0.001)
    with pytest.raises(ValueError, match="generation 9 with 16 lanes"):
        pcie_bytes_per_s(9, 16)


@pytest.mark.parametrize("name", ["rtx3060", "RTX 3060", "NVIDIA GeForce RTX 3060", "GeForce RTX 3060"])
def test_a_card_is_found_by_its_key_its_name_and_its_driver_s_name(name: str) -> None:
    assert performance_of(name) is CARD_PERFORMANCE["rtx3060"]


def test_the_user_s_own_card_comes_before_the_known_one_of_its_name() -> None:
    own = {"My Card": CARD_PERFORMANCE["t4"], "h100": CARD_PERFORMANCE["l4"]}
    assert performance_of("my card", own) is CARD_PERFORMANCE["t4"]
    assert performance_of("h100", own) is CARD_PERFORMANCE["l4"]
    assert performance_of("a100-80gb", own) is CARD_PERFORMANCE["a100-80gb"]
    assert performance_of("nothing of the kind", own) is None


def test_a_card_that_nobody_listed_is_guessed_from_the_nearest_of_its_architecture() -> None:
    guess = guessed_performance("NVIDIA GeForce RTX 4060 Ti Super", (8, 9), 32)
    assert guess is not None
    assert guess.derived
    assert "RTX 4060 Ti Super" in guess.source
    assert "RTX 4060 Ti 16GB" in guess.source
    lender = CARD_PERFORMANCE["rtx4060ti-16gb"]
    assert guess.flops["float16"] == pytest.approx(lender.flops["float16"] * 32 / 34)
    assert guess.multiprocessors == 32
    assert "clock_hz" in guess.guessed


def test_a_guess_takes_the_driver_s_clock_and_nothing_is_guessed_of_another_architecture() -> None:
    guess = guessed_performance("NVIDIA Some GPU", (8, 9), 34, clock_hz=5.07e9)
    assert guess is not None
    assert guess.flops["float32"] == pytest.approx(2 * CARD_PERFORMANCE["rtx4060ti-16gb"].flops["float32"])
    assert "clock_hz" not in guess.guessed
    assert guessed_performance("NVIDIA Old GPU", (3, 5), 15) is None
    assert guessed_performance("NVIDIA No GPU", (8, 9), 0) is None


@given(KNOWN)
def test_what_is_guessed_of_a_known_card_is_near_what_its_data_sheet_says(gpu: KnownGpu) -> None:
    card = performance(gpu)
    guess = guessed_performance(gpu.product, gpu.capability, gpu.multiprocessors, card.clock_hz)
    assert guess is not None
    assert guess.flops["float32"] == pytest.approx(card.flops["float32"], rel=0.03)


def test_a_card_in_a_slot_of_fewer_lanes_has_the_link_of_the_slot() -> None:
    card = performance_in_machine("NVIDIA GeForce RTX 4090", (8, 9), 128, (4, 8))
    assert card is not None
    assert card.link_bytes_per_s == card.peer_bytes_per_s == pcie_bytes_per_s(4, 8)
    assert not card.derived
    joined = performance_in_machine("NVIDIA GeForce RTX 3090", pcie=(3, 16))
    assert joined is not None
    assert joined.peer_bytes_per_s == 56.25e9
    assert performance_in_machine("NVIDIA GeForce RTX 4090", pcie=(9, 8)) is CARD_PERFORMANCE["rtx4090"]


def test_a_card_in_a_machine_without_a_data_sheet_is_guessed_and_one_of_nothing_known_is_not() -> None:
    instance = performance_in_machine("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0), 14, (4, 16))
    assert instance is not None
    assert instance.derived
    assert instance.flops["float16"] == pytest.approx(312e12 * 14 / 108)
    assert "link_bytes_per_s" not in instance.guessed
    assert performance_in_machine("NVIDIA Old GPU") is None
    assert performance_in_machine("NVIDIA Old GPU", (3, 5), 15) is None
