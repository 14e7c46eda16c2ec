"""Filling memory by a pattern, so that warnings, the guard and an out-of-memory can be seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpudash.specs import PressureSpec
from gpudash.units import format_bytes
from gpudash.workloads.context import Context, MemoryLevel
from gpudash.workloads.endings import WorkloadError
from gpudash.workloads.pressure_leak import leak
from gpudash.workloads.pressure_patterns import fragmentation, ramp, sawtooth, spike
from gpudash.workloads.pressure_sizes import OF_FREE, leak_within

ABOVE_WARNING = 0.05
"""How far above the warning level the default cap lies, as a share of capacity."""

PATTERNS: Mapping[str, Callable[[PressureSpec, Context, int | None], None]] = {
    "ramp": ramp,
    "leak": leak,
    "sawtooth": sawtooth,
    "fragmentation": fragmentation,
    "spike": spike,
}
"""`PressureSpec.pattern` → what fills memory up to a number of bytes; ``None``: until there is no more."""


def run(spec: PressureSpec, context: Context) -> Mapping[str, Any]:
    """Fill memory by the spec's pattern, hold it, and give everything back.

    Returns:
        ``cap_bytes`` (``None``: until memory runs out), ``allocated_bytes`` (the most held at once), ``allocations``
        and ``held_seconds``.

    Raises:
        WorkloadError: when there is no cap and no reading to take one from.
        GuardRefused: when an allocation would cross the guard's level.
        torch.OutOfMemoryError: when memory runs out, which is what ``until: oom`` is for.
    """
    cap = None if spec.until == "oom" else spec.cap if spec.cap is not None else _default_cap(spec, context)
    context.keep(cap_bytes=cap, allocated_bytes=0, allocations=0, held_seconds=0.0)
    if cap == 0:
        context.note("pressure", "Memory is already above the level that would be reached; nothing is allocated.")
        return context.kept
    end = "until memory runs out" if cap is None else f"up to {format_bytes(cap)}"
    context.note(
        "pressure",
        f"{spec.pattern.capitalize()} {end}: {format_bytes(spec.step)} a step, {spec.rate:g} a second.",
        pattern=spec.pattern,
        cap_bytes=cap,
    )
    context.begin_steps()
    PATTERNS[spec.pattern](spec, context, cap)
    return context.kept


def default_cap(level: MemoryLevel, warn_ratio: float) -> int:
    """Bytes from the present use to 5 % of capacity above the warning level, at most 80 % of what is free."""
    target = min(1.0, warn_ratio + ABOVE_WARNING) * level.total_bytes
    return max(0, min(int(target) - level.used_bytes, int(OF_FREE * level.free_bytes)))


def _default_cap(spec: PressureSpec, context: Context) -> int:
    level = _opened(context)
    if level is None:
        raise WorkloadError(
            "no_reading",
            f"The memory of {context.device} has not been read, so where to end cannot be chosen.",
            "Name it with --cap, for example --cap 1GiB.",
        )
    if spec.pattern == "spike":
        return int(OF_FREE * level.free_bytes)
    cap = default_cap(level, context.warn_ratio)
    return leak_within(cap, spec.step) if spec.pattern == "leak" else cap


def _opened(context: Context) -> MemoryLevel | None:
    """How full the device is with this process's context on it, which an earlier reading may be without."""
    level, module = context.memory(), getattr(torch, context.device.type, None)
    if level is None or module is None or not hasattr(module, "mem_get_info"):
        return level
    torch.empty(1, dtype=torch.uint8, device=context.device)
    free, total = module.mem_get_info(context.device)
    return MemoryLevel(max(level.used_bytes, total - free), min(level.free_bytes, free), level.total_bytes)
