"""What a shown program prints is what the run it stands for finds."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch

from gpudash.specs import build, workloads
from gpudash.specs.training import MOST_BYTES
from gpudash.telemetry.records import StepFinished
from gpudash.workloads.program_code import code
from tests.unit.workloads.conftest import Bench


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


def test_a_long_trainings_program_repeats_its_samples_where_the_run_does() -> None:
    values = {"model": "cnn", "steps": 100_000, "epochs": 1, "batch": 16}
    spec = build(workloads()["training"], values)

    assert f"({spec.samples},)" in code(spec, "cpu")  # type: ignore[attr-defined]
    assert spec.samples * 3 * 16 * 16 * 4 <= MOST_BYTES  # type: ignore[attr-defined]


def test_a_program_for_a_simulated_gpu_reaches_the_losses_of_the_run_there() -> None:
    values = {"model": "mlp", "width": 16, "depth": 1, "batch": 4, "steps": 6, "epochs": 2, "move_at_epoch": 2}
    there = code(build(workloads()["training"], {**values, "batches": "resident"}), "sim:0")
    on_cpu = executed("training", {**values, "move_at_epoch": 0})["printed"]

    done = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == on_cpu
