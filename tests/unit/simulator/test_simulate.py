"""`gpudash.simulator.simulate`: what it takes, what it reads from the environment, and what it replaces."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from gpudash.memory.allocator.settings import AllocatorSettings
from gpudash.simulator import simulate
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.memory_history import settings_text
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES
from gpudash.specs.memory_cap import MemoryCap
from gpudash.workloads.running.accelerators import capped

GIB = 2**30


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator's settings of whoever runs the tests."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def test_a_simulated_gpu_heeds_the_settings_of_the_environment(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    simulate(GIB)
    held = torch.empty(2**20, device="sim")
    assert all(segment["is_expandable"] for segment in torch.sim.memory_snapshot())
    assert torch.sim.memory._snapshot()["allocator_settings"]["expandable_segments"] is True
    del held


def test_given_settings_and_other_processes_count_instead(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    simulate(GIB, GIB, settings="per_process_memory_fraction:0.25", others=GIB // 2)
    free = [torch.sim.mem_get_info(index)[0] + CONTEXT_BYTES for index in range(2)]
    assert free == [GIB // 2, GIB], "to ask makes a context, as on CUDA"
    assert torch.sim.get_per_process_memory_fraction(1) == 0.25
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(GIB // 2, dtype=torch.uint8, device="sim:1")


def test_the_fraction_that_was_set_is_told(sim: Backend) -> None:
    assert torch.sim.get_per_process_memory_fraction() == 1
    torch.sim.set_per_process_memory_fraction(0.5, "sim:1")
    assert [torch.sim.get_per_process_memory_fraction(index) for index in range(2)] == [1, 0.5]


def test_a_capped_run_leaves_the_fraction_that_was_set_before_it(sim: Backend) -> None:
    torch.sim.set_per_process_memory_fraction(0.5, 0)
    with capped(torch.device("sim", 0), MemoryCap(share=0.25)):
        assert torch.sim.get_per_process_memory_fraction(0) == 0.25
    assert torch.sim.get_per_process_memory_fraction(0) == 0.5


def test_a_gpu_can_be_simulated_by_its_name(sim: Backend) -> None:
    simulate("H100", GIB)
    told = torch.sim.get_device_properties(0)
    assert (told.name, told.major, told.multi_processor_count) == ("Simulated H100 80GB", 9, 132)
    assert told.total_memory == 81_089 * 2**20
    assert [torch.sim.get_device_name(index) for index in range(2)] == ["Simulated H100 80GB", "Simulated GPU"]


@pytest.mark.parametrize(
    ("sizes", "options", "kind", "said"),
    [
        (("a100",), {}, ValueError, "knows no GPU 'a100', but a100-80gb, a100-40gb"),
        ((), {}, TypeError, "at least one GPU"),
        (("8GiB",), {}, TypeError, "whole numbers of bytes, such as 8 [*] 2[*][*]30, not '8GiB'"),
        ((True,), {}, TypeError, "not True"),
        ((8e9,), {}, TypeError, "not 8000000000.0"),
        ((GIB,), {"others": "1GiB"}, TypeError, "not '1GiB'"),
        ((GIB,), {"others": -1}, ValueError, "other processes hold, not -1"),
        ((0,), {}, ValueError, "0"),
        ((GIB,), {"settings": "expandable_segments:yes"}, ValueError, "must be True or False, not 'yes'"),
    ],
)
def test_what_is_no_gpu_is_refused_in_one_sentence(
    sim: Backend, sizes: Any, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as refused:
        simulate(*sizes, **options)
    assert str(refused.value).endswith(".") and ". " not in str(refused.value)
    assert len(sim.cards) == 2


def test_what_only_a_cycle_holds_does_not_keep_a_gpu_from_being_replaced(sim: Backend) -> None:
    gc.disable()
    try:
        holder: list[Any] = [torch.empty(1000, device="sim")]
        holder.append(holder)
        del holder
        simulate(2 * GIB)
    finally:
        gc.enable()
    assert torch.sim.mem_get_info() == (2 * GIB - CONTEXT_BYTES, 2 * GIB)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:64",
        "large_segment_size_mb:32,garbage_collection_threshold:0.6",
        "max_non_split_rounding_mb:40,per_process_memory_fraction:0.5",
        "roundup_power2_divisions:[64:2,1024:8,>:4],pinned_num_register_threads:8",
        "roundup_power2_divisions:4",
    ],
)
def test_the_settings_in_a_snapshot_are_those_of_the_gpu(sim: Backend, text: str) -> None:
    simulate(GIB, settings=text)
    found = AllocatorSettings.parse(torch.sim.memory._snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"])
    given = AllocatorSettings.parse(text)
    assert found.divisions() == given.divisions() and settings_text(found) == settings_text(given)
    for name in ("max_split_size", "max_non_split_rounding", "large_segment_size", "garbage_collection_threshold"):
        assert getattr(found, name) == getattr(given, name)
    assert found.per_process_memory_fraction == given.per_process_memory_fraction
    assert found.expandable_segments is given.expandable_segments and found.ignored == given.ignored


def test_a_snapshot_without_any_gpu_has_torchs_own_settings(sim: Backend) -> None:
    cards = list(sim.cards)
    sim.cards.clear()
    try:
        assert torch.sim.memory._snapshot()["allocator_settings"]["max_split_size"] == -1
    finally:
        sim.cards.extend(cards)


def test_a_card_in_use_gets_another_size_and_what_it_holds_counts(sim: Backend) -> None:
    card = sim.cards[0]
    held = torch.ones(2**20, device="sim:0")
    card.resize(400 * 2**20)
    assert torch.sim.mem_get_info(0)[1] == 400 * 2**20
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**27, dtype=torch.uint8, device="sim:0")
    card.resize(2**30)
    assert torch.empty(2**27, dtype=torch.uint8, device="sim:0").nbytes == 2**27
    with pytest.raises(ValueError, match="between 1 byte"):
        card.resize(0)
    assert held.sum() == 2**20


def test_whoever_follows_peaks_is_told_before_they_begin_anew(sim: Backend) -> None:
    card, seen = sim.cards[0], []
    card.before_reset.append(lambda: seen.append(torch.sim.max_memory_allocated(0)))
    torch.empty(2**20, dtype=torch.uint8, device="sim:0")
    torch.sim.reset_peak_memory_stats(0)
    assert seen == [2**20]
    card.before_reset.clear()
