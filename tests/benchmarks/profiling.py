"""What profiling steps of a run costs: a profiled step beside a plain one of the same run, and the reading after."""

from __future__ import annotations

import queue
import statistics
import time
from typing import Any

import torch

from gpudash.specs import TrainingSpec
from gpudash.telemetry.records import Note, Topic
from gpudash.workloads.profiling import ProfileRequest
from gpudash.workloads.programs.training import run
from gpudash.workloads.running.context import Context, Requests

RUNS = 3
STEPS, PROFILED = 24, 8


def measure() -> dict[str, float]:
    """A profiled step over a plain one, and the seconds the run waits for each profiled step to be read; medians."""
    torch.set_num_threads(1)
    spec = TrainingSpec.model_validate({**TrainingSpec.presets["Transformer"], "steps": STEPS, "epochs": 1})
    told = [_profile(spec) for _ in range(RUNS + 1)][1:]
    return {
        "step_over_plain": statistics.median(facts["slowdown"] or 1.0 for facts in told),  # none: it was no slower
        "reading_s_a_step": statistics.median(facts["cost_seconds"] / PROFILED for facts in told),
    }


def _profile(spec: TrainingSpec) -> Any:
    records: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wishes = Requests()
    wishes.profile = ProfileRequest(PROFILED)
    context = Context(torch.device("cpu"), run_id=1, emit=records.put, clock=time.monotonic, requests=wishes)
    torch.manual_seed(spec.seed)
    run(spec, context)
    context.end_profile()
    while True:
        record = records.get_nowait()
        if isinstance(record, Note) and record.topic == Topic.OPERATORS:
            return record.details
