"""The search for the smallest capacity of a device on which a run passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpudash.memory.allocator.device_memory import GRANULE


class Tried(NamedTuple):
    """How a run went with some capacity.

    Attributes:
        fits: whether every request was served.
        least: bytes with which it would have passed in the same way; ``None`` where only the one tried is known.
        below: bytes below which it would have failed in the same way; ``None`` likewise.
    """

    fits: bool
    least: int | None = None
    below: int | None = None


def smallest_capacity(run: Callable[[int], Tried], least: int, most: int) -> int:
    """The fewest bytes, in whole granules, with which a run passes.

    A run passes in the same way with just what it takes, and fails in the same way up to what would have served the
    refused request: so the search leaps. The allocator may release too late for a device that is a little larger to do
    as well as this one, which is rare.

    Args:
        run: with so many bytes.
        least: bytes; with fewer granules than hold them it fails.
        most: bytes; with the granules that hold them it passes.
    """
    low, high = granules(least), granules(most)  # fails below low, passes on high
    while low < high:
        middle = (low + high) // 2
        tried = run(middle * GRANULE)
        if tried.fits:
            high = middle if tried.least is None else min(middle, max(low, granules(tried.least)))
        else:
            low = middle + 1 if tried.below is None else max(middle + 1, min(high, granules(tried.below)))
    return high * GRANULE


def granules(size: int) -> int:
    """How many granules hold ``size`` bytes."""
    return -(-size // GRANULE)
