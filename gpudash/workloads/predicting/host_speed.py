"""The host time PyTorch needs to start an operation: measured once, stored with PyTorch's version and the CPU's name.

If the operations of a step are small, it takes as long as the host needs to launch them all. This is the time of
Python, PyTorch's dispatcher and autograd, measured with tiny tensors on the CPU and without a GPU, plus the assumed
time of the call that launches a kernel.
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
"""Assumed host seconds for cudaLaunchKernel, in place of the tiny kernel on the CPU: profiles show 2 to 4 µs."""

WIDTH = 16
ROUNDS = 60
"""How many steps are timed; the fastest counts, because this computer may be busy."""

BLOCKS = 2

LONGEST_S = 2.0
"""Seconds after which no further step is timed."""

PLAUSIBLE_S = (1e-6, 1e-3)
MOST_BYTES = 4096


def known_host_speed() -> HostSpeed:
    """The measurement for this computer, or the default."""
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
    """Measure unless this was done with this PyTorch on this processor.

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
    except Exception:  # a newer torch may differ in any way: the default will do
        logger.exception("the host's time was not measured")
        return
    speeds = {"operation_s": measured.operation_s, "backward_operation_s": measured.backward_operation_s}
    logger.info("the host takes %.1f µs an operation, %.1f µs backward", *(1e6 * speed for speed in speeds.values()))
    with suppress(OSError):  # it will be measured again next time
        make_private_folder(_file().parent)
        with written_whole(_file(), private=True) as part:
            document = {"torch": torch.__version__, "processor": _processor(), **speeds}
            part.write_text(json.dumps(document, indent=2), encoding="utf-8")


def measure_host_speed(dry: DryRun) -> HostSpeed:
    """Time a step of a small transformer block on the CPU, in this thread.

    Args:
        dry: of this process, which counts the operations of such a step.
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
    """The processor's name as the kernel reports it, otherwise the architecture."""
    with suppress(OSError):
        for line in text_of(Path("/proc/cpuinfo")).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine()
