"""What is predicted of a run is what the same run takes on a simulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gpudash.drawing.ghost import Ghost
from gpudash.memory.predicting.estimate import Estimate
from gpudash.memory.predicting.memory_timeline import MemoryTimeline
from gpudash.session.predicting.ghosts import ghost_of

ROOT = Path(__file__).resolve().parents[2]
MIB, GIB = 2**20, 2**30
CONTEXT = 300 * MIB
SMALL = {"width": 32, "depth": 2, "batch": 4, "sequence": 16, "steps": 5, "epochs": 1}
TINY_MLP = {"model": "mlp", "width": 64, "depth": 3, "batch": 32, "steps": 5, "epochs": 1}
TINY_CNN = {"model": "cnn", "width": 8, "depth": 3, "batch": 8, "steps": 5, "epochs": 1}


class Child:
    """A process that answers JSON lines with JSON lines."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self.read()

    def close(self) -> None:
        self._process.communicate(timeout=30)


class Both:
    """The same spec predicted and run.

    Attributes:
        ghost: the drawing of what was predicted last.
    """

    def __init__(self, predictor: Child, runner: Child) -> None:
        self._predictor = predictor
        self._runner = runner
        self.ghost: Ghost | None = None

    def predict(self, workload: str, spec: dict[str, Any], capacity: int) -> dict[str, Any]:
        target = {"device": "sim:0", "capacity_bytes": capacity, "free_bytes": capacity, "overhead_bytes": CONTEXT}
        names = spec["devices"].split(",") if "devices" in spec else []
        ranks = [{**target, "device": name} for name in names]
        asked = {"workload": workload, "spec": spec, "target": target, "ranks": ranks}
        answer = self._predictor.ask(id=1, **asked, alternatives=False, timeline=True)
        timeline = answer.get("timeline")
        while not answer["final"]:
            answer = self._predictor.read()
        assert "estimate" in answer, answer
        found: dict[str, Any] = answer["estimate"]
        self.ghost = ghost_of(MemoryTimeline.from_json(timeline), _estimate(found)) if timeline else None
        return found

    def changed(self, workload: str, spec: dict[str, Any], capacity: int) -> dict[str, tuple[int, float]]:
        """What each change of the spec is predicted to need, and the highest point of its drawing, by its name."""
        target = {"device": "sim:0", "capacity_bytes": capacity, "free_bytes": capacity, "overhead_bytes": CONTEXT}
        answer = self._predictor.ask(id=1, workload=workload, spec=spec, target=target, timeline=True)
        found = {}
        while not answer["final"]:
            answer = self._predictor.read()
            if "timeline" in answer:
                tried = answer["estimate"]["alternatives"][-1]
                timeline = MemoryTimeline.from_json(answer["timeline"])
                drawn = ghost_of(timeline, _estimate(answer["estimate"]))
                found[tried["change"]] = tried["needed_bytes"], drawn.highest
        return found

    def run(self, workload: str, spec: dict[str, Any], capacity: int) -> dict[str, Any]:
        return self._runner.ask(workload=workload, spec=spec, capacity=capacity)


def _estimate(written: dict[str, Any]) -> Estimate:
    # what a step does beside asking for memory comes in a message of its own
    return TypeAdapter(Estimate).validate_python({**written, "work": None})


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    predictor = Child("gpudash.workloads.predicting.estimate_process")
    runner = Child("tests.end_to_end.run_on_cards")
    try:
        assert predictor.read()["ready"] is True
        yield Both(predictor, runner)
    finally:
        predictor.close()
        runner.close()


