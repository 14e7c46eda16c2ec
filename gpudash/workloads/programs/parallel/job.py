"""What every rank should run, as a file in the run's private folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpudash.specs import TrainingSpec, build
from gpudash.specs.memory_cap import MemoryCap

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "sim": "gloo"}
"""Device type → backend that connects the ranks. NCCL needs real GPUs; gloo exchanges the bytes of simulated ones."""

JOB = "job.json"
SOCKET = "ranks"
LOGS = "logs"
PRINTED = "printed.txt"
"""Files and folders in the run's private folder: this job, the socket for the ranks' messages, torchrun's logs, and
the output of torchrun and the ranks."""

TORCHRUN = "GPUDASH_TORCHRUN_PID"
"""Environment variable with the ID of the process that starts the ranks, which end with it."""


@dataclass(frozen=True)
class Job:
    """One data-parallel run.

    Attributes:
        fields: of the `TrainingSpec`, those that were set.
        origin_s: the system's monotonic clock at session time 0.
        memory_cap: the most each rank may reserve on its GPU, as in `MemoryCap`.
        uuids: NVML UUID of the GPU for each device; ``None`` if unknown.
        warn_ratio: memory level for a warning, 0 to 1.
        cards: the simulated GPUs, as `gpudash.workloads.running.sim_backend.card_fields` describes them.
    """

    fields: dict[str, Any]
    origin_s: float
    memory_cap: dict[str, Any] | None
    uuids: list[str | None]
    warn_ratio: float
    cards: list[dict[str, Any]]

    @property
    def spec(self) -> TrainingSpec:
        """The spec of the training."""
        found = build(TrainingSpec, self.fields)
        assert isinstance(found, TrainingSpec)
        return found

    @property
    def cap(self) -> MemoryCap | None:
        """The limit for each rank's memory."""
        if self.memory_cap is None:
            return None
        return MemoryCap(**self.memory_cap)

    def write(self, folder: Path) -> None:
        """Write it to ``folder``.

        Raises:
            OSError: it cannot be written.
        """
        (folder / JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_job(folder: Path) -> Job:
    """The job that `Job.write` wrote to ``folder``."""
    return Job(**json.loads((folder / JOB).read_text(encoding="utf-8")))
