"""What telling stages, steps and losses costs a run, beside a bare loop of the same model on the same batches."""

from __future__ import annotations

import queue
import statistics
import time

import torch
from torch.nn import functional

from gpudash.specs import TrainingSpec
from gpudash.workloads.programs.batches import data, epoch_order
from gpudash.workloads.programs.training import model_of, optimizer_of, run
from gpudash.workloads.running.context import Context

PAIRS = 7
STEPS = {"Transformer": 20, "MLP": 300}


def measure() -> dict[str, float]:
    """Cost in per cent of the bare loop's time, as the median of alternating pairs; the dearer model's is held."""
    torch.set_num_threads(1)
    costs = {
        model: _cost(TrainingSpec.model_validate({**TrainingSpec.presets[model], "steps": steps, "epochs": 1}))
        for model, steps in STEPS.items()
    }
    return {**{f"{model.lower()}_percent": cost for model, cost in costs.items()}, "cost_percent": max(costs.values())}


def _cost(spec: TrainingSpec) -> float:
    _told(spec)
    bare_step_s(spec)
    ratios = []
    for pair in range(PAIRS):
        told, bare = (_told(spec), bare_step_s(spec)) if pair % 2 else (bare_step_s(spec), _told(spec))[::-1]
        ratios.append(told / bare)
    return (statistics.median(ratios) - 1) * 100


def _context() -> Context:
    records: queue.SimpleQueue[object] = queue.SimpleQueue()
    return Context(torch.device("cpu"), run_id=1, emit=records.put, clock=time.monotonic)


def _told(spec: TrainingSpec) -> float:
    """Seconds of a step of a real run, by its own figures."""
    torch.manual_seed(spec.seed)
    return 1 / float(run(spec, _context())["steps_per_second"])


def bare_step_s(spec: TrainingSpec) -> float:
    """Seconds of a step of the same loop with nothing told."""
    torch.manual_seed(spec.seed)
    context = _context()
    source = data(spec, context)
    model = model_of(spec, source.outputs, context)
    optimizer = optimizer_of(spec, model)
    began = time.perf_counter()
    for index in epoch_order(spec, 1)[: spec.steps]:
        inputs, targets = source.batch(index)
        logits = model(inputs)
        loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        right = (logits.detach().argmax(-1) == targets).float().mean()
        torch.stack((loss.detach().float(), right)).tolist()
    return (time.perf_counter() - began) / spec.steps
