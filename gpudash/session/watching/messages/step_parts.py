"""The parts of a watched program's steps, as its agent adds them up: stages of its run, and how its loader is set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpudash.agent.stepping.step_clock import PARTS
from gpudash.agent.wire import number_in
from gpudash.telemetry.records import StageFinished
from gpudash.telemetry.results.step_parts import FIRST_BATCH, Loader

NAMES = {"first_batch": FIRST_BATCH}
"""Stages that are called otherwise than the agent's parts."""

LOADED_REMARKS = {
    "input": "the program waits for its DataLoader",
    FIRST_BATCH: "of a pass over the DataLoader, for which its workers begin",
    "forward": "from the batch to the backward pass, with all that is done in between",
    "other": "what is between: reading the loss, evaluating, saving",
}
REMARKS = {
    "forward": "from the end of the step before to the backward pass, with what makes the batch",
    "other": LOADED_REMARKS["other"],
}
"""What a part holds; of a program without a loader nobody knows where its batch begins."""


class HeardParts:
    """What each process has told so far.

    Attributes:
        loader: how the loader is set for which the program waits longest; ``None`` before it is known.
    """

    def __init__(self) -> None:
        self.loader: Loader | None = None
        self._sums: dict[int, dict[str, float]] = {}

    def take(self, pid: int, found: Any, time_s: float, run_id: int) -> list[StageFinished]:
        """What has been added since the process told of its steps before; empty where nothing or nonsense has come."""
        if not isinstance(found, Mapping):
            return []
        sums = {name: number_in(found.get(name)) for name in ("steps", "passes", *PARTS)}
        now = {name: value for name, value in sums.items() if value is not None and math.isfinite(value) and value >= 0}
        if len(now) < len(sums):
            return []
        before = self._sums.get(pid, {})
        # one that has begun anew, as after a fork, has told nothing
        if now["steps"] < before.get("steps", 0.0):
            before = {}
        self._sums[pid] = now
        added = {name: max(0.0, value - before.get(name, 0.0)) for name, value in now.items()}
        self._take_loader(found)
        remarks = REMARKS
        if self.loader is not None:
            remarks = LOADED_REMARKS
        stages = []
        for part in PARTS:
            name = NAMES.get(part, part)
            count = int(added["passes" if part == "first_batch" else "steps"])
            if count and added[part]:
                stages.append(
                    StageFinished(
                        time_s=time_s,
                        run_id=run_id,
                        name=name,
                        seconds=added[part],
                        count=count,
                        remark=remarks.get(name),
                    )
                )
        return stages

    def _take_loader(self, found: Mapping[str, Any]) -> None:
        settings, cores = found.get("loader"), found.get("cores")
        if isinstance(settings, Mapping):
            self.loader = Loader.of({**settings, "cores": cores}) or self.loader
