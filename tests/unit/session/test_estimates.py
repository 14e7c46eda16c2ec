"""What a device is said to have room for, and what the process that predicts is asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudash.devices.names import Simulation
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import VARIABLES
from gpudash.memory.predicting.architecture import Architecture
from gpudash.session.live.machine import measured_context, remember_context
from gpudash.session.predicting import estimates as session_estimates
from gpudash.session.predicting import estimator
from gpudash.session.predicting.estimates import CPU_MARGIN_RATIO, CUDA_MARGIN_RATIO, HOPPER_CONTEXT_BYTES
from gpudash.simulator.device.simulated_gpu import A100, CONTEXT_BYTES
from gpudash.specs import ModelSpec, Spec, TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import Sample
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import HOST_TOTAL, Live, Make, gpu

ECHO = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    told = {"workload": "x", "device": "x", "peak_allocated_bytes": 1, "method": line}
    print(json.dumps({"id": asked["id"], "estimate": told, "final": True}), flush=True)
"""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def with_gpu(make: Make, process_bytes: int | None = None) -> Live:
    live = make()
    live.monitor.has(gpu(0))
    live.monitor.host(3 * GIB)
    live.monitor.card(gpu(0), 4 * GIB)
    if process_bytes is not None:
        live.session.emit(Sample(0.5, "gpu", "GPU-0", {"process_bytes": process_bytes}))
    live.settle()
    return live


def test_a_simulated_gpu_nothing_has_run_on_has_all_but_a_context(make: Make) -> None:
    live = make(simulation=Simulation((8 * GIB,), 2 * GIB))
    target = live.session.estimates.target("sim:0")
    assert (target.capacity_bytes, target.free_bytes) == (8 * GIB, 6 * GIB)
    assert target.overhead_bytes == CONTEXT_BYTES
    assert target.margin_ratio == 0
    assert "simulated" in target.overhead_words


def test_what_a_simulated_gpu_s_cache_holds_idle_is_free_and_its_context_taken_already(make: Make) -> None:
    live = make(simulation=Simulation((8 * GIB,)))
    card = live.session.machine.simulated.cards[0]
    card.release(card.allocate(100 * MIB))
    kept = card.allocate(50 * MIB)
    target = live.session.estimates.target("sim:0")
    assert target.free_bytes == 8 * GIB - CONTEXT_BYTES - 50 * MIB
    assert target.overhead_bytes == 0
    card.release(kept)


def test_the_cpu_has_what_the_host_has_available_and_a_wide_margin(make: Make) -> None:
    live = make()
    live.monitor.host(3 * GIB)
    live.settle()
    target = live.session.estimates.target("cpu")
    assert target.free_bytes == HOST_TOTAL - 3 * GIB
    assert (target.overhead_bytes, target.margin_ratio) == (0, CPU_MARGIN_RATIO)


def test_a_gpu_this_process_does_not_use_yet_is_assumed_to_need_a_context(make: Make) -> None:
    target = with_gpu(make).session.estimates.target("cuda:0")
    assert (target.capacity_bytes, target.free_bytes) == (24 * GIB, 20 * GIB)
    assert target.overhead_bytes == HOPPER_CONTEXT_BYTES
    assert "assumed" in target.overhead_words
    assert target.margin_ratio == CUDA_MARGIN_RATIO


def test_a_gpu_this_process_uses_has_its_context_and_its_idle_cache_is_free(make: Make) -> None:
    live = with_gpu(make, process_bytes=900 * MIB)
    live.session.emit(Sample(0.6, "allocator", "cuda:0", {"reserved_bytes": 400 * MIB, "allocated_bytes": 100 * MIB}))
    live.settle()
    target = live.session.estimates.target("cuda:0")
    assert target.overhead_bytes == 0
    assert target.free_bytes == 20 * GIB + 300 * MIB


def test_the_context_of_a_run_that_has_ended_with_its_process_has_to_be_made_again(make: Make) -> None:
    live = with_gpu(make)
    machine = live.session.machine
    machine.host_run("GPU-0", 4711)
    live.session.emit(Sample(0.5, "gpu", "GPU-0", {"process_bytes": 900 * MIB}))
    live.settle()
    assert live.session.estimates.target("cuda:0").overhead_bytes == 0
    machine.host_run("GPU-0", None)
    assert live.session.estimates.target("cuda:0").overhead_bytes == HOPPER_CONTEXT_BYTES


