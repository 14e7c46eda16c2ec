"""The plain program that a run amounts to: what it holds, its sixty lines at most, and that it does the same."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudash.devices.names import Simulation
from gpudash.session.live.machine import NOT_KEPT
from gpudash.specs import ComparisonSpec, Spec, TrainingSpec, build, workloads
from gpudash.specs.memory_cap import MemoryCap
from gpudash.specs.training import MOST_BYTES
from gpudash.telemetry.records import StepFinished
from gpudash.units import GIB
from gpudash.workloads import program_code
from gpudash.workloads.program_code import MOST_LINES, code, fitted
from gpudash.workloads.programs.training import run
from gpudash.workloads.running.context import Context
from tests.programs import python
from tests.unit.workloads.conftest import Bench, Reported

DEVICES = ("cpu", "sim:0", "cuda:1")


def choices(workload: str) -> st.SearchStrategy[dict[str, Any]]:
    """Values of the fields of a workload that choose between ways of doing it."""
    fields = {}
    for name, values in VARIANTS[workload].items():
        fields[name] = st.sampled_from(values)
    return st.fixed_dictionaries({}, optional=fields)


VARIANTS: dict[str, dict[str, list[Any]]] = {
    "training": {
        "model": ["transformer", "mlp", "cnn"],
        "mode": ["train", "inference"],
        "precision": ["fp32", "bf16", "fp16"],
        "optimizer": ["sgd", "momentum", "adam", "adamw"],
        "checkpointing": [True],
        "accumulation": [3],
        "batches": ["resident", "moved", "pingpong"],
        "keep_intermediates": [True],
        "move_at_epoch": [2],
        "deterministic": [True],
        "depth": [1, 7],
    },
    "pipeline": {
        "move": ["to", "to_dtype", "to_other", "cuda", "cuda_index", "pinned", "direct"],
        "fill": ["count", "ones", "random"],
        "dtype": ["float32", "int64", "bfloat16"],
        "operation": ["add", "multiply", "matmul", "relu"],
        "back": ["cpu", "to_cpu"],
        "pitfall": ["none", "unassigned", "mixed_devices", "leaf", "numpy", "current_device"],
    },
    "transfer": {
        "blocks": ["1KiB", "1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"],
        "directions": ["all", "h2d", "d2h", "h2h"],
        "memory": ["both", "pageable", "pinned"],
        "blocking": ["both", "blocking", "overlapped"],
    },
    "pressure": {
        "pattern": ["ramp", "leak", "sawtooth", "fragmentation", "spike"],
        "until": ["cap", "oom"],
        "cap": ["3MiB"],
    },
    "matmul": {"dtype": ["float32", "bfloat16", "float64"], "threads": [0, 3]},
}


def is_readable(program: str) -> None:
    ast.parse(program)
    assert len(program.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("workload", list(VARIANTS))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_combination_is_a_program_of_at_most_sixty_lines(workload: str, data: st.DataObject) -> None:
    values, device = data.draw(choices(workload)), data.draw(st.sampled_from(DEVICES))
    cap = data.draw(st.sampled_from([None, MemoryCap(share=0.5), MemoryCap(size=2 * GIB)]))
    spec = build(workloads()[workload], values)
    simulation = Simulation((4 * GIB, 8 * GIB), others=GIB)

    is_readable(code(spec, device, simulation, None if device == "cpu" else cap))
    if device != "cpu":
        is_readable(code(spec, device, simulation, remark=NOT_KEPT))


EVERY_OPTION = {
    "precision": "fp16",
    "checkpointing": True,
    "accumulation": 4,
    "keep_intermediates": True,
    "deterministic": True,
    "width": 4096,
    "depth": 12,
    "batch": 16,
}


@pytest.mark.parametrize("batches", ["resident", "moved", "pingpong"])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "split"])
@pytest.mark.parametrize("model", ["transformer", "mlp", "cnn"])
def test_a_program_of_several_devices_with_every_option_has_at_most_sixty_lines(
    model: str, parallel: str, batches: str
) -> None:
    values = {**EVERY_OPTION, "model": model, "parallel": parallel, "batches": batches, "devices": "cuda:0,cuda:1"}

    is_readable(code(build(TrainingSpec, values), "cuda:0"))


def presets() -> list[tuple[type[Spec], str, str]]:
    built_in = [workloads()[name] for name in VARIANTS]
    return [(spec, preset, device) for spec in built_in for preset in spec.presets for device in DEVICES]


@pytest.mark.parametrize(("spec", "preset", "device"), presets())
def test_every_preset_is_a_program_without_statements_side_by_side(spec: type[Spec], preset: str, device: str) -> None:
    program = code(build(spec, {}, preset), device)

    is_readable(program)
    assert not any("; " in line.partition("#")[0] for line in program.splitlines())
    assert ("gpudash" in program) == device.startswith("sim")


def test_what_fits_is_left_as_it_is() -> None:
    lines = ["import torch", "", "x = 1", "", "y = 2"]

    assert fitted(lines, 5) == lines


def test_blank_lines_go_first_and_only_as_many_as_must() -> None:
    assert fitted(["import torch", "", "x = 1", "", "y = 2"], 4) == ["import torch", "", "x = 1", "y = 2"]


def test_then_short_statements_of_a_block_share_a_line() -> None:
    lines = ["for x in y:", "    a = 1", "    b = [2]  # why", "    c = 3", "    d = 4", "e = 5"]

    assert fitted(lines, 5) == ["for x in y:", "    a = 1", "    b = [2]  # why", "    c = 3; d = 4", "e = 5"]


def test_then_a_body_of_one_statement_stands_behind_what_it_belongs_to() -> None:
    lines = ["for x in y:", "    f(x)", "if z:", "    if x:", "        return", "    g(x)", "else:", "    h(x)"]

    assert fitted(lines, 7) == [*lines[:6], "else: h(x)"]
    assert fitted(lines, 1) == ["for x in y: f(x)", *lines[2:6], "else: h(x)"]


def test_what_cannot_be_joined_stays_too_long_rather_than_becoming_wrong() -> None:
    lines = ["import a", "from b import c", "x = (", "    1)", "if x:", "    return"]

    assert fitted(lines, 1) == lines


SMALL: dict[str, Any] = {"width": 16, "depth": 2, "batch": 4, "sequence": 16, "steps": 6}
MLP: dict[str, Any] = {"model": "mlp", "width": 32, "depth": 2, "batch": 32, "steps": 60}


@pytest.mark.parametrize(
    "values",
    [
        SMALL,
        MLP,
        {**SMALL, "batches": "resident", "optimizer": "momentum"},
        {**SMALL, "precision": "bf16", "steps": 7},
        {**SMALL, "precision": "fp16", "accumulation": 2, "keep_intermediates": True},
        {**SMALL, "checkpointing": True, "accumulation": 3, "batches": "pingpong"},
        {**SMALL, "model": "mlp", "checkpointing": True, "depth": 5, "precision": "fp16"},
        {**SMALL, "model": "cnn", "checkpointing": True, "accumulation": 2, "batches": "resident"},
        {**SMALL, "model": "cnn", "precision": "bf16", "optimizer": "sgd"},
    ],
)
def test_the_shown_program_reaches_the_same_loss_as_the_run(
    context: Context, told: Reported, values: dict[str, Any]
) -> None:
    spec = build(TrainingSpec, values)
    torch.manual_seed(spec.seed)
    run(spec, context)  # type: ignore[arg-type]
    context.flush()
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code(spec, "cpu"), "shown.py", "exec"), {"__name__": "shown"})

    losses = [float(line.split()[1]) for line in printed.getvalue().splitlines()]
    assert losses == [event.loss for event in told if isinstance(event, StepFinished)]


@pytest.mark.parametrize("model", ["transformer", "mlp", "cnn"])
def test_a_program_for_a_gpu_scales_checkpoints_and_accumulates_and_takes_the_scale_along(model: str) -> None:
    values = {"model": model, "precision": "fp16", "checkpointing": True, "accumulation": 2, "move_at_epoch": 2}
    program = code(build(TrainingSpec, values), "cuda:0")

    compile(program, "shown.py", "exec")
    assert "checkpoint(" in program and "scaler.scale((loss / 2)).backward()" in program
    assert "scaler.load_state_dict(scale)" in program and "gpudash" not in program


def executed(workload: str, values: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
    """What the program leaves behind, and what it ``printed``."""
    program = code(build(workloads()[workload], values), device)
    left: dict[str, Any] = {"__name__": "shown"}
    printed = io.StringIO()
    threads = torch.get_num_threads()
    with redirect_stdout(printed):
        exec(compile(program, "shown.py", "exec"), left)
    torch.set_num_threads(threads)
    return {**left, "printed": printed.getvalue()}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"fill": "random", "repeat": 3, "seed": 5},
        {"fill": "random", "dtype": "int32", "operation": "multiply", "scalar": 3.0},
        {"fill": "random", "move": "direct", "operation": "relu", "repeat": 2},
        {"rows": 5, "columns": 4, "operation": "matmul", "dtype": "float64"},
        {"move": "to_dtype", "back": "to_cpu"},
        {"dtype": "bfloat16", "rows": 20, "columns": 20},
    ],
)
def test_a_pipelines_program_brings_back_the_values_of_the_run(bench: Bench, values: dict[str, Any]) -> None:
    result = bench.run("pipeline", **values).result
    left = executed("pipeline", values)

    assert left["back"].tolist() == result["values"]
    assert (left["moved"] is left["x"]) == (result["same_object"] and values.get("move") != "direct")


def test_a_transfers_program_measures_the_paths_and_blocks_of_the_run(bench: Bench) -> None:
    values = {"blocks": "64KiB,128KiB", "samples": 3}
    rates = bench.run("transfer", **values).result["rates"]
    printed = executed("transfer", values)["printed"].splitlines()

    rates = [rate for rate in rates if rate["samples"]]
    facts = ("from", "to", "memory", "blocking", "block_bytes")
    measured = [[str(not rate[fact] if fact == "blocking" else rate[fact]) for fact in facts] for rate in rates]
    assert [line.split()[:5] for line in printed[:-2]] == measured
    assert all(float(line.split()[5]) > 0 for line in printed[:-2])
    assert [line.split()[:2] for line in printed[-2:]] == [["copied", "every"], ["copied", "once"]]


def test_a_products_program_multiplies_as_often_as_the_run(bench: Bench) -> None:
    values = {"size": 32, "repeat": 5, "dtype": "float64", "threads": 2}
    result = bench.run("matmul", **values).result
    left = executed("matmul", values)

    assert len(left["seconds"]) - 2 == len(bench.of(StepFinished)) == 5
    assert left["product"].dtype == torch.float64 and left["n"] == result["size"]
    assert torch.equal(left["product"], left["a"] @ left["b"])
    assert "FLOP/s" in left["printed"]


def test_a_leaks_program_loses_what_the_run_loses_step_by_step(bench: Bench) -> None:
    values = {"pattern": "leak", "step": "256KiB", "cap": "1MiB", "rate": 1000, "hold": 0}
    bench.run("pressure", **values)
    losses = [f"{step.loss:.4f}" for step in bench.of(StepFinished)]

    assert [line.split()[1] for line in executed("pressure", values)["printed"].splitlines()] == losses


@pytest.mark.parametrize("pattern", ["ramp", "sawtooth", "fragmentation", "spike"])
def test_a_pressures_program_holds_as_much_as_the_run(bench: Bench, pattern: str) -> None:
    values = {"pattern": pattern, "step": "2MiB", "cap": "24MiB", "rate": 1000, "hold": 0}
    result = bench.run("pressure", **values).result
    printed = executed("pressure", values)["printed"].splitlines()

    if pattern == "fragmentation":
        assert len(printed) == result["allocations"]
    else:
        assert max(int(line.split()[0]) for line in printed) * 2**20 == result["allocated_bytes"]


def test_an_inferences_program_answers_as_often_as_the_run_and_leaves_out_its_warm_up(bench: Bench) -> None:
    values = {"mode": "inference", "model": "mlp", "width": 16, "steps": 9, "batches": "resident"}
    bench.run("training", **values)
    left = executed("training", values)

    assert len(left["seconds"]) == len(bench.of(StepFinished)) == 9 and len(left["latency"]) == 6


@pytest.mark.parametrize("batches", ["moved", "resident"])
@pytest.mark.parametrize("model", ["transformer", "mlp"])
def test_an_inferences_program_predicts_what_the_run_predicts(bench: Bench, model: str, batches: str) -> None:
    values = {"mode": "inference", "model": model, "width": 16, "depth": 1, "sequence": 8, "batch": 4, "steps": 5}
    values |= {"batches": batches, "pretraining": 3}
    found = bench.run("training", **values).result["predictions"]
    printed = executed("training", values)["printed"].splitlines()[1:]

    if model == "transformer":
        assert printed == [repr(told["text"]) for told in found]
    else:
        assert printed == [f"class {told['class']}, {told['probability']:.0%} sure" for told in found]


def test_a_long_trainings_program_repeats_its_samples_where_the_run_does() -> None:
    values = {"model": "cnn", "steps": 100_000, "epochs": 1, "batch": 16}
    spec = build(workloads()["training"], values)

    assert f"({spec.samples},)" in code(spec, "cpu")  # type: ignore[attr-defined]
    assert spec.samples * 3 * 16 * 16 * 4 <= MOST_BYTES  # type: ignore[attr-defined]


@pytest.mark.process
def test_a_program_for_a_simulated_gpu_reaches_the_losses_of_the_run_there() -> None:
    values = {"model": "mlp", "width": 16, "depth": 1, "batch": 4, "steps": 6, "epochs": 2, "move_at_epoch": 2}
    there = code(build(workloads()["training"], {**values, "batches": "resident"}), "sim:0")
    on_cpu = executed("training", {**values, "move_at_epoch": 0})["printed"]

    done = python("-c", there)
    assert done.returncode == 0, done.stderr
    assert done.stdout == on_cpu


SPLIT: list[dict[str, Any]] = [
    {"model": "mlp", "depth": 3},
    {"model": "mlp", "depth": 7, "checkpointing": True, "batches": "resident"},
    {"model": "transformer", "depth": 2, "sequence": 8, "accumulation": 2},
    {"model": "cnn", "depth": 3, "optimizer": "momentum"},
]


@pytest.mark.process
def test_the_program_of_a_split_model_reaches_the_losses_of_one_device() -> None:
    programs, alone = [], []
    for values in SPLIT:
        whole = {**values, "width": 16, "batch": 4, "steps": 4}
        spec = build(workloads()["training"], {**whole, "devices": "sim:0,sim:1", "parallel": "split"})
        programs.append(code(spec, "sim:0", Simulation((GIB, GIB))))
        is_readable(programs[-1])
        alone.append(executed("training", whole)["printed"])
    one_after_the_other = "import json, sys\nfor text in json.loads(sys.argv[1]): exec(text, {}), print('next')"
    command = [sys.executable, "-c", one_after_the_other, json.dumps(programs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stderr
    for printed, expected in zip(done.stdout.split("next\n")[:-1], alone, strict=True):
        found, wanted = ([float(line.split()[1]) for line in text.splitlines()] for text in (printed, expected))
        assert found == pytest.approx(wanted, abs=1e-5) and len(found) == 4


SMALL_SIDES = {"width": 16, "depth": 2, "batch": 4}
COMPARED: list[dict[str, Any]] = [
    {"fields": {"model": "mlp", **SMALL_SIDES}},
    {"fields": {"model": "mlp", "checkpointing": True, "precision": "bf16", "batches": "resident", **SMALL_SIDES}},
    {"fields": {"model": "cnn", "accumulation": 2, "keep_intermediates": True, **SMALL_SIDES}},
    {"fields": {"model": "transformer", "sequence": 8, "precision": "fp16", "batches": "pingpong", **SMALL_SIDES}},
    {"fields": {"model": "transformer", "sequence": 8, "mode": "inference", **SMALL_SIDES}},
    {"workload": "matmul", "fields": {"size": 32}},
    {"workload": "pipeline", "fields": {"operation": "matmul"}},
]


@pytest.mark.parametrize("values", COMPARED)
def test_the_program_times_both_devices_in_at_most_sixty_lines(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_code, "REPETITIONS", 1)
    text = code(build(ComparisonSpec, {"devices": "cpu,cpu", **values}), "cpu")
    assert len(text.splitlines()) <= 60
    threads, told = torch.get_num_threads(), io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            exec(compile(text, "comparison", "exec"), {"__name__": "comparison"})
    finally:
        torch.set_num_threads(threads)
    first, second, ratio = (float(word) for word in re.findall(r"\d+\.\d+(?:e-?\d+)?", told.getvalue()))
    assert first > 0 and second > 0
    assert 0.01 < ratio < 100


def test_the_program_uses_as_many_threads_as_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_code, "threads_for", lambda size: 7 if size == 4096 else 1)
    for values, threads in (
        ({"workload": "matmul", "fields": {"size": 4096}}, 7),
        ({"workload": "matmul", "threads": 3}, 3),
        ({}, 1),
    ):
        text = code(build(ComparisonSpec, {"devices": "cpu,cpu", **values}), "cpu")
        assert f"torch.set_num_threads({threads})" in text


def test_the_program_imports_nothing_of_gpudash() -> None:
    assert "gpudash" not in code(build(ComparisonSpec, {"devices": "cpu,cuda:0"}), "cuda:0")
