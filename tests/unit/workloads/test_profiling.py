"""A profile of the next steps: what is told of it, its table and timeline, and which functions were on at a moment."""

from __future__ import annotations

import gzip
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.telemetry.records import Note, RunEnd, StepFinished, Topic
from gpudash.units import MIB
from gpudash.workloads import profiling
from gpudash.workloads.profiling import MOST_ROWS, CallFrames, Frame, ProfileRequest, operators, stack_lines, timeline
from gpudash.workloads.running.context import Context
from tests.unit.workloads.conftest import Bench, MakeSpec

TRAINING = {"model": "mlp", "width": 64, "depth": 2, "batch": 16, "steps": 12, "epochs": 1}


def told(bench: Bench) -> Note:
    notes = [note for note in bench.of(Note) if note.topic == Topic.OPERATORS]
    assert len(notes) == 1, [note.text for note in notes]
    return notes[0]


def profiled(bench: Bench, wish: ProfileRequest, workload: str = "training", **more: Any) -> Note:
    values = more.pop("values", TRAINING)
    ending = bench.run(workload, request={"profile": wish, **more.pop("request", {})}, **more, **values)
    assert isinstance(ending, RunEnd) and not ending.ended_badly, ending
    return told(bench)


def test_the_steps_after_the_first_are_told_with_their_operators_and_what_they_cost(
    bench: Bench, tmp_path: Path
) -> None:
    note = profiled(bench, ProfileRequest(3, str(tmp_path / "run")))

    facts, rows = note.details, {row["name"]: row for row in note.details["operators"]}
    assert (facts["first_step"], facts["steps"], facts["device"]) == (2, 3, "cpu")
    assert note.text.startswith("Profiled steps 2 to 4: ")
    assert rows["aten::addmm"]["calls"] == 3 * 3 and rows["aten::addmm"]["shapes"] == "64, 16×32, 32×64"
    assert any("training_step.py" in frame and "Mlp.forward" in frame for frame in rows["aten::addmm"]["stack"])
    assert all(0 <= row["cpu_self_seconds"] <= row["cpu_total_seconds"] + 1e-6 for row in rows.values())
    assert rows["aten::addmm"]["cpu_total_bytes"] >= 3 * 2 * 16 * 64 * 4
    slowdown = facts["step_seconds"] / facts["plain_step_seconds"]
    assert facts["slowdown"] == (pytest.approx(slowdown) if slowdown > 1 else None)
    assert facts["cost_seconds"] > 0


@pytest.mark.parametrize(
    ("step_s", "plain_s", "words"),
    [
        (0.02, 0.01, "With the profiler a step took 20.0 ms, without it 10.0 ms; starting and reading it took 1.0 s."),
        (0.01, 0.02, "What the profiler cost the steps is not known: those before it were no faster."),
        (0.01, None, ""),
    ],
)
def test_steps_are_never_said_to_be_faster_with_the_profiler(step_s: float, plain_s: float | None, words: str) -> None:
    slowdown = step_s / plain_s if plain_s and step_s > plain_s else None
    facts = {"first_step": 2, "steps": 3, "wanted_steps": 3, "operators": [], "slowdown": slowdown}
    facts |= {"step_seconds": step_s, "plain_step_seconds": plain_s, "cost_seconds": 1.0}
    assert profiling._text(facts) == f"Profiled steps 2 to 4: no operator ran. {words}".strip()


def test_the_timeline_has_steps_stages_and_operators_and_is_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "MOST_SPANS", 100)
    facts = profiled(bench, ProfileRequest(3)).details

    timeline = facts["timeline"]
    named = {timeline["names"][span[2]]: span for span in timeline["spans"]}
    assert named["step 2"][1] == 0 and named["forward"][1] == 1 and named["backward"][1] == 1
    assert len(timeline["spans"]) == 100 and timeline["left_out"] > 0
    whole_us = timeline["seconds"] * 1e6 + 2
    assert all(start >= 0 and start + length <= whole_us for *_, start, length in timeline["spans"])
    assert len(json.dumps(facts)) < 64 * 1024


