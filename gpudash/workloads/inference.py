"""Running a model without gradients, and how long an answer takes."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from gpudash.specs import TrainingSpec
from gpudash.workloads.batches import Batches, batches_per_epoch, placed
from gpudash.workloads.context import Context
from gpudash.workloads.training_step import InferenceStep

WARM_UP = 3
"""First steps left out of the latencies."""


def infer(model: nn.Module, spec: TrainingSpec, source: Batches, context: Context) -> dict[str, Any]:
    """``spec.steps`` forward passes under ``eval()`` and ``no_grad``.

    Returns:
        ``steps_per_second, items_per_second``, ``latency_p50_seconds`` and ``latency_p95_seconds`` (from the batch on
        the CPU to the answer on the CPU; the first `WARM_UP` left out where there are more).
    """
    answer = InferenceStep(spec, model, context.device, context)
    resident = _resident(source, context) if spec.batches == "resident" else None
    latencies: list[float] = []
    context.begin_steps()
    began = time.perf_counter()
    for step in range(1, spec.steps + 1):
        context.check_cancelled()
        given = resident if resident is not None else source.batch((step - 1) % batches_per_epoch(spec))[0]
        asked = time.perf_counter()
        inputs = given if resident is not None else placed("batch", (given,), context.device, context)[0]
        logits = answer(inputs)
        with context.stage("read output"):
            logits.argmax(-1).cpu()
        latencies.append(time.perf_counter() - asked)
        context.step(step, spec.steps, throughput=source.items / latencies[-1])
    seconds = time.perf_counter() - began
    measured = torch.tensor(latencies[WARM_UP:] or latencies, dtype=torch.float64)
    return {
        "steps_per_second": spec.steps / seconds,
        "items_per_second": spec.steps * source.items / seconds,
        "latency_p50_seconds": float(measured.quantile(0.5)),
        "latency_p95_seconds": float(measured.quantile(0.95)),
    }


def _resident(source: Batches, context: Context) -> torch.Tensor:
    """The first batch's inputs on the run's device, where they stay."""
    inputs = source.batch(0)[0]
    context.about_to_allocate(inputs.nbytes)
    return placed("batches", (inputs,), context.device, context)[0]