def test_what_a_context_took_is_known_to_later_sessions(make: Make) -> None:
    live = with_gpu(make, process_bytes=900 * MIB)
    live.session.emit(Sample(0.6, "allocator", "cuda:0", {"reserved_bytes": 400 * MIB, "allocated_bytes": 100 * MIB}))
    live.monitor.card(gpu(0), 4 * GIB, time_s=0.6)
    live.settle()
    assert live.session.close()
    target = with_gpu(make).session.estimates.target("cuda:0")
    assert target.overhead_bytes == 500 * MIB
    assert "measured on this card" in target.overhead_words


@pytest.mark.parametrize("text", ["", "[1]", '{"GPU-0": "much"}', '{"GPU-0": 12}', "\x00"])
def test_a_damaged_note_of_contexts_counts_as_none(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "contexts.json").write_text(text, encoding="utf-8")
    assert measured_context("GPU-0") is None
    remember_context("GPU-0", 700 * MIB)
    assert measured_context("GPU-0") == 700 * MIB
    remember_context("GPU-0", 1)
    assert measured_context("GPU-0") == 700 * MIB


def test_torch_s_allocator_settings_count_on_cuda(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    live = with_gpu(make)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert live.session.estimates.target("cuda:0").settings == AllocatorSettings(expandable_segments=True)
    assert live.session.estimates.target("cpu").settings == AllocatorSettings()


def test_settings_torch_would_refuse_are_refused_in_a_sentence(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    live = with_gpu(make)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:5")
    with pytest.raises(ValueError, match="max_split_size_mb must be at least"):
        live.session.estimates.ask(TrainingSpec(), "cuda:0")


def test_a_device_that_is_not_there_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="no device 'sim:4'"):
        make().session.estimates.ask(TrainingSpec(), "sim:4")


def asked(live: Live) -> dict[str, Any]:
    """What the process was asked."""
    answer = live.session.estimates.wait(30.0)
    assert answer is not None and answer.estimate is not None
    found: dict[str, Any] = json.loads(answer.estimate.method)
    return found


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "echo.py"
    script.write_text(ECHO, encoding="utf-8")
    monkeypatch.setattr(estimator, "COMMAND", (sys.executable, "-I", str(script)))
    monkeypatch.setattr(session_estimates, "OWN_CODE_COMMAND", (sys.executable, "-I", str(script)))


@pytest.mark.process
@pytest.mark.usefixtures("echo")
def test_the_process_is_told_the_spec_the_device_and_the_other_devices(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    live = make(simulation=Simulation((8 * GIB,)))
    live.monitor.has(gpu(0))
    live.monitor.host(3 * GIB)
    live.monitor.card(gpu(0), 4 * GIB)
    live.settle()
    live.session.estimates.ask(TrainingSpec(batch=7), "sim:0", alternatives=False)
    told = asked(live)
    assert told["workload"] == "training"
    assert told["spec"]["batch"] == 7
    assert told["alternatives"] is False
    assert told["target"]["device"] == "sim:0"
    assert told["target"]["settings"] == "expandable_segments:True"
    assert told["used_bytes"] == 0
    others = {target["device"]: target for target in told["elsewhere"]}
    assert others.keys() == {"cpu", "cuda:0"}
    assert others["cuda:0"]["settings"] == "expandable_segments:True"


@pytest.mark.process
@pytest.mark.usefixtures("echo")
def test_the_process_is_told_where_each_rank_is_to_fit(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    spec = TrainingSpec(devices="cpu,cpu", parallel="fsdp")
    live.session.estimates.ask(spec, "cpu", alternatives=False)
    told = asked(live)
    assert told["spec"]["devices"] == "cpu,cpu"
    assert [rank["device"] for rank in told["ranks"]] == ["cpu", "cpu"]
    assert [rank["free_bytes"] for rank in told["ranks"]] == [told["target"]["free_bytes"] // 2] * 2


@pytest.mark.parametrize("spec", [TrainingSpec(devices="cuda:0,cuda:1"), ModelSpec(path="/", devices="cuda:0,cuda:1")])
def test_a_rank_on_a_device_that_is_not_there_is_refused(make: Make, spec: Spec) -> None:
    live = with_gpu(make)
    with pytest.raises(ValueError, match="no device 'cuda:1'"):
        live.session.estimates.ask(spec, "cuda:0")


@pytest.mark.process
@pytest.mark.usefixtures("echo")
def test_a_simulated_gpu_is_no_way_out_for_a_run_on_a_real_device(make: Make) -> None:
    live = make(simulation=Simulation((8 * GIB, 16 * GIB)))
    live.monitor.has(gpu(0))
    live.monitor.host(3 * GIB)
    live.monitor.card(gpu(0), 4 * GIB)
    live.settle()
    elsewhere = {}
    for device in ("cpu", "cuda:0", "sim:0"):
        live.session.estimates.ask(TrainingSpec(), device, alternatives=False)
        elsewhere[device] = {target["device"] for target in asked(live)["elsewhere"]}
    assert elsewhere == {"cpu": {"cuda:0"}, "cuda:0": {"cpu"}, "sim:0": {"cpu", "cuda:0", "sim:1"}}


@pytest.mark.process
@pytest.mark.usefixtures("echo")
def test_a_target_says_how_the_gpu_is_made_as_far_as_its_driver_tells(make: Make) -> None:
    live = with_gpu(make)
    assert live.session.estimates.target("cuda:0").architecture == Architecture((9, 0), A100.multiprocessors)
    live.session.estimates.ask(TrainingSpec(), "cuda:0")
    design = {"capability": [9, 0], "multiprocessors": A100.multiprocessors, "cudnn_converts": True}
    assert asked(live)["target"]["architecture"] == design


@pytest.mark.process
@pytest.mark.usefixtures("echo")
def test_a_function_is_asked_about_by_its_name(make: Make) -> None:
    live = make(simulation=Simulation((8 * GIB,)))
    live.session.estimates.ask_callable("mine.train:build", 4, "sim:0")
    told = asked(live)
    assert (told["callable"], told["steps"], told["alternatives"]) == ("mine.train:build", 4, True)
    assert "spec" not in told


@pytest.mark.process
@pytest.mark.usefixtures("echo")
def test_closing_the_session_ends_the_prediction(make: Make) -> None:
    live = make(simulation=Simulation((8 * GIB,)))
    live.session.estimates.ask(TrainingSpec(), "sim:0")
    assert live.session.close()
    with pytest.raises(RuntimeError, match="closed"):
        live.session.estimates.ask(TrainingSpec(), "sim:0")


@pytest.mark.process
@pytest.mark.parametrize(("cap", "allowed"), [(MemoryCap(size=GIB), GIB), (MemoryCap(share=0.5), 4 * GIB)])
def test_the_process_is_told_of_no_more_room_than_the_cap_leaves_beside_the_context(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cap: MemoryCap, allowed: int
) -> None:
    script = tmp_path / "echo.py"
    script.write_text(ECHO, encoding="utf-8")
    monkeypatch.setattr(estimator, "COMMAND", (sys.executable, "-I", str(script)))
    monkeypatch.setattr(session_estimates, "OWN_CODE_COMMAND", (sys.executable, "-I", str(script)))
    estimates = make(simulation=Simulation((8 * GIB, 2 * GIB))).session.estimates
    for ask in (
        lambda: estimates.ask(TrainingSpec(), "sim:0", memory_cap=cap),
        lambda: estimates.ask_callable("a:b", 3, "sim:0", memory_cap=cap),
    ):
        ask()
        answer = estimates.wait(30.0)
        assert answer is not None and answer.estimate is not None
        told = json.loads(answer.estimate.method)
        assert told["target"]["free_bytes"] == allowed + CONTEXT_BYTES
        others = {target["device"]: target["free_bytes"] for target in told["elsewhere"]}
        assert others["sim:1"] == GIB + CONTEXT_BYTES
        assert others["cpu"] == estimates.target("cpu").free_bytes


@pytest.mark.parametrize(("device", "words"), [("cpu", "reserves on a GPU only"), ("sim:0", "sim:0 has 8.00 GiB")])
def test_a_cap_that_a_device_cannot_bear_is_refused(make: Make, device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(simulation=Simulation((8 * GIB,))).session.estimates.ask(
            TrainingSpec(), device, memory_cap=MemoryCap(size=9 * GIB)
        )
