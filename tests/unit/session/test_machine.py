"""Which devices a session offers, what it calls them, why one is missing, and what is known of context and energy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpudash.devices.names import OFFERED_BYTES, Gpu, Simulation
from gpudash.session.live.machine import (
    GPU_PATIENCE_S,
    NOT_READ_YET,
    NOT_REPORTED,
    EnergyCounters,
    Machine,
    remember_context,
)
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.session.recordings.replay import Replay
from gpudash.simulator.device.simulated_gpu import OTHER_PROCESS
from gpudash.sources.discovery import survey_host
from gpudash.sources.host import NOT_THERE, PackageEnergy
from gpudash.specs import PipelineSpec, PressureSpec, TransferSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import Note, Sample, State, Warning
from gpudash.telemetry.store import Store
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import CPU_TORCH, CUDA_TORCH, HOST_TOTAL, FakeMonitor, Live, Make, gpu
from tests.unit.session.watched import Surrounded

WITHOUT = {**CPU_TORCH, "simulator_problem": "torch 2.4.0 cannot be given a device from Python."}

GPU = Gpu(nvml_index=0, uuid="GPU-0", product="RTX", pci_bus_id="0", total_bytes=24 * GIB)


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
    assert two.session.device_text("GPU-1") == "cuda:1"
    assert two.session.device_text("host") == "This computer's memory"
    assert two.session.gpu_problem is None


def test_devices_follow_the_environment_and_the_driver(two: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [device.uuid for device in two.session.devices()] == [None, "GPU-1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    two.monitor.has(gpu(0))
    assert [device.uuid for device in two.session.devices()] == [None, "GPU-0"]


def test_the_default_device_is_the_one_with_most_free_memory(two: Live) -> None:
    two.monitor.card(gpu(0), 20 * GIB)
    two.monitor.card(gpu(1), 2 * GIB)
    two.settle()
    assert two.session.default_device() == "cuda:1"
    two.monitor.card(gpu(0), GIB)
    two.settle()
    assert two.session.default_device() == "cuda:0"


def test_a_memory_that_cpu_and_gpu_share_is_warned_of_once_and_guarded_as_one(make: Make) -> None:
    live, shared = make(), replace(gpu(0), shared_memory=True, total_bytes=HOST_TOTAL)
    live.monitor.has(shared)
    live.worker.torch(CUDA_TORCH)
    for used in (HOST_TOTAL // 2, HOST_TOTAL * 9 // 10):
        live.monitor.host(used)
        live.monitor.card(shared, used)
        live.settle()
    warnings = [record for record in live.seen.records if isinstance(record, Warning)]
    assert [(warning.device, warning.level) for warning in warnings] == [("host", "warning")]
    assert warnings[0].text.startswith("This computer's memory, shared with cuda:0, is 90 % full: ")
    live.session.start_run(PressureSpec(), "cuda:0", guard_bytes=GIB // 2)
    assert live.worker.request.refuse(GIB, "cuda:0") is not None
    assert live.worker.request.refuse(1, "cuda:0") is None
    assert live.session.machine.level(shared.uuid) is not None


def test_mig_instances_are_warned_of_and_not_the_gpu_that_is_divided(make: Make) -> None:
    live, whole = make(), replace(gpu(0), instances=1)
    part = replace(gpu(0), uuid="MIG-1", parent=whole.uuid)
    live.monitor.has(whole, part)
    live.worker.torch(CUDA_TORCH)
    live.monitor.card(whole, 23 * GIB)
    live.monitor.card(part, 23 * GIB)
    live.settle()
    assert [record.device for record in live.seen.records if isinstance(record, Warning)] == [part.uuid]
    assert live.session.device_text(part.uuid) == "cuda:0" and live.session.device_text(whole.uuid) == "GPU 0"
    assert live.session.forecast(whole.uuid) is None


@pytest.mark.process
def test_what_torch_alone_knows_is_a_device_whose_memory_is_read_during_runs(make: Make) -> None:
    live = make()
    seen = [{"name": name, "product": None, "uuid": None, "total_bytes": 10 * GIB} for name in ("xpu:0", "mps")]
    live.worker.torch({**CPU_TORCH, "devices": seen})
    live.settle()
    session = live.session
    assert [device.name for device in session.devices()][:3] == ["cpu", "xpu:0", "mps"]
    assert [gpu.product for gpu in session.gpus][:2] == ["Intel GPU", "Apple GPU"]
    assert session.default_device() == "cpu" and str(session.gpu_problem).startswith(
        "No driver is read for xpu:0 and mps,"
    )
    assert session.store.torch_name("mps") == "mps" and session.device_text("host").endswith("shared with mps,")
    assert (session.machine.pool_of("mps"), session.machine.pool_of("xpu:0")) == ("host", "xpu:0")
    with pytest.raises(ValueError, match="not predicted: its allocator is not CUDA's"):
        session.estimates.target("xpu:0")
    session.start_run(PressureSpec(), "xpu:0")
    assert live.worker.request.isolate and live.worker.request.expected_uuid == "xpu:0"
    live.monitor.emit(Sample(1.0, "gpu", "xpu:0", {"used_bytes": GIB, "free_bytes": 9 * GIB, "total_bytes": 10 * GIB}))
    live.settle()
    level = session.machine.level("xpu:0")
    assert level is not None and level.free_bytes == 9 * GIB


def test_a_hidden_gpu_is_refused_with_the_variable_that_hides_it(two: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ValueError, match=r"'cuda:1' \(CUDA_VISIBLE_DEVICES=0 hides 1 of 2 GPUs\); .* cpu, cuda:0\.$"):
        two.session.machine.find("cuda:1")
    assert two.session.device_text("GPU-1") == "GPU 1"


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


def names(live: Live) -> list[str]:
    return [device.name for device in live.session.devices()]


def known(live: Live, torch: dict[str, object] = CPU_TORCH) -> Live:
    live.worker.torch(torch)
    live.settle()
    return live


def test_where_there_is_no_gpu_one_of_8_gib_is_offered_and_is_no_default(make: Make) -> None:
    live = known(make())
    assert names(live) == ["cpu", "sim:0"]
    device = live.session.machine.find("sim:0")
    assert (device.total_bytes, device.uuid, device.simulated) == (OFFERED_BYTES, "SIM-0-8GiB", True)
    assert live.session.default_device() == "cpu"
    assert [card.capacity for card in live.monitor.cards] == [OFFERED_BYTES]
    assert live.session.gpu_problem is not None


def test_none_is_offered_where_that_is_not_wanted() -> None:
    simulated = SimulatedGpus(Simulation(offered=False))
    simulated.offer()
    assert simulated.gpus == ()
    simulated.provide([GIB])
    assert [gpu.total_bytes for gpu in simulated.gpus] == [GIB]


def test_none_is_offered_before_torch_has_had_its_say(make: Make) -> None:
    live = make()
    live.settle()
    assert names(live) == ["cpu"]


def test_none_is_offered_beside_a_gpu_of_either_kind_of_witness(make: Make) -> None:
    listed = make()
    listed.monitor.has(gpu(0))
    assert names(known(listed, CUDA_TORCH)) == ["cpu", "cuda:0"]
    seen = {**CUDA_TORCH, "devices": [{"name": "cuda:0", "product": "H200", "total_bytes": None}]}
    assert names(known(make(), seen)) == ["cpu", "cuda:0"]


def test_those_asked_for_come_behind_the_gpus_and_the_first_is_where_a_run_of_the_session_takes_place(
    make: Make,
) -> None:
    live = make(simulation=Simulation((2 * GIB, GIB), 256 * MIB))
    live.monitor.has(gpu(0))
    known(live, CUDA_TORCH)
    assert names(live) == ["cpu", "cuda:0", "sim:0", "sim:1"]
    assert [found.uuid for found in live.session.gpus] == ["GPU-0", "SIM-0-2GiB", "SIM-1-1GiB"]
    assert live.session.default_device() == "sim:0"
    assert live.session.machine.program_device() == "cuda:0", "a program that nobody told of it knows nothing of it"
    assert [card.own.others for card in live.monitor.cards] == [{OTHER_PROCESS: 256 * MIB}, {}]


def test_where_torch_cannot_use_what_was_asked_for_a_run_takes_place_elsewhere(make: Make) -> None:
    live = known(make(simulation=Simulation((2 * GIB,))), WITHOUT)
    assert names(live) == ["cpu", "sim:0"]
    assert live.session.default_device() == "cpu"


def test_sentences_call_a_simulated_gpu_simulated(make: Make) -> None:
    assert known(make()).session.device_text("SIM-0-8GiB") == "sim:0 (SIMULATED)"


def test_a_simulated_gpu_that_is_not_there_is_refused_with_the_flag_that_adds_one(make: Make) -> None:
    with pytest.raises(ValueError, match=r"There is no device 'sim:1'; there is: cpu, sim:0\. --simulate 8GiB adds"):
        known(make()).session.machine.find("sim:1")


def test_where_torch_cannot_it_is_listed_with_the_reason_and_refused_with_it(make: Make) -> None:
    live = known(make(), WITHOUT)
    assert [device.problem for device in live.session.devices()] == [None, WITHOUT["simulator_problem"]]
    with pytest.raises(ValueError, match=r"No run can use sim:0: torch 2\.4\.0 cannot be given"):
        live.session.start_run(PipelineSpec(), "sim:0")
    assert not live.session.running


def test_a_run_is_given_every_card_and_the_cap_and_no_link(make: Make) -> None:
    live = known(make(simulation=Simulation((2 * GIB, GIB))))
    live.session.start_run(PipelineSpec(), "sim:1", memory_cap=MemoryCap(share=0.5))
    request = live.worker.request
    assert request.cards == tuple(shown.own for shown in live.monitor.cards) and len(request.cards) == 2
    assert request.memory_cap == MemoryCap(share=0.5)
    assert (request.expected_uuid, request.link_bytes_per_second) == ("SIM-1-1GiB", None)
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(10.0)


def test_a_cap_that_cannot_be_and_a_choice_that_needs_cuda_are_refused_before_the_run(make: Make) -> None:
    live = known(make(simulation=Simulation((GIB,))))
    for spec, device, cap, words in (
        (PipelineSpec(), "cpu", MemoryCap(share=0.5), "on the CPU use --guard"),
        (PipelineSpec(), "sim:0", MemoryCap(size=2 * GIB), "sim:0 has 1.00 GiB"),
        (PipelineSpec(move="pinned"), "cpu", None, "--move pinned: needs a CUDA device or a simulated GPU"),
        (TransferSpec(memory="pinned"), "sim:0", None, "--memory pinned: needs a CUDA device"),
    ):
        with pytest.raises(ValueError, match=words):
            live.session.start_run(spec, device, memory_cap=cap)
    assert live.worker.request is None


def test_a_recording_says_which_gpus_were_simulated_and_opens_so(make: Make) -> None:
    live = known(make(record=True))
    note = live.seen.wait_event(Note, topic="gpus")
    assert note.text == "Simulated GPU (SIMULATED)"
    assert note.details["torch_names"] == {"sim:0": "SIM-0-8GiB"}
    live.session.close()
    assert live.session.recording_path is not None
    opened = Replay(live.session.recording_path)
    assert [(found.uuid, found.simulated) for found in opened.gpus] == [("SIM-0-8GiB", True)]
    assert [device.name for device in opened.devices() if device.simulated] == ["sim:0"]
    assert opened.device_text("SIM-0-8GiB") == "sim:0 (SIMULATED)"


def test_the_cards_take_the_allocators_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    gpus = SimulatedGpus(Simulation((GIB,)))
    gpus.start()
    assert gpus.cards[0].settings.expandable_segments is True
    assert gpus.problem is None


def test_settings_that_torch_would_refuse_are_told_and_name_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:3")
    problem = SimulatedGpus(Simulation((GIB,))).problem
    assert problem is not None
    assert problem.startswith("PYTORCH_CUDA_ALLOC_CONF is 'max_split_size_mb:3', which torch refuses: ")


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


def test_our_context_is_among_what_surrounds_a_run() -> None:
    around = Surrounded(gpus=(GPU,))
    assert around.machine.surroundings("GPU-0").context_bytes is None
    around.store.apply(Sample(1.0, "allocator", "cuda:0", {"allocated_bytes": 1 * GIB, "reserved_bytes": 2 * GIB}))
    used = {"used_bytes": 5 * GIB, "process_bytes": 2 * GIB + 400 * MIB}
    around.store.apply(Sample(1.0, "gpu", "GPU-0", used))
    assert around.machine.surroundings("GPU-0").context_bytes == 400 * MIB


def test_nothing_is_said_of_a_context_where_the_driver_does_not_tell_of_processes() -> None:
    around = Surrounded(gpus=(GPU,))
    around.store.apply(Sample(1.0, "allocator", "cuda:0", {"allocated_bytes": 1 * GIB, "reserved_bytes": 2 * GIB}))
    around.store.apply(Sample(1.0, "gpu", "GPU-0", {"used_bytes": 5 * GIB}))
    assert around.machine.context_bytes("GPU-0") is None


def test_a_context_is_what_most_readings_say_and_not_one_that_mixes_two_instants() -> None:
    around = Surrounded(gpus=(GPU,))
    for tenth, process in enumerate((400, 400, 400, 400, 400)):
        reserved = (0, 0, 0, 200, 380)[tenth] * MIB
        about = {"allocated_bytes": reserved, "reserved_bytes": reserved}
        around.store.apply(Sample(1.0 + tenth / 10, "allocator", "cuda:0", about))
        used = {"used_bytes": 5 * GIB, "process_bytes": process * MIB}
        around.store.apply(Sample(1.0 + tenth / 10, "gpu", "GPU-0", used))
    assert around.machine.context_bytes("GPU-0") == 400 * MIB


def test_a_context_that_no_reading_shows_yet_is_as_large_as_it_usually_is() -> None:
    around = Surrounded(gpus=(GPU,))
    remember_context("GPU-0", 472 * MIB)
    assert around.machine.surroundings("GPU-0").context_bytes == 472 * MIB


def counters(tmp_path: Path) -> tuple[Store, EnergyCounters]:
    store = Store()
    return store, EnergyCounters(store, PackageEnergy(tmp_path))


def test_a_gpus_counter_is_told_with_the_moment_it_was_read(tmp_path: Path) -> None:
    store, energy = counters(tmp_path)
    assert energy.read("GPU-1") == NOT_READ_YET
    store.apply(Sample(3.0, "gpu", "GPU-1", {"energy_j": 250.5}))
    assert energy.read("GPU-1") == (3.0, 250.5)


def test_a_gpu_without_a_counter_is_told_in_words(tmp_path: Path) -> None:
    store, energy = counters(tmp_path)
    store.apply(Sample(3.0, "gpu", "GPU-1", {"energy_j": None}, {"energy_j": State.NOT_SUPPORTED}))
    assert energy.read("GPU-1") == NOT_REPORTED


def test_the_cpus_counter_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    _store, energy = counters(tmp_path)
    assert energy.read(None) == NOT_THERE
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    for name, text in (("name", "package-0"), ("energy_uj", "5"), ("max_energy_range_uj", "10")):
        (folder / name).write_text(text)
    found = energy.read(None)
    assert isinstance(found, tuple)
    assert found[1] == 0.0
