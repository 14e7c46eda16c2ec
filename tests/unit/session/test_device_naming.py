"""Which devices a session offers, what it calls them, and why one is missing."""

from __future__ import annotations

import pytest

from gpudash.telemetry.records import Note
from gpudash.units import GIB
from tests.unit.session.conftest import CPU_TORCH, CUDA_TORCH, Live, Make, gpu


@pytest.fixture(autouse=True)
def no_cuda_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


@pytest.fixture
def two(make: Make) -> Live:
    live = make(record=True)
    live.monitor.has(gpu(0), gpu(1))
    live.worker.torch(CUDA_TORCH)
    live.settle()
    return live


def test_the_cpu_comes_first_and_gpus_have_torchs_names(two: Live) -> None:
    assert [device.name for device in two.session.devices()] == ["cpu", "cuda:0", "cuda:1"]
    assert two.session.machine.find("cuda:1").uuid == "GPU-1"
    assert two.session.device_words("GPU-1") == "cuda:1"
    assert two.session.device_words("host") == "This computer's memory"
    assert two.session.gpu_problem is None


def test_the_default_device_is_the_one_with_most_free_memory(two: Live) -> None:
    two.monitor.card(gpu(0), 20 * GIB)
    two.monitor.card(gpu(1), 2 * GIB)
    two.settle()
    assert two.session.default_device() == "cuda:1"
    two.monitor.card(gpu(0), GIB)
    two.settle()
    assert two.session.default_device() == "cuda:0"


def test_a_hidden_gpu_is_refused_with_the_variable_that_hides_it(two: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ValueError, match=r"'cuda:1' \(CUDA_VISIBLE_DEVICES=0 hides 1 of 2 GPUs\); .* cpu, cuda:0\.$"):
        two.session.machine.find("cuda:1")
    assert two.session.device_words("GPU-1") == "GPU 1"


def test_a_cpu_build_of_torch_beside_a_gpu_is_named_as_the_cause(make: Make) -> None:
    live = make()
    live.monitor.has(gpu(0))
    live.worker.torch(CPU_TORCH)
    live.settle()
    assert [device.name for device in live.session.devices()] == ["cpu"]
    assert live.session.default_device() == "cpu"
    assert live.session.gpu_problem is not None and "is a CPU build though a GPU is there" in live.session.gpu_problem
    with pytest.raises(ValueError, match="CPU build though a GPU is there"):
        live.session.machine.find("cuda:0")


def test_a_cuda_build_that_sees_no_device_is_not_called_a_cpu_build(make: Make) -> None:
    live = make()
    live.monitor.has(gpu(0))
    live.worker.torch({**CUDA_TORCH, "cuda_available": False, "problem": "torch cannot use CUDA: driver too old"})
    live.settle()
    assert live.session.gpu_problem == "torch cannot use CUDA: driver too old"
    live.worker.torch({**CUDA_TORCH, "cuda_available": False})
    live.settle()
    assert live.session.gpu_problem is not None and "CPU build" not in live.session.gpu_problem


def test_without_a_card_the_reason_is_the_monitors(make: Make) -> None:
    live = make()
    with pytest.raises(ValueError, match=r"'cuda:0' \(No NVIDIA card was found; .*\); there is: cpu\."):
        live.session.machine.find("cuda:0")


@pytest.mark.parametrize("name", ["tpu:0", "simulated", "CPU", ""])
def test_what_is_no_device_is_said_to_be_none(two: Live, name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not a device; there is: cpu, cuda:0, cuda:1"):
        two.session.machine.find(name)


def test_the_recording_learns_the_gpus_when_they_are_found_and_not_at_every_reading(two: Live) -> None:
    for used in range(5):
        two.monitor.card(gpu(0), used * GIB)
    two.settle()
    notes = [record for record in two.seen.records if isinstance(record, Note) and record.topic == "gpus"]
    assert [sorted(note.details["torch_names"]) for note in notes][-1] == ["cuda:0", "cuda:1"]
    assert len(notes) <= 2
    assert two.session.store.torch_name("GPU-1") == "cuda:1"


def test_a_gpu_that_appears_later_is_linked_then(two: Live) -> None:
    two.monitor.has(gpu(0), gpu(1), gpu(2))
    two.settle()
    assert two.session.store.torch_name("GPU-2") == "cuda:2"
