"""What PyTorch takes on this computer to start an operation: measured once, kept with its version and the CPU's name.

Where a device has little to do in each operation, a step takes as long as the host needs to start them all. That is
Python's, PyTorch's dispatcher's and autograd's time, which tiny tensors on the CPU show without a GPU, and the call
that starts a kernel, which is assumed.
"""

from __future__ import annotations

import json
import logging
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.speed.work import HostSpeed, StepWork
from gpudash.system.files import make_private_folder, text_of, written_whole
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudash.simulator.dry_run.dry_run import DryRun

logger = logging.getLogger(__name__)

MEASURED = "measured on this computer"

LAUNCH_S = 2.5e-6
"""Seconds of the host's in cudaLaunchKernel, in place of which a tiny kernel ran on the CPU: assumed, as 2 to 4 µs are
seen in profiles."""

WIDTH = 16
ROUNDS = 60
"""Steps that are timed; the quickest counts, for this computer may be busy."""

BLOCKS = 2

LONGEST_S = 2.0
"""Seconds after which no other step is timed."""

PLAUSIBLE_S = (1e-6, 1e-3)
MOST_BYTES = 4096


def known_host_speed() -> HostSpeed:
    """What was measured on this computer, else what is usual."""
    try:
        found = json.loads(read_regular(_file(), MOST_BYTES))
        speeds = float(found["operation_s"]), float(found["backward_operation_s"])
        processor = found["processor"]
    except (OSError, ValueError, TypeError, KeyError):
        return HostSpeed()
    least, most = PLAUSIBLE_S
    if processor != _processor() or not all(least < speed < most for speed in speeds):
        return HostSpeed()
    return HostSpeed(*speeds, source=MEASURED)


def keep_host_speed(dry: DryRun) -> None:
    """Measure unless that was done with this PyTorch on this processor.

    Args:
        dry: of this process.
    """
    import torch

    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(read_regular(_file(), MOST_BYTES))
        if (found["torch"], found["processor"]) == (torch.__version__, _processor()):
            return
    try:
        measured = measure_host_speed(dry)
    except Exception:  # whatever a newer torch does otherwise: what is usual will do
        logger.exception("the host's time was not measured")
        return
    speeds = {"operation_s": measured.operation_s, "backward_operation_s": measured.backward_operation_s}
    logger.info("the host takes %.1f µs an operation, %.1f µs backward", *(1e6 * speed for speed in speeds.values()))
    with suppress(OSError):  # it is measured again another time
        make_private_folder(_file().parent)
        with written_whole(_file(), private=True) as part:
            document = {"torch": torch.__version__, "processor": _processor(), **speeds}
            part.write_text(json.dumps(document, indent=2), encoding="utf-8")


def measure_host_speed(dry: DryRun) -> HostSpeed:
    """Time the step of a small block of a transformer on the CPU, in this thread.

    Args:
        dry: of this process, which tells how many operations such a step has.
    """

    def run(tracker: Any) -> None:
        forward = _block("sim:0")
        for number in (1, 2):
            tracker.step = number
            forward().backward()
        tracker.finish()

    work = dry.record(run, trusting=True).work
    assert work is not None
    forward = _block("cpu")
    quickest = [float("inf"), float("inf")]
    until = time.perf_counter() + LONGEST_S
    for _ in range(ROUNDS):
        began = time.perf_counter()
        loss = forward()
        turned = time.perf_counter()
        loss.backward()
        ended = time.perf_counter()
        quickest = [min(quickest[0], turned - began), min(quickest[1], ended - turned)]
        if ended > until:
            break
    ahead, back = (_operations(work, phase) for phase in ("forward", "backward"))
    return HostSpeed(quickest[0] / ahead + LAUNCH_S, quickest[1] / back + LAUNCH_S, source=MEASURED)


def _operations(work: StepWork, phase: str) -> int:
    return sum(count for operation, count in work.operations.items() if operation.phase == phase)


def _block(device: str) -> Callable[[], Any]:
    """The forward pass of a tiny block on ``device``, which returns a loss."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LayerNorm(WIDTH)
            self.taken = nn.Linear(WIDTH, 3 * WIDTH)
            self.given = nn.Linear(WIDTH, WIDTH)
            self.second = nn.LayerNorm(WIDTH)
            self.wide = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            queries, keys, values = self.taken(self.first(tokens)).chunk(3, -1)
            scores = torch.softmax(queries @ keys.transpose(-2, -1) * WIDTH**-0.5, -1)
            tokens = tokens + self.given(scores @ values)
            made: torch.Tensor = tokens + self.wide(self.second(tokens))
            return made

    with torch.device("cpu"):
        blocks = nn.Sequential(*(Block() for _ in range(BLOCKS))).to(device)
        tokens = torch.ones(1, 4, WIDTH).to(device)
    return lambda: blocks(tokens).mean()


def _file() -> Path:
    return data_folder() / "host_speed.json"


def _processor() -> str:
    """The processor's name as the kernel tells it, else the architecture."""
    with suppress(OSError):
        for line in text_of(Path("/proc/cpuinfo")).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine()
