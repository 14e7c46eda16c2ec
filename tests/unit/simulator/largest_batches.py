"""The largest batch that a prediction names, and whether it and the next one fit."""

from __future__ import annotations

import json
import sys
from typing import Any

from gpudash.memory.predicting.estimate import Target
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.specs import TrainingSpec, build
from gpudash.units import GIB
from gpudash.workloads.predicting.estimate import Question, estimate
from gpudash.workloads.running.context import MemoryLevel


def edge(values: dict[str, Any], dry: DryRun) -> dict[str, Any]:
    """What is named for a spec, and whether it, and one more, fits."""
    largest = _answer(values, dry).largest_batch_size
    assert largest is not None
    tried = [batch for batch in (largest, largest + 1) if batch]
    around = {batch: _answer({**values, "batch": batch}, dry, only=True).fits for batch in tried}
    return {"largest": largest, "fits": around.get(largest, True), "next": around[largest + 1]}


def _answer(values: dict[str, Any], dry: DryRun, *, only: bool = False) -> Any:
    spec = build(TrainingSpec, values)
    target = Target("sim:0", capacity_bytes=2 * GIB, free_bytes=2 * GIB, overhead_bytes=300 * 2**20)
    answers = estimate(Question(spec, target, MemoryLevel(0, 2 * GIB, 2 * GIB)), dry, alternatives=not only)
    for found in answers:
        if only or found.largest_batch_size is not None:
            return found
    raise AssertionError("no largest batch was named")


if __name__ == "__main__":
    process = DryRun()
    json.dump([edge(values, process) for values in json.loads(sys.argv[1])], sys.stdout)
