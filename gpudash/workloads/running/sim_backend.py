"""The simulated device in the process that runs workloads: added to torch at its first use, and never beside CUDA."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.device.process_table import ProcessTable
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.workloads.running.run_errors import WorkloadError

if TYPE_CHECKING:
    from gpudash.simulator.device.backend import Backend

BACKEND = "gpudash.simulator.device.backend"


def problem() -> str | None:
    """Why this process's torch cannot be given a simulated GPU, in one sentence; ``None`` if it can."""
    from gpudash.simulator.device import probe

    return probe.problem()


def in_use() -> Backend | None:
    """The simulated device of this process; ``None`` if no run has used it. Imports nothing."""
    backend = sys.modules.get(BACKEND)
    found: Backend | None = None
    if backend is not None:
        found = backend.registered()
    return found


def add(cards: Sequence[SimulatedGpu]) -> None:
    """Make ``cards`` torch's devices ``sim:0``, ``sim:1`` and so on, unless they are already.

    Raises:
        WorkloadError: in one sentence, if this process has run on CUDA, this torch does not support it, or other cards
            are in use.
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
    """Keep CUDA out of a process that has run on a simulated GPU.

    Raises:
        WorkloadError: it has.
    """
    if in_use() is not None:
        raise WorkloadError(
            "device",
            "This process has run on a simulated GPU, so it cannot run on a CUDA device.",
            "Leave --no-isolate out, or restart gpudash to run on a CUDA device.",
        )


def release(backend: Backend, *, context: bool) -> tuple[int, int]:
    """Free the workspaces, cached segments and, with ``context``, the contexts of empty cards; returns the bytes
    reserved on all cards before and after.
    """
    before = sum(card.reserved_bytes() for card in backend.cards)
    backend.engine.drop_workspaces()
    backend.module.empty_cache()
    for card in backend.cards if context else ():
        card.close_context()
    return before, sum(card.reserved_bytes() for card in backend.cards)


def card_fields(card: SimulatedGpu) -> dict[str, Any]:
    """Describe a card of this process for another process, where this one's memory counts as others'."""
    others, ours = dict(card.others), card.reserved_bytes() + card.context_bytes
    if ours:
        others[os.getpid()] = ours
    return {
        "index": card.index,
        "capacity": card.capacity,
        "others": others,
        "settings": asdict(card.settings),
        "product": card.product,
        "architecture": asdict(card.architecture),
    }


def card_from(fields: Mapping[str, Any], table: ProcessTable | None = None) -> SimulatedGpu:
    """The card that `card_fields` described, in the process that runs on it.

    Args:
        table: the processes that share it, as for `SimulatedGpu`.
    """
    settings = dict(fields["settings"])
    divisions = settings["roundup_power2_divisions"]
    if not isinstance(divisions, int):
        settings["roundup_power2_divisions"] = {int(interval): parts for interval, parts in divisions.items()}
    others, design = {int(pid): held for pid, held in fields["others"].items()}, fields["architecture"]
    return SimulatedGpu(
        fields["index"],
        fields["capacity"],
        others=others,
        settings=AllocatorSettings(**settings),
        architecture=Architecture(tuple(design["capability"]), design["multiprocessors"]),
        product=fields["product"],
        table=table,
    )


def card_figures(card: SimulatedGpu) -> dict[str, Any]:
    """What a card holds now, as a message for `MirroredCard`; sizes in bytes."""
    return {
        "index": card.index,
        "capacity_bytes": card.capacity,
        "reserved_bytes": card.reserved_bytes(),
        "context_bytes": card.context_bytes,
        "others_bytes": card.others,
        "busy_s": card.busy_s,
    }