def test_the_trace_beside_the_recording_is_torchs_own(bench: Bench, tmp_path: Path) -> None:
    facts = profiled(bench, ProfileRequest(2, str(tmp_path / "new" / "run"))).details

    trace = tmp_path / "new" / "run-step-2.trace.json.gz"
    assert facts["trace"] == str(trace) and [trace] == list(trace.parent.iterdir())
    with gzip.open(trace) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"aten::addmm", "step 2", "forward"} <= names


def test_a_profile_changes_no_figure_of_the_run(bench: Bench) -> None:
    def losses(run_id: int) -> list[float]:
        return [step.loss for step in bench.of(StepFinished, run_id)]

    bench.run("training", **TRAINING)
    bench.run("training", request={"profile": ProfileRequest(3)}, **TRAINING)

    assert losses(1) == losses(2) and len(losses(1)) == 12


def test_steps_of_a_run_that_is_on_are_profiled_from_the_next_step_on(bench: Bench, custom: MakeSpec) -> None:
    go, reached = threading.Event(), threading.Event()

    def work(_spec: Any, context: Context) -> dict[str, Any]:
        for step in range(1, 9):
            if step == 4:
                reached.set()
                assert go.wait(30)
            torch.ones(100).add_(step)
            context.progress(step, 8)
        return {}

    run = bench.begin(custom(work))
    assert reached.wait(30)
    bench.worker.profile(ProfileRequest(2))
    with pytest.raises(RuntimeError, match="already"):
        bench.worker.profile(ProfileRequest(2))
    go.set()
    bench.end(run)

    facts = told(bench).details
    assert (facts["first_step"], facts["steps"]) == (5, 2)
    assert {"aten::ones", "aten::add_"} <= {row["name"] for row in facts["operators"]}


def test_without_a_run_there_is_nothing_to_profile(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="No run is in progress"):
        bench.worker.profile(ProfileRequest(2))


def test_a_run_of_one_step_is_profiled_from_its_beginning(bench: Bench) -> None:
    note = profiled(bench, ProfileRequest(5, from_start=True), "pipeline", values={"rows": 4})

    assert note.text.startswith("Profiled step 1 (5 were asked for)")
    named = note.details["timeline"]["names"]
    assert {"step 1", "create", "operate", "aten::add"} <= set(named)


@pytest.mark.process
def test_a_run_in_a_process_of_its_own_tells_the_same(bench: Bench, tmp_path: Path) -> None:
    wish = ProfileRequest(5, str(tmp_path / "run"), from_start=True)
    note = profiled(bench, wish, "pipeline", values={"rows": 4}, request={"isolate": True})

    assert note.text.startswith("Profiled step 1 (5 were asked for)")
    assert note.details["trace"] == str(tmp_path / "run-step-1.trace.json.gz") and Path(note.details["trace"]).is_file()
    assert any("pipeline.py" in frame for row in note.details["operators"] for frame in row["stack"])
    with pytest.raises(RuntimeError, match="No run is in progress"):
        bench.worker.profile(ProfileRequest(2))


def test_a_run_that_ends_early_tells_the_steps_there_were_and_no_others(bench: Bench) -> None:
    note = profiled(bench, ProfileRequest(5), "matmul", values={"size": 8, "repeat": 3})

    assert note.text.startswith("Profiled steps 2 to 3 (5 were asked for)") and note.details["steps"] == 2


def test_a_run_that_ends_before_says_so(bench: Bench) -> None:
    note = profiled(bench, ProfileRequest(5), "pipeline", values={})

    assert note.text == "The run ended before 5 steps could be profiled." and not note.details


def test_a_run_that_fails_leaves_the_profiler_and_says_that_there_is_none(bench: Bench, custom: MakeSpec) -> None:
    left: list[Any] = []

    def work(_spec: Any, context: Context) -> dict[str, Any]:
        context.begin_steps()
        context.progress(1, 9)
        left.append(sys.getprofile())
        raise RuntimeError("broken on purpose")

    bench.end(bench.begin(custom(work), profile=ProfileRequest(3)))
    after = custom(lambda spec, context: left.append(sys.getprofile()) or {})
    bench.end(bench.begin(after))

    assert "there is no profile" in told(bench).text
    assert left[0] is not None and left[1] is None
    assert not torch.autograd._profiler_enabled()


