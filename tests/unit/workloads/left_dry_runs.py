"""Leaves a dry run after so many looks for a newer request, and says whether the next one is as if nothing had been:
one line of JSON, in a process of its own.
"""

from __future__ import annotations

import json
import sys

from gpudash.memory.allocator.trace import Trace
from gpudash.specs import TrainingSpec
from gpudash.workloads.predicting.dry_run import trace_of
from gpudash.workloads.predicting.estimate_process import SupersededError, _prepare

SPEC = TrainingSpec(width=32, depth=2, batch=4, sequence=16, steps=5, epochs=1, checkpointing=True)

looks = 0
left_after: float = 0


def newer_request_waits() -> bool:
    global looks
    looks += 1
    return looks > left_after


def facts(trace: Trace) -> tuple[list[int], list[int], list[str]]:
    return trace.sizes.tolist(), trace.events.tolist(), trace.categories


_version, dry = _prepare(newer_request_waits)


def undisturbed() -> tuple[list[int], list[int], list[str]]:
    global looks, left_after
    looks, left_after = 0, float("inf")
    return facts(trace_of(SPEC, dry))


first = undisturbed()
whole = looks
left = []
alike = []
for part in range(8):
    looks, left_after = 0, part * whole // 8
    try:
        trace_of(SPEC, dry)
    except SupersededError:
        left.append(looks == left_after + 1)
    alike.append(undisturbed() == first)
sys.stdout.write(json.dumps({"looks": whole, "left": left, "alike": alike}) + "\n")