TRAININGS: dict[str, dict[str, Any]] = {
    "fp32 sgd": {"optimizer": "sgd"},
    "fp32 adam checkpointing": {"optimizer": "adam", "checkpointing": True},
    "bf16 adamw": {"precision": "bf16", "optimizer": "adamw"},
    "bf16 momentum checkpointing": {"precision": "bf16", "optimizer": "momentum", "checkpointing": True},
    "fp16 adam": {"precision": "fp16", "optimizer": "adam"},
    "fp16 sgd checkpointing": {"precision": "fp16", "optimizer": "sgd", "checkpointing": True},
}
"""Each precision with and without checkpointing; any two values meet in the questions that are drawn below."""

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "MLP": ("training", TINY_MLP),
    "MLP with checkpointing": ("training", {**TINY_MLP, "checkpointing": True}),
    "CNN": ("training", TINY_CNN),
    "CNN in bf16 with checkpointing": ("training", {**TINY_CNN, "precision": "bf16", "checkpointing": True}),
    "24 layers": ("training", {**SMALL, "depth": 24, "width": 64}),
    "24 layers in bf16 with checkpointing": (
        "training",
        {**SMALL, "depth": 24, "width": 64, "precision": "bf16", "checkpointing": True},
    ),
    "accumulation": ("training", {**SMALL, "accumulation": 3}),
    "kept intermediates": ("training", {**SMALL, "steps": 12, "keep_intermediates": True}),
    "resident batches": ("training", {**SMALL, "steps": 20, "batches": "resident"}),
    "ping-pong batches": ("training", {**SMALL, "batches": "pingpong"}),
    "inference": ("training", {**SMALL, "mode": "inference"}),
    "inference in bf16": ("training", {**SMALL, "mode": "inference", "precision": "bf16"}),
    "inference on text that stays": ("training", {**SMALL, "mode": "inference", "batches": "resident"}),
    "inference of classes": ("training", {**TINY_MLP, "mode": "inference", "pretraining": 3}),
    "matmul": ("matmul", {"size": 256, "repeat": 4}),
    "matmul in float64": ("matmul", {"size": 300, "repeat": 3, "dtype": "float64"}),
    "pipeline": ("pipeline", {"rows": 300, "columns": 200}),
    "pipeline with a product": ("pipeline", {"rows": 500, "columns": 700, "operation": "matmul"}),
    "pipeline created on the device": ("pipeline", {"rows": 900, "columns": 700, "move": "direct"}),
    "pipeline with a type": ("pipeline", {"rows": 900, "columns": 700, "move": "to_dtype", "repeat": 3}),
    "transfer": ("transfer", {"blocks": "64KiB,1MiB", "samples": 3}),
    "ramp": ("pressure", {"cap": 300 * MIB, "step": 7 * MIB}),
    "sawtooth": ("pressure", {"pattern": "sawtooth", "cap": 100 * MIB, "step": 9 * MIB, "hold": 0}),
    "fragmentation": ("pressure", {"pattern": "fragmentation", "cap": 500 * MIB, "step": 30 * MIB}),
    "spike": ("pressure", {"pattern": "spike", "cap": 400 * MIB}),
    "leak": ("pressure", {"pattern": "leak", "cap": 64 * MIB, "step": 4 * MIB}),
}


@pytest.mark.parametrize("spec", TRAININGS.values(), ids=TRAININGS.keys())
def test_the_predicted_peak_of_a_training_is_the_one_it_reaches(both: Both, spec: dict[str, Any]) -> None:
    _same_peaks(both, "training", {**SMALL, **spec})


@pytest.mark.parametrize(("workload", "spec"), OTHERS.values(), ids=OTHERS.keys())
def test_the_predicted_peak_of_a_workload_is_the_one_it_reaches(
    both: Both, workload: str, spec: dict[str, Any]
) -> None:
    _same_peaks(both, workload, spec)


def test_each_change_of_a_run_that_does_not_fit_comes_with_a_drawing_of_what_it_needs(both: Both) -> None:
    found = both.changed("training", {**SMALL, "batch": 64}, CONTEXT + 24 * MIB)
    assert {"activation checkpointing", "bf16 autocast"} <= found.keys()
    assert all(needed == highest for needed, highest in found.values()), found


SPLIT = {"devices": "sim:0,sim:1", "parallel": "split"}

HALVES: dict[str, dict[str, Any]] = {
    "MLP": TINY_MLP,
    "MLP with checkpointing": {**TINY_MLP, "depth": 7, "checkpointing": True},
    "transformer": SMALL,
    "transformer in fp16 with checkpointing": {**SMALL, "depth": 3, "precision": "fp16", "checkpointing": True},
    "transformer, kept and accumulated": {**SMALL, "accumulation": 2, "keep_intermediates": True, "steps": 12},
    "CNN on resident batches": {**TINY_CNN, "batches": "resident"},
    "CNN in bf16": {**TINY_CNN, "precision": "bf16", "batches": "pingpong", "optimizer": "momentum"},
}