def test_a_profiler_that_does_not_start_is_one_sentence_and_the_run_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_device: object) -> None:
        raise RuntimeError("Kineto is busy\nwith a long story")

    monkeypatch.setattr(profiling, "_started", refuse)
    note = profiled(bench, ProfileRequest(3))

    assert note.text == "The steps could not be profiled (RuntimeError: Kineto is busy); the run goes on."


def test_what_cannot_be_read_is_one_sentence_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise KeyError("no such event")

    monkeypatch.setattr(profiling, "operators", broken)

    assert "The profile could not be read (KeyError" in profiled(bench, ProfileRequest(3)).text


def test_a_trace_that_cannot_be_written_costs_only_itself(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    note = profiled(bench, ProfileRequest(2, str(tmp_path / "file" / "run")))

    assert note.details["trace"] is None and note.details["operators"]
    assert f"The trace was not written to {tmp_path / 'file'}: " in note.text


def test_a_step_that_takes_long_is_profiled_in_part(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "LONGEST_S", 0.0)
    note = profiled(bench, ProfileRequest(5))

    assert note.text.startswith("Profiled the first ") and "of step 2" in note.text
    assert note.details["steps"] == 0 and note.details["slowdown"] is None


def test_many_calls_end_a_profile_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_CALLS", 500)

    assert profiled(bench, ProfileRequest(10)).details["steps"] < 10


def test_on_a_simulated_gpu_its_bookkeeping_is_left_alone_and_what_is_missing_is_said(bench: Bench) -> None:
    def peaks(**request: Any) -> Any:
        card = SimulatedGpu(0, 512 * MIB)
        return bench.run("training", device="sim:0", request={"cards": (card,), **request}, **TRAINING).result["memory"]

    assert peaks() == peaks(profile=ProfileRequest(3))
    note = told(bench)
    assert "SIMULATED" in note.text and "the plots have it" in note.details["missing"]
    assert any(row["cpu_self_seconds"] for row in note.details["operators"])


def test_other_threads_are_not_followed(bench: Bench) -> None:
    ended = threading.Event()

    def a_function_of_another_thread() -> Any:
        return sys.getprofile()

    seen: list[Any] = []

    def spin() -> None:
        while not ended.wait(0.001):
            seen.append(a_function_of_another_thread())

    other = threading.Thread(target=spin, name="gpudash-test-spin")
    other.start()
    try:
        note = profiled(bench, ProfileRequest(5))
    finally:
        ended.set()
        other.join()

    assert seen and set(seen) == {None}
    assert "another_thread" not in json.dumps(note.details)


@dataclass
class Fake:
    """An event as torch tells it; times in µs."""

    name: str
    start: float
    end: float
    cpu_parent: Fake | None = None
    thread: int = 1
    device_type: Any = torch.autograd.DeviceType.CPU
    device_index: int = 0
    self_cpu_memory_usage: int = 0
    cpu_memory_usage: int = 0
    self_device_memory_usage: int = 0
    device_memory_usage: int = 0
    self_device_time_total: float = 0.0
    device_time_total: float = 0.0
    is_user_annotation: bool = False
    input_shapes: list[Any] = field(default_factory=list)

    @property
    def time_range(self) -> Any:
        return SimpleNamespace(start=self.start, end=self.end)

    @property
    def cpu_time_total(self) -> float:
        return self.end - self.start

    self_cpu_time_total = cpu_time_total


def test_an_operator_that_calls_itself_counts_the_inner_time_once_in_its_total() -> None:
    outer = Fake("aten::to", 0, 10)
    found = operators([outer, Fake("aten::to", 2, 6, outer)], CallFrames(), 0)["operators"]

    assert [(row["calls"], row["cpu_total_seconds"], row["cpu_self_seconds"]) for row in found] == [(2, 10e-6, 14e-6)]


def test_the_largest_of_every_ranking_are_kept_and_the_rest_is_counted() -> None:
    events = [Fake(f"slow {n}", n, n + 1 + n / 1e3) for n in range(100)]
    events += [Fake(f"large {n}", n, n + 0.001, self_cpu_memory_usage=n + 1) for n in range(100)]
    found = operators(events, CallFrames(), 0)

    names = {row["name"] for row in found["operators"]}
    assert {"slow 99", "large 99"} <= names and {"slow 0", "large 0"}.isdisjoint(names)
    assert len(names) == 2 * MOST_ROWS and found["operators_left_out"] == 200 - 2 * MOST_ROWS
    assert found["operators"][0]["name"] == "slow 99"


def test_annotations_are_spans_and_no_operators() -> None:
    step = Fake("step 1", 0, 9, is_user_annotation=True)
    found = operators([step, Fake("aten::add", 1, 2, step)], CallFrames(), 0)

    assert [row["name"] for row in found["operators"]] == ["aten::add"]
    assert found["timeline"]["names"] == ["step 1", "aten::add"]


def test_a_gpus_kernels_lie_in_a_lane_of_their_own_below_the_threads() -> None:
    kernel = Fake("gemm", 5, 9, device_type=torch.autograd.DeviceType.CUDA)
    found = timeline([Fake("aten::mm", 1, 2), Fake("aten::t", 2, 3), Fake("aten::mm", 3, 4, thread=2), kernel])

    assert found["lanes"] == ["CPU", "CPU thread 2", "cuda:0"]
    assert found["spans"] == [[0, 0, 0, 0, 1], [0, 0, 1, 1, 1], [1, 0, 0, 2, 1], [2, 0, 2, 4, 4]]
    assert found["seconds"] == 8e-6


def test_nothing_recorded_is_an_empty_picture() -> None:
    found = operators([], CallFrames(), 0)

    assert found["operators"] == [] and found["timeline"]["spans"] == []


def functions(stack: tuple[Frame, ...]) -> list[str]:
    return [code.co_name for code, _line in stack][-2:]


def test_a_moment_belongs_to_the_functions_that_were_on_then() -> None:
    moments: list[int] = []

    def inner() -> None:
        moments.append(time.time_ns())

    def outer() -> None:
        moments.append(time.time_ns())
        inner()
        moments.append(time.time_ns())

    frames = CallFrames()
    frames.start()
    outer()
    frames.stop()
    moments.append(time.time_ns())

    found = [functions(stack) for stack in frames.at(moments)]
    here = "test_a_moment_belongs_to_the_functions_that_were_on_then"
    assert found[:3] == [[here, "outer"], ["outer", "inner"], [here, "outer"]]
    assert found[3][-1] in ("stop", here)


def test_the_line_is_that_of_the_newest_call() -> None:
    moments: list[int] = []

    def caller() -> None:
        len("")
        moments.append(time.time_ns())
        len("")

    first = caller.__code__.co_firstlineno
    frames = CallFrames()
    frames.start()
    caller()
    frames.stop()

    ((code, line),) = [stack[-1] for stack in frames.at(moments)]
    assert code is caller.__code__ and line == first + 2


def test_whoever_profiled_before_does_so_again() -> None:
    def mine(*_arguments: object) -> None:
        return None

    before = sys.getprofile()
    frames = CallFrames()
    sys.setprofile(mine)
    try:
        frames.start()
        frames.stop()
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(before)


def test_the_users_own_functions_come_before_those_of_libraries() -> None:
    def own() -> None:
        return None

    library = compile("def call(): pass", "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", "exec")
    words = stack_lines([(own.__code__, 7), (library, 3)])

    assert words == [f"workloads/test_profiling.py:7 {own.__qualname__}"]
    assert stack_lines([(library, 3)]) == ["modules/module.py:3 <module>"]


@pytest.mark.parametrize("place", ["/usr/lib/python3.11/dist-packages/einops/einops.py", "/usr/lib/python3.12/abc.py"])
def test_a_profile_takes_the_same_lines_for_the_programs_as_an_explanation_does(place: str) -> None:
    def own() -> None:
        return None

    elsewhere = compile("def call(): pass", place, "exec")

    assert stack_lines([(own.__code__, 7), (elsewhere, 3)]) == [f"workloads/test_profiling.py:7 {own.__qualname__}"]


def test_a_stack_of_nothing_has_no_words() -> None:
    assert stack_lines([]) == []
