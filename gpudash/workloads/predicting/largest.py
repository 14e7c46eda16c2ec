"""The largest size of a run that fits: a batch, or a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MOST_TRIES = 20
"""Dry runs spent on finding it."""


@dataclass(frozen=True)
class Sized:
    """The run at one size: the room it needs in bytes, the margin included, and whether it has as much."""

    size: int
    need: int
    fits: bool
    releases: bool


def largest(tried: Callable[[int], Sized], size: int, limit: int, room: int) -> Sized | None:
    """The largest size of the otherwise same run that fits; of size 0 when none does, ``None`` when not found.

    Memory grows nearly linearly with the size: a line through two sizes tells which to try next. What it tells is off
    by what segments are rounded to, so that the edge is looked for beside it.

    Args:
        tried: what a size comes to.
        size: of the run as it is.
        limit: the largest that may be asked for.
        room: bytes that the run can have.
    """
    now = tried(size)
    low, high = (size, limit + 1) if now.fits else (0, size)
    known = {size: now}
    if high - low > 1:
        base, last, leap = tried(max(1, size // 2) if size > 1 else 2), now, 1
        known[base.size] = base
        for _ in range(MOST_TRIES):
            if high - low <= 1:
                break
            next_size = _on_line(base, last, room)
            next_size = max(next_size, low + leap) if last.size == low else min(next_size, high - leap)
            leap *= 2
            if not low < next_size < high:
                next_size = limit if high > limit else (low + high) // 2
            last = known[next_size] = tried(next_size)
            if last.fits:
                low = next_size
            else:
                high = next_size
    if high - low > 1:
        return None
    return known.get(low, Sized(0, 0, fits=False, releases=False))


def _on_line(base: Sized, last: Sized, room: int) -> int:
    """The size that needs all there is, if two sizes and their needs lie on a line."""
    slope = (last.need - base.need) / ((last.size - base.size) or 1)
    return int(last.size + (room - last.need) / slope) if slope > 0 else 2 * last.size
