"""How often a rank slowed by a fifth is named, and how often nobody among equals is: for a machine that is quiet.

``python -m tests.benchmarks.stragglers 10`` trains ten times each way, in turn, on two CPUs, and prints the counts and
what else went on; it fails where fewer than nine of ten are right.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.records import Record
from gpudash.workloads.programs.parallel.parallel_run import ParallelRun
from gpudash.workloads.running.context import Requests
from gpudash.workloads.running.run import RunRequest

FIELDS: dict[str, Any] = {
    "devices": "cpu,cpu",
    "model": "mlp",
    "width": 512,
    "depth": 3,
    "batch": 64,
    "steps": 250,
    "optimizer": "sgd",
}

SHARE = 0.2
LEAST_RIGHT = 0.9


def outcome(share: float) -> dict[str, Any]:
    """Who a run named, by how much, and by how much its ranks' computing differed, if the last is slowed by a share."""
    spec = build(TrainingSpec, {**FIELDS, "slow_rank": share})
    assert isinstance(spec, TrainingSpec)
    told: list[Record] = []
    began = time.monotonic()
    run = ParallelRun(RunRequest(spec, "cpu", 1), Requests(), told.append, lambda: time.monotonic() - began)
    ending: Any = run.perform()
    if ending.kind != "RunFinished":
        raise SystemExit(f"{ending.message} {ending.details}")
    first, last = (row["compute_seconds_median"] for row in ending.result["ranks"])
    straggler = ending.result["straggler"] or {}
    return {
        "slowed_by": share,
        "named": straggler.get("rank"),
        "slower": straggler.get("slower"),
        "computing": last / first - 1,
        "load": os.getloadavg()[0],
    }


def main(repetitions: int) -> int:
    """Repeat, print one line a run and the counts; 0 when nine of ten are right both ways."""
    slowed, equal = 0, 0
    for _repetition in range(repetitions):
        for share in (SHARE, 0.0):
            found = outcome(share)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
            if share:
                slowed += found["named"] == 1
            else:
                equal += found["named"] is None
    counts = {"repetitions": repetitions, "slowed_rank_named": slowed, "nobody_named_among_equals": equal}
    sys.stdout.write(json.dumps(counts) + "\n")
    return 0 if min(slowed, equal) >= LEAST_RIGHT * repetitions else 1


if __name__ == "__main__":
    if len(sys.argv) > 2 or not (sys.argv[1:] or ["10"])[0].isdecimal():
        raise SystemExit("python -m tests.benchmarks.stragglers [REPETITIONS]")
    raise SystemExit(main(int((sys.argv[1:] or ["10"])[0])))
