from __future__ import annotations

import pytest

from gpudash.devices.names import Simulation
from gpudash.session.live.machine import GPU_PATIENCE_S, Machine
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.sources.discovery import survey_host
from gpudash.telemetry.records import Sample, State
from gpudash.telemetry.store import Store
from tests.unit.session.conftest import CPU_TORCH, FakeMonitor, gpu


@pytest.fixture
def machine() -> Machine:
    monitor = FakeMonitor(lambda _record: None, lambda: 0.0, 10.0)
    monitor.driver_version = None  # type: ignore[assignment]
    return Machine(survey_host(), monitor, Store(), SimulatedGpus(Simulation()))  # type: ignore[arg-type]


def test_the_facts_say_what_driver_torch_and_environment_answer(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    facts = dict(machine.gpu_facts())
    assert facts["NVML"] == "Driver Not Loaded" and facts["NVIDIA driver"] == "none answered"
    assert facts["torch"] == "loading" and facts["CUDA of torch"] == "not known yet"
    assert facts["CUDA_VISIBLE_DEVICES"] == "empty" and facts["NVIDIA_VISIBLE_DEVICES"] == "not set"
    assert facts["simulated GPU"] == "none"
    machine.torch = CPU_TORCH
    facts = dict(machine.gpu_facts())
    assert facts["torch"] == "torch 2.13.0+cpu" and facts["CUDA of torch"] == "none: a CPU build"


def test_checking_asks_the_monitor_to_look(machine: Machine) -> None:
    machine.check_gpus()
    assert machine._monitor.looked == 1  # type: ignore[attr-defined]


def test_a_run_begins_only_when_the_memory_of_every_gpu_was_read_or_was_said_to_be_unreadable(machine: Machine) -> None:
    machine.torch = CPU_TORCH
    machine._monitor.gpus = (gpu(0), gpu(1))  # type: ignore[misc, assignment]
    store = machine._store
    store.apply(Sample(0.1, "host", None, {"used_bytes": 5}))
    store.apply(Sample(0.2, "gpu", "GPU-0", {"used_bytes": 7}))
    assert not machine.knows_enough(0.3)
    assert machine.knows_enough(GPU_PATIENCE_S)
    store.apply(Sample(0.4, "gpu", "GPU-1", {"used_bytes": State.NO_PERMISSION}))
    assert machine.knows_enough(0.5)
