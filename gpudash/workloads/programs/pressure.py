"""Fills memory in a pattern, to demonstrate warnings, the guard and out-of-memory.

The patterns: steady steps; a training that keeps each step's loss, and with it the step's whole graph; a sawtooth;
holes that no request fits; a single spike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpudash.specs import PressureSpec
from gpudash.specs.training import CLASSES, FEATURES
from gpudash.system.garbage import without_collection
from gpudash.telemetry.records import Topic
from gpudash.units import format_bytes
from gpudash.workloads.programs.batches import classes
from gpudash.workloads.programs.pressure_sizes import (
    BATCH_BYTES,
    DEPTH,
    FIRST_TOOTH,
    LEARNING_RATE,
    OF_FREE,
    SAMPLE_BYTES,
    TEETH,
    WIDTH,
    growing,
    kept_bytes,
    leak_within,
)
from gpudash.workloads.running.context import Context, MemoryLevel
from gpudash.workloads.running.pace import Pace, filled, release
from gpudash.workloads.running.run_errors import WorkloadError


def leak(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """Train a small model whose steps leak about `step` bytes each, until they add up to ``cap``."""
    batch = max(1, min(spec.step, cap or spec.step) // SAMPLE_BYTES)
    lost = batch * SAMPLE_BYTES
    pace = Pace(spec, context, max(1, cap // lost) if cap is not None else None)
    inputs, targets = _batch(batch, spec.seed, context)
    model = small_model().to(context.device)
    with without_collection():  # a process's first optimizer imports 800 modules of torch
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    losses: list[torch.Tensor] = []
    while cap is None or (len(losses) + 1) * lost <= cap:
        pace.wait()
        context.about_to_allocate(lost)
        with context.stage("train step"):
            train_step(model, optimizer, inputs, targets, losses)
        pace.done(len(losses) * lost, loss=losses[-1].item())
    pace.hold(len(losses) * lost)
    with context.stage("free", bytes=len(losses) * lost, copied=False):
        losses.clear()
        context.free_cache()


def small_model() -> nn.Module:
    """A model that separates `CLASSES` classes by `FEATURES` features."""
    layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH), nn.GELU()]
    for _ in range(DEPTH - 1):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    losses: list[torch.Tensor],
) -> None:
    """One training step with a mistake: the list keeps the loss and its graph, which ``loss.item()`` would not."""
    losses.append(functional.cross_entropy(model(inputs), targets))
    torch.autograd.backward(losses[-1], retain_graph=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _batch(samples: int, seed: int, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples, the same for every step, on the run's device."""
    size = samples * BATCH_BYTES
    context.about_to_allocate(size, "cpu")
    if context.device.type != "cpu":
        context.about_to_allocate(size)
    points, labels = classes(samples, seed)
    return points.to(context.device), labels.to(context.device)


def ramp(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """Allocate blocks of `step` bytes and keep them."""
    pace = Pace(spec, context, len(steps_to(cap, spec.step)) if cap is not None else None)
    held: list[torch.Tensor] = []
    level = 0
    for size in steps_to(cap, spec.step) if cap is not None else itertools.repeat(spec.step):
        pace.wait()
        held.append(filled(size, context))
        level += size
        pace.done(level)
    pace.hold(level)
    release(held, context)


def sawtooth(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """Ramps that fall back to nothing, tooth by tooth. GPU memory that torch caches stays reserved until the end.

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
    release(held, context)


def fragmentation(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """Buffers that are freed except for a small part, as when batches grow longer and a little of each is kept.

    torch's CUDA allocator requests a new segment from the driver for each buffer, because it is larger than any hole,
    and cannot release the segment, because a part of it is in use. So nearly all memory is idle in holes, and a
    request larger than any of them fails.
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
    release(kept, context)


def _keep_a_part(size: int, part: int, context: Context) -> torch.Tensor:
    """Use a buffer of ``size`` bytes, then keep ``part`` bytes at its end."""
    buffer = filled(size, context)
    del buffer
    # The segment is now idle, and the only idle memory with room for the rest; what is left after that is used next.
    rest = torch.empty(size - part, dtype=torch.uint8, device=context.device)
    kept = filled(part, context)
    del rest
    return kept


def spike(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """A flat level of `step` bytes, with one short allocation up to the limit.

    Without a limit there is spike after spike, each twice as large as the one before.
    """
    if cap is None:
        flat = spec.step
    else:
        flat = min(spec.step, cap // 2)
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
    release(held, context)


def steps_to(cap: int, step: int) -> list[int]:
    """Sizes of the allocations that add up to ``cap``: all of ``step`` bytes except the last."""
    whole, rest = divmod(cap, step)
    return [step] * whole + ([rest] if rest else [])


def _doubling(first: int) -> Iterator[int]:
    return (first << doublings for doublings in itertools.count())


ABOVE_WARNING = 0.05
"""How far above the warning level the default limit is, as a fraction of capacity."""

PATTERNS: Mapping[str, Callable[[PressureSpec, Context, int | None], None]] = {
    "ramp": ramp,
    "leak": leak,
    "sawtooth": sawtooth,
    "fragmentation": fragmentation,
    "spike": spike,
}
"""`PressureSpec.pattern` → function that fills memory up to a number of bytes; ``None``: until it runs out."""


def run(spec: PressureSpec, context: Context) -> Mapping[str, Any]:
    """Fill memory in the spec's pattern, hold it, and free everything.

    Returns:
        ``cap_bytes`` (``None``: until memory runs out), ``allocated_bytes`` (the most held at once), ``allocations``
        and ``held_seconds``.

    Raises:
        WorkloadError: there is no limit and no reading to derive one from.
        GuardRefused: an allocation would cross the guard's level.
        torch.OutOfMemoryError: memory runs out, which is the purpose of ``until: oom``.
    """
    if spec.until == "oom":
        cap = None
    elif spec.cap is not None:
        cap = spec.cap
    else:
        cap = _default_cap(spec, context)
    context.keep(cap_bytes=cap, allocated_bytes=0, allocations=0, held_seconds=0.0)
    if cap == 0:
        context.note(Topic.PRESSURE, "Memory is already above the level that would be reached; nothing is allocated.")
        return context.kept
    if cap is None:
        end = "until memory runs out"
    else:
        end = f"up to {format_bytes(cap)}"
    context.note(
        Topic.PRESSURE,
        f"{spec.pattern.capitalize()} {end}: {format_bytes(spec.step)} a step, {spec.rate:g} a second.",
        pattern=spec.pattern,
        cap_bytes=cap,
    )
    context.begin_steps()
    PATTERNS[spec.pattern](spec, context, cap)
    return context.kept


def default_cap(level: MemoryLevel, warn_ratio: float) -> int:
    """Bytes from the current use to 5 % of capacity above the warning level, at most 80 % of free memory."""
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
    if spec.pattern == "leak":
        return leak_within(cap, spec.step)
    return cap


def _opened(context: Context) -> MemoryLevel | None:
    """The device's memory use with this process's context, which an earlier reading may lack."""
    level, module = context.memory(), getattr(torch, context.device.type, None)
    if level is None or module is None or not hasattr(module, "mem_get_info"):
        return level
    torch.empty(1, dtype=torch.uint8, device=context.device)
    free, total = module.mem_get_info(context.device)
    return MemoryLevel(max(level.used_bytes, total - free), min(level.free_bytes, free), level.total_bytes)