@pytest.mark.parametrize("spec", HALVES.values(), ids=HALVES.keys())
def test_a_split_model_takes_of_each_device_what_was_predicted_to_the_byte(both: Both, spec: dict[str, Any]) -> None:
    halves = {**spec, **SPLIT}
    predicted, reached = both.predict("training", halves, 8 * GIB), both.run("training", halves, 8 * GIB)
    alone = both.run("training", spec, 8 * GIB)

    assert reached["status"] == "finished" and reached["left"] == 0
    told = [[each["peak_allocated_bytes"], each["peak_reserved_bytes"]] for each in predicted["ranks"]]
    assert told == reached["devices"]
    assert predicted["strategy"] == "split" and [each["device"] for each in predicted["ranks"]] == ["sim:0", "sim:1"]
    assert reached["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert reached["copies"]["sim:0 sim:1"] > 0 and reached["copies"]["sim:1 sim:0"] > 0


def _same_peaks(both: Both, workload: str, spec: dict[str, Any]) -> None:
    predicted, reached = both.predict(workload, spec, 8 * GIB), both.run(workload, spec, 8 * GIB)
    assert reached["status"] == "finished"
    assert reached["left"] == 0
    assert predicted["peak_allocated_bytes"] == pytest.approx(reached["allocated"], rel=0.005)
    assert predicted["peak_reserved_bytes"] == pytest.approx(reached["reserved"], rel=0.005)
    assert sum(predicted["by_category"].values()) == predicted["peak_allocated_bytes"]
    assert _highest_drawn(both.ghost) == (CONTEXT + reached["allocated"], CONTEXT + reached["reserved"])
    assert both.ghost is not None
    drawn = {name: size for name, size in both.ghost.parts.items() if name in predicted["by_category"]}
    assert drawn == {name: size for name, size in predicted["by_category"].items() if name in drawn}
    assert sum(drawn.values()) == predicted["peak_allocated_bytes"]
    between = _drawn_between(both.ghost)
    assert between == [CONTEXT + held for held in reached["between"][: len(between)]]


def _drawn_between(ghost: Ghost) -> list[int]:
    """What is drawn as in use behind each step but the last."""
    found = []
    for step in range(1, ghost.steps):
        behind = next(at for at, later, _ in ghost.marks if later > step)
        found.append(int(ghost.edges[ghost.top, behind - 1]))
    return found


def _highest_drawn(ghost: Ghost | None) -> tuple[int, int]:
    """The highest column of what is in use, and of all that is held, in the panels as they are drawn."""
    assert ghost is not None
    panels = [ghost.one_step.columns(540).edges, ghost.whole.columns(120).edges]
    used, held = (max(int(edges[row].max()) for edges in panels) for row in (ghost.top, -1))
    return used, held


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, dict[str, Any], int]:
    """A random spec and a capacity around what such specs need."""
    workload = draw(st.sampled_from(["training", "training", "matmul", "pressure"]))
    spec: dict[str, Any]
    if workload == "training":
        spec = {
            "model": draw(st.sampled_from(["transformer", "mlp", "cnn"])),
            "width": draw(st.sampled_from([16, 64, 200])),
            "depth": draw(st.integers(1, 4)),
            "batch": draw(st.sampled_from([1, 6, 32])),
            "sequence": draw(st.sampled_from([8, 50])),
            "optimizer": draw(st.sampled_from(["sgd", "momentum", "adam", "adamw"])),
            "precision": draw(st.sampled_from(["fp32", "bf16", "fp16"])),
            "checkpointing": draw(st.booleans()),
            "accumulation": draw(st.integers(1, 2)),
            "keep_intermediates": draw(st.booleans()),
            "mode": draw(st.sampled_from(["train", "train", "inference"])),
            "steps": draw(st.integers(1, 5)),
            "epochs": 1,
        }
        extra = draw(st.integers(8, 60))
    elif workload == "matmul":
        spec = {"size": draw(st.integers(16, 1200)), "repeat": 3}
        extra = draw(st.integers(8, 60))
    else:
        pattern = draw(st.sampled_from(["ramp", "sawtooth", "spike", "fragmentation"]))
        spec = {"pattern": pattern, "step": draw(st.integers(MIB, 40 * MIB)), "cap": draw(st.integers(MIB, 400 * MIB))}
        extra = draw(st.integers(2, 500))
    return workload, spec, CONTEXT + extra * MIB


@given(questions())
@example(("pressure", {"pattern": "fragmentation", "step": MIB, "cap": MIB + 1}, CONTEXT + 2 * MIB))
@example(("pressure", {"pattern": "fragmentation", "step": MIB + 1, "cap": MIB}, CONTEXT + 2 * MIB))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_fits_finishes_and_what_does_not_runs_out(both: Both, question: tuple[str, dict[str, Any], int]) -> None:
    workload, spec, capacity = question
    predicted, reached = both.predict(workload, spec, capacity), both.run(workload, spec, capacity)
    # Open only where a real card may take more for convolutions than is modelled; the simulated one takes what is.
    assert predicted["fits"] is not None or predicted["convolutions"]["unknown_bytes"] > 0
    assert (predicted["fits"] is not False) == (reached["status"] == "finished")
    assert reached["left"] == 0


def test_the_smallest_capacity_is_the_edge_between_finishing_and_running_out(both: Both) -> None:
    least = both.predict("training", SMALL, 8 * GIB)["minimum_capacity_bytes"]
    assert both.run("training", SMALL, least)["status"] == "finished"
    assert both.run("training", SMALL, least - 2 * MIB)["status"] == "out_of_memory"
    assert both.predict("training", SMALL, least)["fits"] is True
    assert both.predict("training", SMALL, least - 2 * MIB)["fits"] is False


def test_after_running_out_of_memory_the_device_is_empty_and_the_next_run_works(both: Both) -> None:
    ended = both.run("training", {**SMALL, "batch": 4096}, CONTEXT + 64 * MIB)
    assert (ended["status"], ended["left"]) == ("out_of_memory", 0)
    assert both.run("training", SMALL, CONTEXT + 64 * MIB)["status"] == "finished"
