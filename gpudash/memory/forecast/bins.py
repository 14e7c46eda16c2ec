"""A memory's use at many resolutions at once: highest and lowest of every bin, each twice as long as the level before.

A bin that holds whole cycles of a sawtooth has the sawtooth's peak and trough, whatever the phase of the readings: what
grows from bin to bin is growth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HISTORY = 128
"""Bins kept of each level, at least: four times what is fitted, so that an earlier peak is still known."""

LEVELS = 10
"""Levels of time bins: 0.1 s to 51 s."""

SHORTEST_S = 0.1
"""Length of the shortest bins; readings at 50 Hz are gathered, those at 10 Hz have one each."""


class Bin(NamedTuple):
    """Readings of a stretch of time, in session seconds and bytes."""

    began_s: float
    ended_s: float
    high: float
    low: float

    def joined(self, later: Bin) -> Bin:
        """Both, the later one behind this one."""
        return Bin(self.began_s, later.ended_s, max(self.high, later.high), min(self.low, later.low))


class Level:
    """Closed bins of one resolution.

    Attributes:
        half: the bin that waits for its partner, to be one of the next level.
        closed: how many have been closed since the beginning.
    """

    def __init__(self) -> None:
        self.half: Bin | None = None
        self.closed = 0
        self._rows = np.empty((2 * HISTORY, 4))
        self._count = 0

    @property
    def table(self) -> NDArray[np.float64]:
        """Rows of began_s, ended_s, high and low, oldest first; a view that the next bin may change."""
        return self._rows[: self._count]

    def append(self, done: Bin) -> None:
        """Take in a bin that has been closed."""
        if self._count == len(self._rows):
            self._rows[:HISTORY] = self._rows[HISTORY:]
            self._count = HISTORY
        self._rows[self._count] = done
        self._count += 1
        self.closed += 1


class Pyramid:
    """Closed bins of doubling length.

    Bins are closed by their length, or by the caller where the series has boundaries of its own (steps).

    Args:
        levels: how many resolutions are kept.
    """

    def __init__(self, levels: int = LEVELS) -> None:
        self.levels = [Level() for _ in range(levels)]
        self._open: Bin | None = None

    def add(self, time_s: float, high: float, low: float) -> None:
        """Take a reading into the open bin; times ascend."""
        reading = Bin(time_s, time_s, high, low)
        self._open = reading if self._open is None else self._open.joined(reading)

    def close(self) -> None:
        """Close the open bin, if there is one, and every coarser one that is full with it."""
        if self._open is None:
            return
        done, self._open = self._open, None
        for level in self.levels:
            level.append(done)
            if level.half is None:
                level.half = done
                return
            done, level.half = level.half.joined(done), None

    @property
    def open_since_s(self) -> float | None:
        """When the open bin began; ``None`` when none is open."""
        return None if self._open is None else self._open.began_s

    def clear(self) -> None:
        """Forget everything, as after a gap or at the beginning of a run."""
        self.levels = [Level() for _ in self.levels]
        self._open = None
