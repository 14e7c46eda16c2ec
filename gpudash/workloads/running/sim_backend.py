"""The simulated device in the process that runs workloads: added to torch at its first use, and never beside CUDA."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.workloads.running.run_errors import WorkloadError

if TYPE_CHECKING:
    from gpudash.simulator.device.backend import Backend

BACKEND = "gpudash.simulator.device.backend"


def problem() -> str | None:
    """Why the torch of this process cannot be given a simulated GPU, in one sentence; ``None`` when it can."""
    from gpudash.simulator.device import probe

    return probe.problem()


def in_use() -> Backend | None:
    """The simulated device of this process; ``None`` while no run has used it. Imports nothing."""
    backend = sys.modules.get(BACKEND)
    found: Backend | None = None if backend is None else backend.registered()
    return found


def add(cards: Sequence[SimulatedGpu]) -> None:
    """Make ``cards`` torch's devices ``sim:0``, ``sim:1`` and so on, unless they are already.

    Raises:
        WorkloadError: one sentence, when this process has run on CUDA, this torch cannot, or other cards are in use.
    """
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise WorkloadError(
            "device",
            "This process has run on a CUDA device, so it cannot run on a simulated one.",
            "Run it with --isolate, or restart gpudash to run on sim:0.",
        )
    present = in_use()
    if present is not None and list(present.cards) == list(cards):
        return
    from gpudash.simulator.device.backend import register

    try:
        register(cards)
    except (RuntimeError, ValueError) as error:
        raise WorkloadError("device", str(error), "Run on cpu instead; gpudash doctor says more.") from error


def refuse_cuda() -> None:
    """Keep CUDA away from a process that has run on a simulated GPU.

    Raises:
        WorkloadError: when it has.
    """
    if in_use() is not None:
        raise WorkloadError(
            "device",
            "This process has run on a simulated GPU, so it cannot run on a CUDA device.",
            "Leave --no-isolate out, or restart gpudash to run on a CUDA device.",
        )


def release(backend: Backend, *, context: bool) -> tuple[int, int]:
    """Let go of the workspaces, of idle segments and, with ``context``, of the contexts of cards on which nothing is
    left; bytes reserved on all cards before and after.
    """
    before = sum(card.reserved_bytes() for card in backend.cards)
    backend.engine.drop_workspaces()
    backend.module.empty_cache()
    for card in backend.cards if context else ():
        card.close_context()
    return before, sum(card.reserved_bytes() for card in backend.cards)
