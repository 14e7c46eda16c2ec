"""Runs workloads on ``sim:0``, one JSON line each: ``python -m tests.end_to_end.run_on_cards``.

Asked ``{"workload", "spec", "capacity"}``, it answers ``{"status", "allocated", "reserved", "left"}``: how the run
ended, its peaks and what the device still held behind it, in bytes. ``devices`` has the peaks of each device over which
a model is split, ``losses`` the loss of each step, ``copies`` the bytes copied from one device to another, and
``between`` what the first device held behind each step.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

import torch

from gpudash.simulator.device.backend import Backend, register
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.specs import build, workloads
from gpudash.telemetry.records import Event, StepFinished, Transfer
from gpudash.workloads.running.context import Context, MemoryLevel
from gpudash.workloads.running.run import resolve


class Hasty(Context):
    """A context that waits for nothing, and notes what a card holds behind each step."""

    card: SimulatedGpu
    between: list[int]

    def progress(self, step: int, steps: int) -> None:
        self.between.append(self.card.statistics()["allocated_bytes.all.current"])
        super().progress(step, steps)

    def wait(self, seconds: float) -> None:
        self.check_cancelled()


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """One run on a fresh card."""
    capacity = asked["capacity"]
    spec = build(workloads()[asked["workload"]], asked["spec"])
    cards = [SimulatedGpu(index, capacity) for index in range(2 if getattr(spec, "is_split", False) else 1)]
    card = cards[0]
    backend: Backend = register(cards)
    told: list[Event] = []
    level = MemoryLevel(used_bytes=0, free_bytes=capacity, total_bytes=capacity)
    context = Hasty(torch.device("sim", 0), run_id=1, emit=told.append, clock=time.monotonic, memory=lambda: level)
    context.card = card
    context.between = []
    context.devices = tuple(torch.device("sim", card.index) for card in cards)
    torch.manual_seed(spec.seed)
    status = "finished"
    try:
        resolve(spec)(spec, context)
        context.flush()
    except torch.OutOfMemoryError:
        status = "out_of_memory"
    statistics = card.statistics()
    peaks = [card.statistics() for card in cards]
    between = context.between
    del context
    backend.engine.drop_workspaces()
    return {
        "status": status,
        "allocated": statistics["allocated_bytes.all.peak"],
        "reserved": statistics["reserved_bytes.all.peak"],
        "left": sum(card.statistics()["allocated_bytes.all.current"] for card in cards),
        "devices": [[each["allocated_bytes.all.peak"], each["reserved_bytes.all.peak"]] for each in peaks],
        "losses": [event.loss for event in told if isinstance(event, StepFinished)],
        "copies": _copies(told),
        "between": between,
    }


def _copies(told: list[Event]) -> dict[str, int]:
    """From and to, with a space between → bytes."""
    found: Counter[str] = Counter()
    for event in told:
        if isinstance(event, Transfer):
            found[f"{event.from_device} {event.to_device}"] += event.bytes
    return dict(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
