"""What every rank is to run, as a file in the run's private folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpudash.specs import TrainingSpec, build
from gpudash.specs.memory_cap import MemoryCap

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "sim": "gloo"}
"""Kind of device → what connects the ranks. NCCL needs real GPUs; gloo exchanges the bytes of simulated ones."""

JOB = "job.json"
SOCKET = "ranks"
LOGS = "logs"
PRINTED = "printed.txt"
"""Files and folders of the run's private folder: this job, the socket the ranks tell, torchrun's logs, and what it and
the ranks print."""

TORCHRUN = "GPUDASH_TORCHRUN_PID"
"""Environment variable: the process that starts the ranks, with which they end."""


@dataclass(frozen=True)
class Job:
    """One data-parallel run.

    Attributes:
        fields: of the `TrainingSpec`, those that were set.
        origin_s: the system's monotonic clock at session time 0.
        memory_cap: the most each rank may reserve on its GPU, as `MemoryCap` has it.
        uuids: which GPU each device is to be, by NVML; ``None`` where that is not known.
        warn_ratio: memory level of a warning, 0 to 1.
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
        """What is trained."""
        found = build(TrainingSpec, self.fields)
        assert isinstance(found, TrainingSpec)
        return found

    @property
    def cap(self) -> MemoryCap | None:
        """The limit of each rank's memory."""
        if self.memory_cap is None:
            return None
        return MemoryCap(**self.memory_cap)

    def write(self, folder: Path) -> None:
        """Put it into ``folder``.

        Raises:
            OSError: when that cannot be written.
        """
        (folder / JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_job(folder: Path) -> Job:
    """The job that `Job.write` has put into ``folder``."""
    return Job(**json.loads((folder / JOB).read_text(encoding="utf-8")))
