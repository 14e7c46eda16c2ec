"""A process runs on CUDA or on simulated GPUs, never on both; and what a run may reserve on either."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import RunEnd, RunStarted
from gpudash.units import GIB, MIB
from gpudash.workloads.running import sim_backend as simulated
from gpudash.workloads.running.accelerators import capped
from gpudash.workloads.running.run import confirm, release
from gpudash.workloads.running.run_errors import WorkloadError, memory_ran_out
from tests.unit.workloads.conftest import Bench


class FakeBackend:
    """A simulated device that was added to torch, without torch."""

    def __init__(self, *cards: SimulatedGpu) -> None:
        self.cards = list(cards)
        self.engine = types.SimpleNamespace(drop_workspaces=self._drop)
        self.module = types.SimpleNamespace(empty_cache=self._empty)
        self.workspace = [card.allocate(8 * MIB) for card in cards]

    def _drop(self) -> None:
        for card, address in zip(self.cards, self.workspace, strict=True):
            card.release(address)

    def _empty(self) -> None:
        for card in self.cards:
            card.empty_cache()


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeBackend]:
    """Makes this process one that has run on simulated GPUs."""

    def add(*cards: SimulatedGpu) -> FakeBackend:
        backend = FakeBackend(*cards)
        monkeypatch.setattr(simulated, "in_use", lambda: backend)
        return backend

    return add


def test_a_process_that_has_run_on_cuda_refuses_simulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(WorkloadError, match="has run on a CUDA device, so it cannot run on a simulated one") as told:
        simulated.add([SimulatedGpu(0, GIB)])
    assert told.value.kind == "device" and "restart gpudash" in told.value.remedy


def test_a_process_that_has_run_on_simulated_gpus_refuses_cuda(added: Callable[..., FakeBackend]) -> None:
    added(SimulatedGpu(0, GIB))
    with pytest.raises(WorkloadError, match="has run on a simulated GPU, so it cannot run on a CUDA device"):
        confirm(torch.device("cuda:0"), None)


def test_the_refusal_ends_a_run_in_words(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr("gpudash.workloads.running.run.release", lambda *, context=False: (None, None))
    ending = bench.run("pipeline", device="sim:0", request={"cards": (SimulatedGpu(0, GIB),)})
    assert isinstance(ending, RunEnd) and ending.status == "failed" and ending.error == "device"
    assert ending.message.startswith("This process has run on a CUDA device")
    (began,) = bench.of(RunStarted)
    assert began.simulated is True


def test_cards_that_are_torchs_already_are_not_added_again(added: Callable[..., FakeBackend]) -> None:
    card = SimulatedGpu(0, GIB)
    backend = added(card)
    simulated.add([card])
    assert backend.cards == [card]


def test_what_a_run_leaves_is_given_back_by_simulated_gpus_too(added: Callable[..., FakeBackend]) -> None:
    card = SimulatedGpu(0, GIB)
    added(card)
    held = card.reserved_bytes()
    assert held >= 8 * MIB
    assert release(context=True) == (held, 0)
    assert (card.used_bytes(), card.opened) == (0, False), "the run has ended"


def test_freeing_the_cache_leaves_the_context(added: Callable[..., FakeBackend]) -> None:
    card = SimulatedGpu(0, GIB)
    added(card)
    release()
    assert card.used_bytes() == card.context_bytes > 0


def test_what_a_run_has_kept_keeps_the_context(added: Callable[..., FakeBackend]) -> None:
    card = SimulatedGpu(0, GIB)
    added(card)
    address = card.allocate(MIB)
    release(context=True)
    assert card.used_bytes() == card.context_bytes + card.reserved_bytes() > 0
    card.release(address)


class FakeModule:
    """Stands in for ``torch.cuda`` as far as a cap goes."""

    def __init__(self, before: float | None = None) -> None:
        self.set: list[float] = []
        if before is not None:
            self.get_per_process_memory_fraction = lambda _device: before

    def get_device_properties(self, _device: Any) -> Any:
        return types.SimpleNamespace(total_memory=8 * GIB)

    def set_per_process_memory_fraction(self, fraction: float, _device: Any) -> None:
        self.set.append(fraction)


@pytest.mark.parametrize(("before", "back"), [(None, 1.0), (0.75, 0.75)])
def test_a_cap_holds_for_the_run_and_is_put_back(
    monkeypatch: pytest.MonkeyPatch, before: float | None, back: float
) -> None:
    module = FakeModule(before)
    monkeypatch.setattr(torch, "cuda", module)
    with suppress(KeyError), capped(torch.device("cuda:0"), MemoryCap(size=2 * GIB)):
        assert [int(8 * GIB * fraction) for fraction in module.set] == [2 * GIB]
        raise KeyError
    assert module.set[1:] == [back]


def test_without_a_cap_the_device_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    monkeypatch.setattr(torch, "cuda", module)
    with capped(torch.device("cuda:0"), None):
        pass
    assert module.set == []


def test_a_broken_device_does_not_hide_its_own_error_behind_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    monkeypatch.setattr(torch, "cuda", module)

    def broken(_fraction: float, _device: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def run() -> None:
        with capped(torch.device("cuda:0"), MemoryCap(share=0.5)):
            module.set_per_process_memory_fraction = broken  # type: ignore[method-assign]
            raise KeyError("of the run")

    with pytest.raises(KeyError, match="of the run"):
        run()


def test_a_full_simulated_gpu_is_told_from_a_full_gpu_and_a_full_host() -> None:
    full = (
        "out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 2.00 GiB of which 1.00 MiB is free."
    )
    assert memory_ran_out(torch.OutOfMemoryError(f"SIM {full}")) == "sim"
    assert memory_ran_out(torch.OutOfMemoryError(f"CUDA {full}")) == "cuda"
    assert memory_ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory")) == "host"
