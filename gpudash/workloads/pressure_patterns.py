"""How memory fills: in steady steps, in teeth, in holes that no request fits, in one spike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from gpudash.specs import PressureSpec
from gpudash.workloads.context import Context
from gpudash.workloads.pressure_pace import Pace, filled, let_go
from gpudash.workloads.pressure_sizes import FIRST_TOOTH, TEETH, growing, kept_bytes


def ramp(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """Allocations of `step` bytes that are kept."""
    pace = Pace(spec, context, len(steps_to(cap, spec.step)) if cap is not None else None)
    held: list[torch.Tensor] = []
    level = 0
    for size in steps_to(cap, spec.step) if cap is not None else itertools.repeat(spec.step):
        pace.wait()
        held.append(filled(size, context))
        level += size
        pace.done(level)
    pace.hold(level)
    let_go(held, context)


def sawtooth(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """Ramps that fall back to nothing, tooth by tooth. What torch keeps of a GPU's memory stays with it until the end.

    Without a cap each tooth is twice as high as the one before.
    """
    pace = Pace(spec, context, TEETH * len(steps_to(cap, spec.step)) if cap is not None else None)
    held: list[torch.Tensor] = []
    for top in itertools.repeat(cap, TEETH) if cap is not None else _doubling(FIRST_TOOTH * spec.step):
        level = 0
        for size in steps_to(top, spec.step):
            pace.wait()
            held.append(filled(size, context))
            level += size
            pace.done(level)
        if cap is not None:
            pace.hold(level)
        with context.stage("fall", bytes=level, copied=False):
            held.clear()
    let_go(held, context)


def fragmentation(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """Buffers that are freed but for a small part each, as when batches grow longer and a little of each is kept.

    Torch's CUDA allocator takes a fresh segment from the driver for each buffer, since it is longer than any hole,
    and cannot give the segment back, since a part of it is in use. So nearly all memory lies idle in holes, and a
    request that is larger than any of them fails.
    """
    pace = Pace(spec, context, len(list(growing(spec.step, cap))) if cap is not None else None)
    kept: list[torch.Tensor] = []
    level = 0
    for size in growing(spec.step, cap):
        pace.wait()
        kept.append(_keep_a_part(size, kept_bytes(size), context))
        pace.done(level + size)
        level += kept[-1].nbytes
    pace.hold(level)
    let_go(kept, context)


def _keep_a_part(size: int, part: int, context: Context) -> torch.Tensor:
    """Use a buffer of ``size`` bytes, then keep ``part`` bytes at the end of where it was."""
    buffer = filled(size, context)
    del buffer
    # The segment is idle now, and the only idle memory that has room for the rest; what stays behind it is taken next.
    rest = torch.empty(size - part, dtype=torch.uint8, device=context.device)
    kept = filled(part, context)
    del rest
    return kept


def spike(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """A flat level of `step` bytes, and one short allocation up to the cap.

    Without a cap there is spike after spike, each twice as large as the one before.
    """
    flat = spec.step if cap is None else min(spec.step, cap // 2)
    pace = Pace(spec, context, 2 if cap is not None else None)
    pace.wait()
    held = [filled(flat, context)]
    pace.done(flat)
    for size in [cap - flat] if cap is not None else _doubling(2 * flat):
        if cap is not None:
            pace.hold(flat)
        pace.wait()
        memory = filled(size, context)
        pace.done(flat + size)
        context.wait(1 / spec.rate)
        del memory
    pace.hold(flat)
    let_go(held, context)


def steps_to(cap: int, step: int) -> list[int]:
    """Sizes of the allocations that add up to ``cap``: all of ``step`` bytes but the last."""
    whole, rest = divmod(cap, step)
    return [step] * whole + ([rest] if rest else [])


def _doubling(first: int) -> Iterator[int]:
    return (first << doublings for doublings in itertools.count())
