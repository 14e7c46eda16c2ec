"""The program that a training amounts to."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch

from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.records import StepFinished
from gpudash.workloads.program_code import code
from gpudash.workloads.programs.training import run
from gpudash.workloads.running.context import Context
from tests.unit.workloads.conftest import Told

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
    context: Context, told: Told, values: dict[str, Any]
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
