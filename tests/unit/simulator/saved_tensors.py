"""Bytes that a training step keeps for its backward pass, counted in the same way on the CPU and in a dry run."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from gpudash.memory.allocator.trace import ACTIVATIONS, Trace
from gpudash.simulator.device.tracking import BACKWARD, Tracker
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.specs import TrainingSpec, build
from gpudash.workloads.programs.batches import Batch, ClassBatches, micro_batches, text_batch
from gpudash.workloads.programs.training_step import TrainingStep, build_model, optimizer_of
from gpudash.workloads.running.context import Context

OUTPUTS = 10


def spec_of(values: dict[str, Any]) -> TrainingSpec:
    """The spec of these values, of one micro-batch."""
    made = build(TrainingSpec, {"batch": 8, "sequence": 32, "steps": 4, **values})
    assert isinstance(made, TrainingSpec)
    return made


def saved_bytes(spec: TrainingSpec, device: torch.device) -> int:
    """Bytes of all storages that the first step saves for its backward pass, each once, weights and inputs left out."""
    torch.manual_seed(spec.seed)
    model = build_model(spec, OUTPUTS).to(device)
    batches = [tuple(part.to(device) for part in batch) for batch in micro_batches(batch_of(spec), spec.batch)]
    known = {tensor.untyped_storage().data_ptr() for batch in batches for tensor in batch}
    known |= {weight.untyped_storage().data_ptr() for weight in [*model.parameters(), *model.buffers()]}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    step = TrainingStep(spec, model, optimizer_of(spec, model), device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step(batches)
    return sum(saved.values())


def batch_of(spec: TrainingSpec) -> Batch:
    """What a step of ``spec`` takes."""
    if spec.model == "transformer":
        text = torch.randint(OUTPUTS, (500,), generator=torch.Generator().manual_seed(1))
        return text_batch(text, spec.step_batch, spec.sequence, spec.seed, 0)
    context = Context(torch.device("cpu"), run_id=1, emit=[].append, clock=lambda: 0.0)
    return ClassBatches(spec, context).batch(0)


def live_activations(trace: Trace) -> int:
    """Bytes of activations that are allocated when the backward pass begins."""
    begins = next(mark.at for mark in trace.marks if mark.phase == BACKWARD)
    live = {event for event in trace.events[:begins] if event > 0} - {-event for event in trace.events[:begins]}
    return sum(trace.sizes[block - 1] for block in live if trace.categories[block - 1] == ACTIVATIONS)


def predicted(values: dict[str, Any], dry: DryRun) -> dict[str, int]:
    """What a dry run tells of one step: what is saved, and what lies there as activations."""
    spec, saved = spec_of(values), []

    def run(tracker: Tracker) -> None:
        tracker.step = 1
        saved.append(saved_bytes(spec, torch.device("sim", 0)))
        tracker.finish()

    trace = dry.record(run)
    return {"saved": saved[0], "activations": live_activations(trace)}


if __name__ == "__main__":
    process = DryRun()
    json.dump([predicted(values, process) for values in json.loads(sys.argv[1])], sys.stdout)
