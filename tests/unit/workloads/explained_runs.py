"""Runs that fill a simulated GPU, in a process of their own; prints what is told of each as one JSON document."""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES, SimulatedGpu
from gpudash.specs import MatmulSpec, PressureSpec, Spec, TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import Event, MemoryExplained, RunEnd, StepFinished, Warning
from gpudash.units import GIB, MIB
from gpudash.workloads import post_mortem
from gpudash.workloads.running import run
from gpudash.workloads.running.context import MemoryLevel, Requests
from gpudash.workloads.running.run import Run, RunRequest, release

FULL = {"until": "oom", "rate": 1000.0}
LEARNING: dict[str, Any] = {"model": "mlp", "width": 512, "depth": 4, "steps": 30, "batches": "resident"}


def told(spec: Spec, card: SimulatedGpu, *, asks: bool = False, cap: MemoryCap | None = None) -> dict[str, Any]:
    """How a run on ``card`` ended, what was told before, and what is left on the card."""
    events: list[Event] = []
    wishes = Requests()
    if asks:
        wishes.explain.set()
    began = time.monotonic()
    free, total = card.free_and_total()
    level = MemoryLevel(total - free, free, total)
    request = RunRequest(spec, "sim:0", 1, memory=lambda: level, expected_uuid=card.uuid, cards=(card,), memory_cap=cap)
    ending = Run(request, wishes, events.append, lambda: time.monotonic() - began).perform()
    release()
    gc.collect()
    notes = [event for event in events if isinstance(event, MemoryExplained)]
    warnings = [event for event in events if isinstance(event, Warning)]
    explanation = ending.explanation if isinstance(ending, RunEnd) and ending.status == "out_of_memory" else None
    return {
        "kind": ending.kind,
        "explanation": None if explanation is None else explanation.to_json(),
        "asked": [note.explanation.to_json() for note in notes],
        "warnings": [{"text": warning.text, "cause": warning.cause, "device": warning.device} for warning in warnings],
        "steps_before_warning": sum(isinstance(event, StepFinished) for event in events[: _first(events)]),
        "steps": ending.steps,
        "reserved": ending.result["memory"]["peak_reserved_bytes"],
        "room": min(free - CONTEXT_BYTES, total if cap is None else cap.size or total),
        "left_bytes": card.reserved_bytes(),
        "tagged": card.tagger is not None,
    }


def _first(events: list[Event]) -> int:
    return next((at for at, event in enumerate(events) if isinstance(event, Warning)), len(events))


def main() -> None:
    post_mortem.CHECK_PERIOD_S, post_mortem.CHECK_SHARE = 0.0, 1e9  # look between all steps, however fast they are
    gib, small = SimulatedGpu(0, GIB), SimulatedGpu(0, 512 * MIB)
    busy = SimulatedGpu(0, GIB, others={4711: 640 * MIB})
    runs = {
        "leak": (PressureSpec(pattern="leak", step=24 * MIB, **FULL), gib),
        "ramp": (PressureSpec(pattern="ramp", step=16 * MIB, **FULL), gib),
        "fragmentation": (PressureSpec(pattern="fragmentation", step=32 * MIB, **FULL), gib),
        "impossible": (MatmulSpec(size=20_000), gib),
        "capacity": (TrainingSpec(**LEARNING, batch=16_384), small),
        "other": (PressureSpec(pattern="spike", step=MIB, until="oom", rate=1000.0), busy),
        "sawtooth": (PressureSpec(pattern="sawtooth", step=16 * MIB, **FULL), gib),
        "learns": (TrainingSpec(**{**LEARNING, "width": 64}, batch=32), gib),
    }
    found = {name: told(spec, card, asks=name == "learns") for name, (spec, card) in runs.items()}
    for pattern in ("ramp", "leak"):
        within = PressureSpec(pattern=pattern, step=16 * MIB, rate=1000.0, hold=0.0)
        found[f"{pattern} on 1 GiB"] = told(within, SimulatedGpu(0, GIB))
        found[f"{pattern} allowed 512 MiB"] = told(within, SimulatedGpu(0, 2 * GIB), cap=MemoryCap(size=512 * MIB))
    run.fills_memory = lambda spec: False  # type: ignore[assignment]
    found["fragments"] = told(*runs["fragmentation"])
    found["context"] = told(MatmulSpec(size=64), SimulatedGpu(0, 100 * MIB))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
