"""The measurements themselves, tried on the simulated GPU: there the program must agree with itself to the byte."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, CachingAllocator, DeviceMemory
from gpudash.memory.predicting.architecture import (
    HOPPER_WORKSPACE_BYTES,
    USUAL_WORKSPACE_BYTES,
    WORKSPACE_CACHE_VARIABLE,
)
from gpudash.memory.snapshot.history.model import DeviceSnapshot, TraceEntry
from gpudash.memory.snapshot.replay.placements import replay
from gpudash.memory.snapshot.replay.what_if import WhatIf
from gpudash.speed.work import KINDS, PRODUCT, UNKNOWN, StepWork
from gpudash.units import GIB, MIB
from tests.gpu import collect, isolation, operations, out_of_memory, prediction, snapshots, speed
from tests.gpu.child import ROOT, asked
from tests.gpu.fixtures import columns, rebuilt
from tests.gpu.recording import Allocation, differences, packed, peak, shown, unpacked
from tests.speed import card
from tests.unit.memory.snapshot.made import events

SIM = "sim:0"


def requests(*sizes: int) -> list[Allocation]:
    return [Allocation(size, (f"model.py:{size} step",)) for size in sizes]


def test_predicted_and_measured_peaks_are_the_same_on_the_simulated_gpu() -> None:
    name = "transformer_fp32"
    specs = {name: prediction.SMALL_SPECS[name]}
    found = prediction.measure(SIM, 64 * GIB, specs, stacks="python")

    spec = found["specs"][name]
    assert spec["problems"] == [] and spec["ended"] == "RunFinished"
    for figure in ("peak_allocated_bytes", "peak_reserved_bytes"):
        assert spec[figure]["error_bytes"] == 0
        assert found["summary"][figure]["under"] == 0
    assert spec["requests"]["predicted"] > 100 and spec["requests"]["differences"] == 0
    assert spec["at_peak"] == []


def test_an_operation_and_a_step_take_time_on_the_device_and_no_more_of_the_host() -> None:
    assert len(speed.OPERATIONS) >= 200 and len(speed.STEPS) == 10
    found = asked(speed.measure, SIM, speed.SMALL_OPERATIONS)["operations"]
    found |= asked(speed.measure_steps, SIM, speed.SMALL_STEPS)["steps"]
    assert set(found) == {*speed.SMALL_OPERATIONS, *speed.SMALL_STEPS}
    assert all(0 < timed["host_s"] <= timed["seconds"] for timed in found.values()), found


def test_the_work_of_every_operation_and_step_that_is_timed_can_be_followed() -> None:
    names = {"operations": list(speed.OPERATIONS), "steps": list(speed.STEPS)}
    found = asked(speed.follow, "none", names, limit_s=150)
    works = {name: StepWork.from_dict(found[name]) for timed in names.values() for name in timed}
    assert all(work.operations or work.copies for work in works.values())
    assert {operation.kind for work in works.values() for operation in work.operations} == set(KINDS) - {UNKNOWN}


def test_what_was_timed_on_a_card_stands_beside_what_is_predicted_of_it() -> None:
    square, step = "mm 4096×4096×4096 fp16", "perceptron, batch 64"
    times = {square: {"seconds": 9e-4, "host_s": 1e-5}, "mm 64×64×64 fp16": {"seconds": 1e-5, "host_s": 1e-5}}
    measured = {
        "hardware": {"product": "NVIDIA GeForce RTX 4090"},
        "operation_times": {"operations": {**times, "sort 16384": {"error": "RuntimeError"}}},
        "step_times": {"steps": {step: {"seconds": 1e-3, "host_s": 1e-3}}},
    }
    found = {row.name: row for row in card.rows(measured)}
    # what only waited for the host says nothing of a kernel
    assert set(found) == {square, step}
    assert (found[square].kind, found[step].kind) == (PRODUCT, "step")
    assert abs(found[square].error) < 0.5
    assert "| product | 1 |" in "\n".join(card.table(list(found.values())))


def test_an_operation_asks_for_its_result_and_for_the_workspace_of_the_first_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WORKSPACE_CACHE_VARIABLE, "1")
    found = asked(operations.follow, "dry", {"names": ["matmul_fp32"], "stacks": "python"})["matmul_fp32"]

    assert found["first"]["requests"]["sizes"] == [16 * MIB, USUAL_WORKSPACE_BYTES]
    assert found["warm"]["requests"]["sizes"] == [16 * MIB]
    assert found["warm"]["peak_bytes"] == found["warm"]["requested_bytes"] == 16 * MIB
    assert operations.compared(found, found)["same"]


def test_a_dry_run_beside_a_card_is_of_its_design() -> None:
    hopper = {"capability": [9, 0], "multiprocessors": 132, "cudnn_converts": True}
    argument = {"names": ["matmul_fp32"], "stacks": "python"}
    found = asked(operations.follow, "dry", argument, card=hopper)["matmul_fp32"]

    assert found["first"]["requests"]["sizes"] == [16 * MIB, HOPPER_WORKSPACE_BYTES]


def test_a_recorded_training_is_replayed_and_packed_without_loss() -> None:
    found = snapshots.one(SIM, "oom")

    assert found["right"] and found["rebuilt_alike"], found
    assert found["actions"]["oom"] == 1 and found["replay"]["retries"] == 1


def test_a_leak_under_a_cap_is_explained_without_folders() -> None:
    found = out_of_memory.measure(SIM, ("ramp",))

    assert found["ramp"]["kind"] == "OutOfMemory" and found["ramp"]["next_run"] == "RunFinished"
    assert found["ramp"]["explanation"]["verdict"] == "leak"
    assert found["closed"] and "/" not in found["ramp"]["explanation"]["owners"][0]["place"]


def fail(device: Any, argument: str, tell: Any) -> None:
    tell("began", argument)
    raise ValueError(f"no {argument} on {device}")


def test_a_measurement_that_fails_keeps_what_it_has_told() -> None:
    found = asked(fail, "none", "luck", limit_s=60)

    assert found["began"] == "luck"
    assert "ValueError: no luck on None" in found["error"]


def wait(_device: Any, _argument: Any, tell: Any) -> None:
    tell("began", True)
    sys.stdin.fileno()
    while True:
        pass


def test_a_measurement_that_does_not_end_is_stopped() -> None:
    found = asked(wait, "none", limit_s=1)

    assert found["error"].startswith("stopped after 1 s")


def test_every_run_in_a_process_of_its_own_is_measured_and_none_harms_the_next() -> None:
    found = asked(isolation.measure, SIM, limit_s=150)

    assert "error" not in found and found["closed"] is True
    assert found["training"]["status"] == found["afterwards"]["status"] == "finished"
    assert found["out_of_memory"]["error"] == "sim" and found["poisoned"]["kind"] == "RunFailed"
    assert found["deaf"]["status"] == "cancelled" and found["deaf"]["to_stop_s"] < 1.0
    for name in isolation.specs():
        used = found[name]["used_bytes"]
        assert used["after"] == used["before"] and found[name]["to_start_s"] > 0


def test_one_measurement_that_raises_does_not_lose_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "stop_at", lambda _moment: None)
    collection = collect.Collection(tmp_path, SIM, small=True)
    plan = {"hardware": lambda: {"product": "card"}, "broken": lambda: 1 // 0, "whole": lambda: {"bytes": 3}}
    monkeypatch.setattr(collection, "plan", lambda: plan)
    collection.run()

    found = json.loads((tmp_path / "measurements.json").read_text())
    assert found["whole"] == {"bytes": 3} and "ZeroDivisionError" in found["broken"]["error"]


def test_what_the_budget_leaves_no_time_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "stop_at", lambda _moment: None)
    collection = collect.Collection(tmp_path, SIM, budget_s=-1, small=True)
    collection.run(["copies"])

    assert collection.found["hardware"] == {"error": "there was no time left for it"}


def test_sequences_that_agree_do_not_differ() -> None:
    assert differences(requests(1, 2, 3, 4, 5), requests(1, 2, 3)) == []


def test_a_request_that_only_the_gpu_makes_is_told_with_its_frames() -> None:
    (found,) = differences(requests(1, 2, 900, 3, 4, 5), requests(1, 2, 3, 4, 5))

    assert found["at"] == [2, 2] and found["agreed"] and found["only_predicted"] == []
    assert found["only_real"] == [{"size": 900, "frames": ["model.py:900 step"]}]


def test_a_request_of_another_size_is_told_as_both() -> None:
    (found,) = differences(requests(1, 2, 30, 4, 5, 6), requests(1, 2, 3, 4, 5, 6))

    assert (found["real_bytes"], found["predicted_bytes"]) == (30, 3)


def test_what_is_predicted_and_never_asked_is_told() -> None:
    (found,) = differences(requests(1, 2), requests(1, 2, 3, 4))

    assert found["predicted_bytes"] == 7 and not found["agreed"]


@given(st.lists(st.tuples(st.integers(1, 2**40), st.sampled_from([(), ("a.py:1 f",), ("b.py:2 g", "x")]))))
def test_packing_requests_loses_nothing(rows: list[tuple[int, tuple[str, ...]]]) -> None:
    given_requests = [Allocation(*row) for row in rows]
    assert unpacked(json.loads(json.dumps(packed(given_requests)))) == given_requests


def test_stacks_are_shown_without_folders_and_machinery() -> None:
    frames = [
        {"name": "torch::unwind::unwind()", "filename": "libtorch_cpu.so", "line": 1},
        {"name": "at::cuda::getCurrentCUDABlasHandle()", "filename": "libtorch_cuda.so", "line": 2},
        {"name": "_PyEval_EvalFrameDefault", "filename": "python", "line": 3},
        {"name": "step", "filename": "/home/someone/model.py", "line": 4},
    ]
    assert shown(frames) == ("at::cuda::getCurrentCUDABlasHandle()", "model.py:4 step")


def test_the_peak_is_that_of_what_lives_at_once() -> None:
    events = [("alloc", 1, 10), ("alloc", 2, 30), ("free_requested", 1, 10), ("alloc", 3, 5), ("free_requested", 2, 30)]
    entries = [{"action": action, "addr": address, "size": size} for action, address, size in events]
    assert peak(entries) == (40, {10: 1, 30: 1})


def test_an_option_that_a_remedy_gives_anew_is_left_out() -> None:
    command = ("run", "training", "--batch", "8", "--checkpointing", "--steps", "4")
    assert out_of_memory.without(command, ["--batch", "2", "--checkpointing"]) == ["run", "training", "--steps", "4"]


PROGRAMS = st.lists(
    st.tuples(
        st.sampled_from(("malloc", "malloc", "free", "free used", "wait", "empty")),
        st.one_of(st.integers(1, MIB), st.integers(MIB, 60 * MIB)),
        st.integers(0, 2),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, st.booleans(), st.sampled_from((150 * MIB, 4 * GIB)))
def test_a_snapshot_taken_apart_into_columns_is_replayed_alike(
    program: list[tuple[str, int, int]], expandable: bool, capacity: int
) -> None:
    told: list[TraceEntry] = []
    chosen = AllocatorSettings(expandable_segments=expandable)
    stack: list[int] = [0]

    def observe(action: str, address: int, size: int, stream: int) -> None:
        free = address if action == "oom" else None
        told.append(
            TraceEntry(action, 0 if action == "oom" else address, size, stream, stack=stack[0], device_free=free)
        )

    model = CachingAllocator(DeviceMemory(capacity), chosen, observer=observe)
    live: list[int] = []
    for what, number, stream in program:
        if what == "malloc":
            with suppress(AllocationRefused):
                live.append(model.malloc(number, stream=stream))
        elif what == "wait":
            model.synchronize()
        elif what == "empty":
            stack[0] = 1
            model.empty_cache()
            stack[0] = 0
        elif live:
            address = live.pop(number % len(live))
            if what == "free used":
                model.record_stream(address, 7)
            model.free(address)
    stacks = ((("model.py", 1, "step"),), (("memory.py", 2, "empty_cache"),))
    device = DeviceSnapshot(0, tuple(model.segments()), events(told), chosen, stacks)
    again = rebuilt(columns(device))
    assert replay(again) == replay(device)
    assert WhatIf(again).run(4 * GIB) == WhatIf(device).run(4 * GIB)
    assert [entry.action for entry in again.trace] == [entry.action for entry in device.trace]
    assert [entry.size for entry in again.trace] == [entry.size for entry in device.trace]
    assert [segment.total_size for segment in again.segments] == [segment.total_size for segment in device.segments]


def test_gpu_tests_are_kept_apart_from_those_of_the_measurements() -> None:
    names = {path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    needing_none = {Path(__file__).name, "test_recorded.py"}
    assert names - needing_none == {name for name in names if name.endswith("_on_a_gpu.py")}
