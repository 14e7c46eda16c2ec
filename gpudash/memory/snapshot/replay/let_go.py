"""What a run would have taken without what some of its lines keep of every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.replay.trace_program import compiled
from gpudash.memory.snapshot.replay.trace_replay import UNLIMITED, ReplayRun, Rerun
from gpudash.telemetry.explanation import Growth

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LetGo:
    """A replay in which nothing of some lines outlives the step after the one it was made in; bytes.

    Attributes:
        peak_before: reserved at most, up to the end of the trace, as it was.
        peak: the same without what is kept; `peak_allocated` of what is allocated.
        fits: whether it fits the capacity asked about; ``None`` without one.
    """

    peak_before: int
    peak: int
    peak_allocated: int
    fits: bool | None


def let_go(history: History, growing: Sequence[Growth], capacity: int | None = None) -> LetGo | None:
    """Replay a trace without what lines keep; ``None`` when no step ends in which something could be let go.

    Args:
        history: of the device, with steps.
        growing: the lines.
        capacity: bytes that PyTorch can have.
    """
    kept = _kept(history, growing)
    if not len(kept) or len(history.steps) < 2:
        return None
    program, lives, order = compiled(history.device)
    block_of = np.full(len(lives), -1, np.int64)
    block_of[order] = np.arange(len(order))
    # the step after the one it was made in has begun, and with it ends what a program holds until then
    step = np.searchsorted(history.steps, history.lives.born[kept], side="right")
    ends = step < len(history.steps)
    event = history.steps[np.minimum(step, len(history.steps) - 1)]
    ends &= event < history.lives.freed[kept]
    place = np.searchsorted(program.events, event[ends])
    blocks = block_of[kept[ends]]
    known = blocks >= 0
    if not known.any():
        return None
    sooner = program.without_late(dict(zip(blocks[known].tolist(), place[known].tolist(), strict=True)))
    settings: AllocatorSettings = history.device.settings
    room = UNLIMITED if capacity is None else capacity
    without: ReplayRun = Rerun(sooner, room, settings).run()
    before = Rerun(program, UNLIMITED, settings).run()
    fits = None if capacity is None else without.fits
    return LetGo(before.peak_reserved, without.peak_reserved, without.peak_allocated, fits)


def _kept(history: History, growing: Sequence[Growth]) -> Ints:
    """Lives that the lines allocated within a step."""
    lines = {(growth.file, growth.line) for growth in growing}
    sites = np.array([frame[:2] in lines for frame in history.sites.frames], bool)
    lives = history.lives
    return np.flatnonzero(sites[history.sites.of_stack[lives.stack]] & (lives.born >= 0))
