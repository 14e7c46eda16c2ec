"""The simulated GPUs of a session: when one is offered, what it is called, and what a run is given of it."""

from __future__ import annotations

import pytest

from gpudash.devices.names import OFFERED_BYTES, Simulation
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.session.recordings.replay import Replay
from gpudash.simulator.device.simulated_gpu import OTHER_PROCESS
from gpudash.specs import PipelineSpec, TransferSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import Note
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import CPU_TORCH, CUDA_TORCH, Live, Make, gpu

WITHOUT = {**CPU_TORCH, "simulator_problem": "torch 2.4.0 cannot be given a device from Python."}


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
    assert (device.total_bytes, device.uuid, device.simulated) == (OFFERED_BYTES, "SIM-0", True)
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


def test_those_asked_for_come_behind_the_gpus_and_are_never_the_default(make: Make) -> None:
    live = make(simulation=Simulation((2 * GIB, GIB), 256 * MIB))
    live.monitor.has(gpu(0))
    known(live, CUDA_TORCH)
    assert names(live) == ["cpu", "cuda:0", "sim:0", "sim:1"]
    assert [found.uuid for found in live.session.gpus] == ["GPU-0", "SIM-0", "SIM-1"]
    assert live.session.default_device() == "cuda:0"
    assert [card.others for card in live.monitor.cards] == [{OTHER_PROCESS: 256 * MIB}, {}]


def test_sentences_call_a_simulated_gpu_simulated(make: Make) -> None:
    assert known(make()).session.device_words("SIM-0") == "sim:0 (SIMULATED)"


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
    assert (request.expected_uuid, request.link_bytes_per_second) == ("SIM-1", None)
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(10.0)


def test_a_cap_that_cannot_be_and_a_choice_that_needs_cuda_are_refused_before_the_run(make: Make) -> None:
    live = known(make(simulation=Simulation((GIB,))))
    for spec, device, cap, words in (
        (PipelineSpec(), "cpu", MemoryCap(share=0.5), "on the CPU use --guard"),
        (PipelineSpec(), "sim:0", MemoryCap(size=2 * GIB), "sim:0 has 1.00 GiB"),
        (PipelineSpec(move="pinned"), "sim:0", None, "--move pinned: needs a CUDA device, and sim:0 is not one"),
        (TransferSpec(memory="pinned"), "sim:0", None, "--memory pinned: needs a CUDA device"),
    ):
        with pytest.raises(ValueError, match=words):
            live.session.start_run(spec, device, memory_cap=cap)
    assert live.worker.request is None


def test_a_recording_says_which_gpus_were_simulated_and_opens_so(make: Make) -> None:
    live = known(make(record=True))
    note = live.seen.wait_event(Note, topic="gpus")
    assert note.text == "Simulated GPU (SIMULATED)"
    assert note.details["torch_names"] == {"sim:0": "SIM-0"}
    live.session.close()
    assert live.session.recording is not None
    opened = Replay(live.session.recording)
    assert [(found.uuid, found.simulated) for found in opened.gpus] == [("SIM-0", True)]
    assert [device.name for device in opened.devices() if device.simulated] == ["sim:0"]
    assert opened.device_words("SIM-0") == "sim:0 (SIMULATED)"


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
