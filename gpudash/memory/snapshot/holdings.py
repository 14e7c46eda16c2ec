"""Live blocks of a history as `explain` takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.allocator.rounding import LARGEST_SMALL, Rounding, segment_size
from gpudash.memory.held import Frame, HeldState, Holding, Recorded, Request
from gpudash.memory.snapshot.categories import CATEGORIES
from gpudash.memory.snapshot.layout import FREE
from gpudash.memory.snapshot.model import NONE, OOM, Stack, is_python
from gpudash.memory.snapshot.roles import PHASES

if TYPE_CHECKING:
    from gpudash.memory.snapshot.history import History

Ints = NDArray[np.int64]


def python_stack(stack: Stack) -> tuple[Frame, ...]:
    """Python's lines of a stack, innermost first."""
    return tuple(Frame(*frame) for frame in filter(is_python, stack))


def holdings(history: History, alive: Ints) -> tuple[Holding, ...]:
    """Blocks of one stack, category, phase and step together."""
    lives = history.lives
    table = np.stack(
        (
            lives.stack[alive],
            lives.category[alive].astype(np.int64),
            lives.phase[alive].astype(np.int64),
            history.step_of(lives.born[alive]),
        ),
        axis=1,
    )
    if not len(table):
        return ()
    bases = table.max(axis=0) + 2
    key = ((((table[:, 0] + 1) * bases[1]) + table[:, 1]) * bases[2] + table[:, 2]) * bases[3] + table[:, 3]
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    size = np.bincount(place, weights=lives.bytes[alive]).astype(np.int64)
    count = np.bincount(place)
    stacks = history.device.stacks
    made: dict[int, tuple[Frame, ...]] = {NONE: ()}
    found = []
    rows = zip(size.tolist(), count.tolist(), table[first].tolist(), strict=True)
    for amount, blocks, (stack, category, phase, step) in rows:
        if stack not in made:
            made[stack] = python_stack(stacks[stack])
        found.append(Holding(amount, blocks, CATEGORIES[category], step, PHASES[phase], stack=made[stack]))
    return tuple(found)


def state(history: History, moment: int) -> HeldState:
    """What the device held at a moment; at an ``oom``, with the request that was refused.

    How much the device has is known at an ``oom`` alone; else the capacity is what was reserved.
    """
    request, device_free = None, 0
    if 0 <= moment < history.count and history.columns.action[moment] == OOM:
        request = _request(history, moment)
        told = int(history.columns.device_free[moment])
        device_free = 0 if told == NONE else told
    # what is alive is there, also where the segments of a trace that contradicts itself do not hold it
    reserved = max(int(history.reserved[moment + 1]), int(history.allocated[moment + 1]))
    segments = history.blocks(moment)
    shared = [segment for segment in segments if segment.pool_id == SHARED]
    private = [segment for segment in segments if segment.pool_id != SHARED]
    idle = [block.size for segment in shared for block in segment.blocks if block.state == FREE]
    usable = idle
    if request is not None:
        small, stream = request.bytes <= LARGEST_SMALL, int(history.columns.stream[moment])
        asked = [segment for segment in shared if segment.is_small == small and segment.stream == stream]
        usable = [block.size for segment in asked for block in segment.blocks if block.state == FREE]
    return HeldState(
        device=f"device {history.device.index}",
        capacity=max(reserved + device_free, 1),
        device_free=device_free,
        reserved=reserved,
        holdings=holdings(history, history.alive(moment)),
        pending=int(history.lives.bytes[history.pending(moment)].sum()),
        private_reserved=sum(segment.total_size for segment in private),
        private_idle=sum(block.size for segment in private for block in segment.blocks if block.state == FREE),
        idle=sum(idle),
        usable_idle=sum(usable),
        largest_free_block=max(usable, default=0),
        expandable=any(segment.is_expandable for segment in segments),
        request=request,
        step=history.step_at(moment),
        time_s=history.time_s(moment) or 0.0,
        recorded=Recorded(history.count, None, 0.0 if history.is_recorded else None),
    )


def _request(history: History, moment: int) -> Request:
    columns = history.columns
    size, stack = int(columns.size[moment]), int(columns.stack[moment])
    settings = history.device.settings
    rounded = Rounding(settings).rounded(size)
    return Request(
        bytes=size,
        segment_bytes=segment_size(rounded, settings),
        step=history.step_at(moment),
        phase=history.phase_at(moment),
        stack=() if stack == NONE else python_stack(history.device.stacks[stack]),
    )
