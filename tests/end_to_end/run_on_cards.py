"""Runs workloads on ``sim:0``, one JSON line each: ``python -m tests.end_to_end.run_on_cards``.

Asked ``{"workload", "spec", "capacity"}``, it answers ``{"status", "allocated", "reserved", "left"}``: how the run
ended, its peaks and what the device still held behind it, in bytes.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from gpudash.simulator.device.backend import Backend, register
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.specs import build, workloads
from gpudash.workloads.running.context import Context, MemoryLevel
from gpudash.workloads.running.run import resolve


class Hasty(Context):
    """A context that waits for nothing."""

    def wait(self, seconds: float) -> None:
        self.check_cancelled()


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """One run on a fresh card."""
    capacity = asked["capacity"]
    card = SimulatedGpu(0, capacity)
    backend: Backend = register([card])
    spec = build(workloads()[asked["workload"]], asked["spec"])
    level = MemoryLevel(used_bytes=0, free_bytes=capacity, total_bytes=capacity)
    context = Hasty(
        torch.device("sim", 0), run_id=1, emit=lambda _event: None, clock=time.monotonic, memory=lambda: level
    )
    torch.manual_seed(spec.seed)
    status = "finished"
    try:
        resolve(spec)(spec, context)
    except torch.OutOfMemoryError:
        status = "out_of_memory"
    statistics = card.statistics()
    del context
    backend.engine.drop_workspaces()
    return {
        "status": status,
        "allocated": statistics["allocated_bytes.all.peak"],
        "reserved": statistics["reserved_bytes.all.peak"],
        "left": card.statistics()["allocated_bytes.all.current"],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
