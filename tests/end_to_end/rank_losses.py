"""The losses of a training on several devices, without gpudash's ranks."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from gpudash.devices.names import Simulation
from gpudash.specs import TrainingSpec
from gpudash.telemetry.records import StepFinished
from gpudash.workloads.program_code import code
from gpudash.workloads.running.context import Requests
from gpudash.workloads.running.run import Run, RunRequest
from tests.end_to_end.conftest import run_python


def losses_alone(spec: TrainingSpec) -> list[float]:
    """The losses of one process with the batch of all ranks."""
    records: list[Any] = []
    Run(RunRequest(spec.joined_spec, "cpu", 1), Requests(), records.append, time.monotonic).perform()
    return [record.loss or math.nan for record in records if isinstance(record, StepFinished)]


def losses_of_shown_program(
    folder: Path, spec: TrainingSpec, device: str, simulation: Simulation | None = None
) -> list[float]:
    """The losses that the program prints which gpudash shows for a spec, run by two ranks of torchrun in ``folder``."""
    program = folder / "shown.py"
    program.write_text(code(spec, device, simulation))
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--local-addr=127.0.0.1")
    variables = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path.cwd())}
    done = run_python(folder, *launch, str(program), extra=variables)
    assert done.returncode == 0, done.stderr
    return [float(line.split()[1]) for line in done.stdout.splitlines()]
