"""The parts of a watched program's steps, summed by its agent: stages of its run, and its loader's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpudash.agent.stepping.step_clock import PARTS
from gpudash.agent.wire import number_in
from gpudash.telemetry.records import StageFinished
from gpudash.telemetry.results.step_parts import FIRST_BATCH, Loader

NAMES = {"first_batch": FIRST_BATCH}
"""Stages with other names than the agent's parts."""

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
"""Contents of a part; without a loader, it is unknown where its batch begins."""


class HeardParts:
    """The totals that each process has reported so far.

    Attributes:
        loader: settings of the loader that the program waits for longest; ``None`` before that is known.
    """

    def __init__(self) -> None:
        self.loader: Loader | None = None
        self._sums: dict[int, dict[str, float]] = {}

    def take(self, pid: int, found: Any, time_s: float, run_id: int) -> list[StageFinished]:
        """The increase since the process's previous report; empty if there is none, or it is invalid."""
        if not isinstance(found, Mapping):
            return []
        sums = {name: number_in(found.get(name)) for name in ("steps", "passes", *PARTS)}
        now = {name: value for name, value in sums.items() if value is not None and math.isfinite(value) and value >= 0}
        if len(now) < len(sums):
            return []
        before = self._sums.get(pid, {})
        # After a restart, as by a fork, nothing has been reported yet.
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
