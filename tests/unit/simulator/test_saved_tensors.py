"""What a dry run says is kept for the backward pass is what a real step on the CPU keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from gpudash.workloads.programs.training_step import build_model
from tests.programs import told_by
from tests.unit.simulator.saved_tensors import OUTPUTS, batch_of, saved_bytes, spec_of

pytestmark = pytest.mark.process

STEPS: list[dict[str, Any]] = [
    {"model": "transformer", "width": 64, "depth": 3},
    {"model": "transformer", "width": 96, "depth": 2, "batch": 4, "sequence": 48},
    {"model": "transformer", "width": 64, "depth": 4, "checkpointing": True},
    {"model": "mlp", "width": 128, "depth": 4, "batch": 64},
    {"model": "cnn", "width": 16, "depth": 2},
]


@pytest.fixture(scope="module")
def predictions() -> dict[str, dict[str, int]]:
    """Of every step, from one process of dry runs."""
    found = told_by("unit.simulator.saved_tensors", json.dumps(STEPS))
    return {json.dumps(values): told for values, told in zip(STEPS, found, strict=True)}


@pytest.mark.parametrize("values", STEPS, ids=lambda values: "-".join(map(str, values.values())))
def test_saved_tensors_take_as_many_bytes_as_a_real_step_saves(
    values: dict[str, Any], predictions: dict[str, dict[str, int]]
) -> None:
    real = saved_bytes(spec_of(values), torch.device("cpu"))
    assert real > 0
    assert predictions[json.dumps(values)]["saved"] == pytest.approx(real, rel=0.01)


@pytest.mark.parametrize("values", STEPS, ids=lambda values: "-".join(map(str, values.values())))
def test_what_lies_there_as_activations_is_what_is_saved_and_the_outputs(
    values: dict[str, Any], predictions: dict[str, dict[str, int]]
) -> None:
    spec = spec_of(values)
    outputs = build_model(spec, OUTPUTS)(batch_of(spec)[0]).nbytes  # the step holds them until it is over
    real = saved_bytes(spec, torch.device("cpu"))
    assert predictions[json.dumps(values)]["activations"] - outputs == pytest.approx(real, rel=0.01)
