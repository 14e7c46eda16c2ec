"""Filling memory, so that warnings and the guard can be seen."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from gpudash.specs import PressureSpec
from gpudash.units import format_bytes
from gpudash.workloads.context import Context, MemoryLevel
from gpudash.workloads.endings import WorkloadError

ABOVE_WARNING = 0.05
"""How far above the warning level the default cap lies, as a share of capacity."""

TOUCH = 2**27
"""Bytes written in one operation: a fraction of a second even where the system hands out pages slowly."""

OF_FREE = 0.80
"""Share of the memory free at the start that the default cap never exceeds."""


def run(spec: PressureSpec, context: Context) -> Mapping[str, Any]:
    """Allocate step by step up to the cap, hold, and give everything back.

    Returns:
        ``cap_bytes``, ``allocated_bytes`` (the most held at once), ``allocations`` and ``held_seconds``.

    Raises:
        WorkloadError: when there is no cap and no reading to take one from.
        GuardRefused: when an allocation would cross the guard's level.
    """
    cap = spec.cap if spec.cap is not None else _default_cap(context)
    sizes = steps_to(cap, spec.step)
    context.keep(cap_bytes=cap, allocated_bytes=0, allocations=0, held_seconds=0.0)
    if not sizes:
        context.note("pressure", "Memory is already above the level the ramp would reach; nothing is allocated.")
        return context.kept
    context.note("pressure", f"Up to {format_bytes(cap)} in {len(sizes)} steps, {spec.rate:g} a second.", cap_bytes=cap)
    held: list[torch.Tensor] = []
    began = time.perf_counter()
    context.begin_steps()
    for number, size in enumerate(sizes, 1):
        context.wait(began + (number - 1) / spec.rate - time.perf_counter())
        held.append(_filled(size, context))
        context.keep(allocated_bytes=context.kept["allocated_bytes"] + size, allocations=number)
        context.progress(number, len(sizes))
    with context.stage("hold", bytes=cap, copied=False):
        context.wait(spec.hold)
    context.keep(held_seconds=spec.hold)
    with context.stage("free", bytes=cap, copied=False):
        held.clear()
        context.free_cache()
    return context.kept


def steps_to(cap: int, step: int) -> list[int]:
    """Sizes of the allocations that add up to ``cap``: all of ``step`` bytes but the last."""
    whole, rest = divmod(cap, step)
    return [step] * whole + ([rest] if rest else [])


def default_cap(level: MemoryLevel, warn_ratio: float) -> int:
    """Bytes from the present use to 5 % of capacity above the warning level, at most 80 % of what is free."""
    target = min(1.0, warn_ratio + ABOVE_WARNING) * level.total_bytes
    return max(0, min(int(target) - level.used_bytes, int(OF_FREE * level.free_bytes)))


def _default_cap(context: Context) -> int:
    level = context.memory()
    if level is None:
        raise WorkloadError(
            "no_reading",
            f"The memory of {context.device} has not been read, so the ramp's end cannot be chosen.",
            "Name one with --cap, for example --cap 1GiB.",
        )
    return default_cap(level, context.warn_ratio)


def _filled(size: int, context: Context) -> torch.Tensor:
    """``size`` bytes whose pages are all written: memory nobody touches is not used."""
    context.about_to_allocate(size)
    device = str(context.device)
    with context.stage("allocate", bytes=size, to_device=device, device=device, copied=False):
        memory = torch.empty(size, dtype=torch.uint8, device=context.device)
        for first in range(0, size, TOUCH):
            context.check_cancelled()
            memory[first : first + TOUCH].fill_(1)
    return memory
