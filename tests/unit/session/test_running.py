"""Runs of a session and their guards: one at a time, in whose process, stopped in words, over when stored."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from gpudash.devices.names import Simulation
from gpudash.session.live.machine import measured_context
from gpudash.session.live.running import A_RUN_IS_ON, LEAVING_S, RunGuards, Running
from gpudash.session.predicting.estimates import HOPPER_CONTEXT_BYTES
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES
from gpudash.sources.simulated_gpus import CardReader
from gpudash.specs import ComparisonSpec, PipelineSpec, PressureSpec, TrainingSpec, build
from gpudash.system.settings import Settings
from gpudash.telemetry.records import RunEnd, RunStarted, Sample, Warning
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import CPU_TORCH, CUDA_TORCH, HOST_TOTAL, PATIENCE_S, Live, Make, gpu


def test_a_run_is_on_from_its_request_until_its_end_is_stored(make: Make) -> None:
    live = make()
    number = live.session.start_run(PipelineSpec(), "cpu")
    assert live.session.running and not live.session.runs.wait(0.0)
    live.worker.begin()
    live.seen.wait_event(RunStarted, run_id=number)
    live.worker.finish()
    assert live.session.runs.wait(PATIENCE_S)
    assert not live.session.running
    assert live.session.store.run is not None and live.session.store.run.status == "finished"


def test_a_start_in_the_moment_of_an_end_waits_until_that_is_stored(make: Make) -> None:
    live = make(settings=Settings(guard=False))
    for number in range(1, 201):
        assert live.session.start_run(PipelineSpec(), "cpu") == number
        live.worker.begin()
        live.worker.finish()  # the worker is free, the session has not heard of it


def test_an_end_that_cannot_be_stored_refuses_the_next_run(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.session.live.running.LEAVING_S", 0.0)
    live = make()
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    with live.session.store.lock:
        live.worker.finish()
        with pytest.raises(RuntimeError, match="A run is in progress"):
            live.session.start_run(PipelineSpec(), "cpu")
    assert live.session.runs.wait(PATIENCE_S)
    assert live.session.start_run(PipelineSpec(), "cpu") == 2


def test_the_late_end_of_a_former_run_ends_no_other(make: Make) -> None:
    live = make(settings=Settings(guard=False))
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(PATIENCE_S)
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    live.session.emit(RunEnd(time_s=1.0, run_id=1, status="finished", seconds=1.0, steps=1, result={}))
    live.settle()
    assert live.session.running


def test_a_run_that_ends_at_once_is_not_waited_for_for_ever(make: Make) -> None:
    live = make()

    def run(_request: Any) -> None:
        live.worker.begin()
        live.worker.finish()

    live.worker.on_submit = run
    for number in (1, 2, 3):
        assert live.session.start_run(PipelineSpec(), "cpu") == number
        assert live.session.runs.wait(PATIENCE_S)


def test_a_run_refused_by_a_closed_worker_leaves_no_run_behind(make: Make) -> None:
    live = make()
    live.worker.closed = True
    with pytest.raises(RuntimeError, match="closed"):
        live.session.start_run(PipelineSpec(), "cpu")
    assert not live.session.running


def test_what_the_device_cannot_do_is_refused_before_the_run(make: Make) -> None:
    live = make()
    with pytest.raises(ValueError, match="--move cuda"):
        live.session.start_run(PipelineSpec(move="cuda"), "cpu")
    assert live.worker.request is None


def test_a_reading_above_the_guard_warns_and_then_stops_the_run(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    live.monitor.host(5 * GIB - MIB)
    live.settle()
    assert not live.worker.stopped.is_set()
    live.monitor.host(5 * GIB)
    assert live.worker.stopped.wait(PATIENCE_S)
    assert live.worker.because is not None and "1.00 GiB above the use at the start" in live.worker.because
    warning = live.seen.wait_event(Warning, level="critical", device="host")
    assert warning.text == live.worker.because
    assert warning.run_id == 1


def test_the_guard_of_a_gpu_is_told_as_that_gpus(make: Make) -> None:
    live = make()
    card = gpu(0)
    live.monitor.has(card)
    live.worker.torch(CUDA_TORCH)
    live.monitor.card(card, 4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cuda:0", guard_bytes=GIB)
    live.monitor.card(card, 6 * GIB)
    assert live.worker.stopped.wait(PATIENCE_S)
    assert live.seen.wait_event(Warning, level="critical").device == card.uuid


def test_the_first_allocation_of_a_run_can_be_refused(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    assert live.worker.request.refuse(512 * MIB, "cpu") is None
    sentence = live.worker.request.refuse(600 * MIB, "cpu")
    assert sentence is not None and "asks for 600 MiB more" in sentence
    assert live.seen.wait_event(Warning, level="critical", device="host").text == sentence


def test_without_a_guard_of_its_own_a_run_is_held_below_the_hosts_critical_level(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu")
    assert live.worker.request.refuse(11 * GIB, "cpu") is None
    assert live.worker.request.refuse(GIB, "cpu") is not None


def test_the_hosts_memory_is_guarded_in_a_run_on_a_gpu_too(make: Make) -> None:
    live = make()
    live.monitor.has(gpu(0))
    live.worker.torch(CUDA_TORCH)
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cuda:0")
    assert live.worker.request.refuse(100 * GIB, "cuda:0") is None
    assert live.worker.request.refuse(100 * GIB, "cpu") is not None
    assert live.seen.wait_event(Warning, level="critical").device == "host"


def test_no_guard_is_set_where_the_settings_want_none(make: Make) -> None:
    live = make(settings=Settings(guard=False))
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu")
    assert live.worker.request.refuse(100 * GIB, "cpu") is None
    live.monitor.host(HOST_TOTAL)
    live.settle()
    assert not live.worker.stopped.is_set()


def test_a_guard_without_a_reading_to_put_it_above_is_refused(make: Make) -> None:
    live = make()
    live.monitor.has(gpu(0))
    live.worker.torch(CUDA_TORCH)
    live.settle()
    with pytest.raises(ValueError, match="needs a reading"):
        live.session.start_run(PressureSpec(), "cuda:0", guard_bytes=GIB)
    assert not live.session.running


def test_a_gpu_that_nobody_reads_is_not_guarded_by_the_hosts_memory(make: Make) -> None:
    live = make()
    live.worker.torch(
        {**CUDA_TORCH, "devices": [{"name": "cuda:0", "product": "NVIDIA H200", "total_bytes": 141 * GIB}]}
    )
    live.monitor.host(4 * GIB)
    live.settle()
    assert live.session.default_device() == "cuda:0"
    assert (live.session.gpu_problem or "").startswith("NVIDIA's library of readings (NVML) answers for no GPU: ")
    with pytest.raises(ValueError, match="needs a reading"):
        live.session.start_run(PressureSpec(), "cuda:0", guard_bytes=GIB)
    live.session.start_run(PressureSpec(), "cuda:0")
    assert live.worker.request.memory() is None


def test_a_guard_ends_with_its_run(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(PATIENCE_S)
    live.monitor.host(6 * GIB)
    live.settle()
    assert not [r for r in live.seen.records if isinstance(r, Warning) and r.level == "critical"]
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    live.monitor.host(6 * GIB + MIB)
    live.settle()
    assert not live.worker.stopped.is_set()


def test_a_crossing_while_a_run_is_being_requested_still_stops_it(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.worker.on_submit = lambda _request: live.monitor.host(6 * GIB)
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    assert live.worker.stopped.wait(PATIENCE_S)


def test_a_warning_during_a_run_belongs_to_it(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    run = live.session.start_run(PressureSpec(), "cpu")
    live.worker.begin()
    live.monitor.host(int(0.9 * HOST_TOTAL))
    assert live.seen.wait_event(Warning, level="warning").run_id == run


class Program:
    """A watched program that notes what is asked of it."""

    def __init__(self, told: list[Any], name: str, *, closes: bool = True) -> None:
        self.reported = told
        self.name = name
        self.closes = closes
        told.append(("begins", name))

    stopping = None
    finding_need_s = None
    after_end = ""

    def stop(self, when: str) -> None:
        self.reported.append(("stops", self.name, when))

    def shut_down(self, when: str) -> None:
        self.reported.append(("shut down", self.name, when))

    def wait_left(self) -> None:
        """It has nothing to wait for."""

    busy_s = 0.0

    def save_snapshot(self) -> None:
        """Nothing is saved."""

    def close(self, timeout_s: float) -> bool:
        self.reported.append(("closes", self.name, timeout_s))
        return self.closes


def running() -> Running:
    nothing: Any = SimpleNamespace(disarm=lambda: None, close=lambda timeout_s: True, stop=lambda: None)
    return Running(nothing, nothing, nothing, lambda: None, lambda: nothing)


def end(runs: Running) -> None:
    runs.take_end(RunEnd(time_s=1.0, run_id=runs.run_id, status="finished", seconds=1.0, steps=0, result={}))


def test_the_next_program_begins_when_the_one_before_has_taken_back_what_it_showed() -> None:
    runs, told = running(), list[Any]()
    runs.watch(lambda _run_id: Program(told, "first"))
    with pytest.raises(RuntimeError, match=A_RUN_IS_ON):
        runs.watch(lambda _run_id: Program(told, "too early"))
    end(runs)
    assert runs.watched is None and not runs.on
    runs.watch(lambda _run_id: Program(told, "second"))
    assert told == [("begins", "first"), ("closes", "first", LEAVING_S), ("begins", "second")]
    runs.stop("after a press")
    runs.stop("after the end", shutdown=True)
    assert told[-2:] == [("stops", "second", "after a press"), ("shut down", "second", "after the end")]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_closing_waits_for_the_last_program_also_after_its_end(ended: bool, closes: bool) -> None:
    runs, told = running(), list[Any]()
    runs.watch(lambda _run_id: Program(told, "only", closes=closes))
    if ended:
        end(runs)
    assert runs.close(0.7) is closes
    assert told[-1] == ("closes", "only", 0.7)


def known(live: Live, torch: dict[str, object] = CPU_TORCH) -> Live:
    live.worker.torch(torch)
    live.settle()
    return live


@pytest.mark.process
@pytest.mark.parametrize(
    ("device", "asked", "isolated"),
    [
        ("cuda:0", None, True),
        ("cuda:0", False, False),
        ("cpu", None, False),
        ("cpu", True, True),
        ("sim:0", None, False),
        ("sim:0", True, True),
    ],
)
def test_runs_on_cuda_have_a_process_of_their_own_unless_told_otherwise(
    make: Make, device: str, asked: bool | None, isolated: bool
) -> None:
    live = make(simulation=Simulation((GIB,)))
    live.monitor.has(gpu(0))
    known(live, CUDA_TORCH).session.start_run(PipelineSpec(), device, isolate=asked)
    assert live.worker.request.isolate is isolated
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(10.0)


@pytest.mark.process
@pytest.mark.parametrize(("asked", "isolated"), [(None, True), (False, False)])
def test_a_comparison_has_a_process_of_its_own_because_the_window_would_disturb_it(
    make: Make, asked: bool | None, isolated: bool
) -> None:
    live = known(make())
    live.session.start_run(ComparisonSpec(devices="cpu,cpu"), "cpu", isolate=asked)
    assert live.worker.request.isolate is isolated
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(10.0)


@pytest.mark.process
def test_the_runs_own_process_counts_as_ours_while_it_lasts(make: Make) -> None:
    live = known(make())
    live.session.start_run(PipelineSpec(), "cpu", isolate=True)
    live.worker.request.on_host(4711)
    live.worker.request.on_host(None)
    assert live.monitor.adopted == [4711, None]
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(10.0)


def test_a_guard_believes_a_run_that_knows_of_more_than_the_newest_reading() -> None:
    told: list[tuple[str, str]] = []
    guards = RunGuards(lambda memory, sentence: told.append((memory, sentence)))
    guards.arm({"SIM-0": (GIB, "the guard")})
    guards.observe(Sample(0.0, "gpu", "SIM-0", {"used_bytes": 100 * MIB, "total_bytes": 2 * GIB}))
    refuse = guards.refusal("SIM-0")
    assert refuse(500 * MIB, "sim:0", 100 * MIB) is None
    guards.observe(Sample(0.1, "gpu", "SIM-0", {"used_bytes": 100 * MIB, "total_bytes": 2 * GIB}))
    sentence = refuse(500 * MIB, "sim:0", 600 * MIB)
    assert sentence is not None and "are in use, and the run asks for 500 MiB more" in sentence
    assert told == [("SIM-0", sentence)]
    assert refuse(500 * MIB, "sim:0") is None  # by the reading alone it would have been granted


@pytest.mark.process
@pytest.mark.parametrize(("device", "kept"), [("cuda:0", 420 * MIB), ("sim:0", None)])
def test_what_its_context_took_is_kept_for_later_predictions(make: Make, device: str, kept: int | None) -> None:
    live = make(simulation=Simulation((GIB,)))
    live.monitor.has(gpu(0))
    known(live, CUDA_TORCH).session.start_run(PipelineSpec(), device, isolate=True)
    values = {"used_bytes": 2 * GIB, "free_bytes": 22 * GIB, "total_bytes": 24 * GIB, "process_bytes": GIB}
    held = {"allocated_bytes": 0, "reserved_bytes": GIB - 420 * MIB}
    for uuid, name in (("GPU-0", "cuda:0"), ("SIM-0", "sim:0")):
        live.session.emit(Sample(1.0, "allocator", name, held))
        live.session.emit(Sample(1.0, "gpu", uuid, values))
    live.settle()
    live.worker.request.on_host(4711)
    live.worker.request.on_host(None)
    assert measured_context({"cuda:0": "GPU-0", "sim:0": "SIM-0"}[device]) == kept
    # Its readings are zero now, and the next run makes a context anew.
    live.session.emit(Sample(2.0, "allocator", "cuda:0", {"allocated_bytes": 0, "reserved_bytes": 0}))
    live.session.emit(Sample(2.0, "gpu", "GPU-0", {**values, "used_bytes": GIB, "process_bytes": 0}))
    live.settle()
    assert live.session.estimates.target("cuda:0").overhead_bytes == (kept or HOPPER_CONTEXT_BYTES)
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(10.0)


def card(index: int, reserved: int) -> dict[str, Any]:
    return {
        "index": index,
        "capacity_bytes": GIB,
        "reserved_bytes": reserved,
        "context_bytes": CONTEXT_BYTES,
        "others_bytes": {"4194305": 5 * MIB},
        "busy_s": 0.5,
    }


def used(reader: CardReader, now_s: float) -> list[Any]:
    rows = [found for found in reader.read(now_s) if isinstance(found, Sample) and found.table == "gpu"]
    return [row.values["used_bytes"] for row in rows]


@pytest.mark.process
def test_its_simulated_cards_are_shown_while_it_tells_of_them_and_the_own_ones_after_it(make: Make) -> None:
    live = known(make(simulation=Simulation((GIB, GIB))))
    live.session.start_run(PipelineSpec(), "sim:0", isolate=True)
    on_cards, reader = live.worker.request.on_cards, CardReader(live.monitor.cards)
    assert used(reader, 0.0) == [0, 0]
    on_cards(4711, [card(0, 64 * MIB), card(1, 2 * MIB)])
    assert used(reader, 1.0) == [CONTEXT_BYTES + 69 * MIB, CONTEXT_BYTES + 7 * MIB]
    rows = [found for found in reader.read(9.0) if isinstance(found, Sample) and found.table == "process"]
    assert (rows[0].values["pid"], rows[0].values["name"]) == (4711, "gpudash-run")
    on_cards(4711, [card(0, 32 * MIB)])
    assert used(reader, 10.0) == [CONTEXT_BYTES + 37 * MIB, 0]
    on_cards(4711, ())
    assert used(reader, 11.0) == [0, 0]
    assert os.getpid() not in {
        row.values["pid"] for row in reader.read(20.0) if isinstance(row, Sample) and row.table == "process"
    }
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(10.0)


def test_each_rank_on_a_simulated_card_is_shown_with_its_own_process(make: Make) -> None:
    live = known(make(simulation=Simulation((GIB, GIB))))
    live.session.start_run(build(TrainingSpec, {"devices": "sim:0,sim:1"}), "sim:0")
    request, reader = live.worker.request, CardReader(live.monitor.cards)
    assert [found.uuid for found in request.devices] == [found.uuid for found in request.cards]
    request.on_cards(4711, [{**card(0, 64 * MIB), "pid": 4711}, {**card(1, 2 * MIB), "pid": 4712}])
    rows = [found for found in reader.read(0.0) if isinstance(found, Sample) and found.table == "process"]
    assert {4711, 4712} <= {row.values["pid"] for row in rows}
    request.on_cards(4711, ())
    assert used(reader, 1.0) == [0, 0]
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(10.0)
