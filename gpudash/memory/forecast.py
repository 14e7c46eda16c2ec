"""When a growing memory reaches its end: a robust line through the last seconds of use."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

WINDOWS_S = (2.0, 5.0, 10.0)
"""Spans that are tried: the shortest sees a growth that has just begun; a longer one takes its place, and is less
disturbed by noise, when its slope lies among those of the shorter."""

STILL_GROWING = 0.25
"""Part of the foretold growth that the shortest span must show, or the growth has ended."""

BIN_S = 0.25
"""Readings are gathered to their last one in each bin: the fit then costs the same at 1 and at 50 Hz."""

MIN_BINS = 6
"""Bins without which a span says nothing."""

MIN_GROWTH_RATIO = 0.001
"""Growth over the span, as a part of capacity, that counts as noise of the machine."""

MIN_GROWTH_BYTES = 16 * 1024**2

MAX_SPREAD = 0.5
"""Largest interquartile range of the pairwise slopes, as a part of their median, that is still called a line."""

MAX_STEP = 0.5
"""Largest single step, as a part of the whole growth, of what still grows rather than jumped."""

HORIZON_S = 600.0
"""Beyond ten minutes a straight line through ten seconds is no forecast."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a memory reaches its limit if it goes on growing as it does.

    Attributes:
        seconds_low: earliest, from the upper quartile of the slopes.
        seconds: from the median slope.
        seconds_high: latest, from the lower quartile.
        limit: what is reached first, the capacity or the guard's level.
        limit_bytes: where that lies.
        bytes_per_second: median slope.
        confidence: 1 for a perfect line, 0 for the most spread that is still accepted.
    """

    seconds_low: float
    seconds: float
    seconds_high: float
    limit: Literal["capacity", "guard"]
    limit_bytes: int
    bytes_per_second: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Slopes of use in bytes a second: quartiles over all pairs of readings that lie far enough apart."""

    low: float
    median: float
    high: float

    @property
    def spread(self) -> float:
        return (self.high - self.low) / self.median


class Trend:
    """The last seconds of one memory's use."""

    def __init__(self) -> None:
        self._bins: deque[tuple[float, float]] = deque()

    def add(self, time_s: float, used: float) -> bool:
        """Take in a reading; times ascend. True when it is the first of its bin."""
        bins = self._bins
        first = not bins or time_s // BIN_S != bins[-1][0] // BIN_S
        if not first:
            bins.pop()
        bins.append((time_s, used))
        while bins[0][0] < time_s - WINDOWS_S[-1]:
            bins.popleft()
        return first

    def clear(self) -> None:
        """Forget everything, as after a gap."""
        self._bins.clear()

    def growth(self, capacity: int) -> Growth | None:
        """How fast use grows, ``None`` when it does not, too little, or not along a line."""
        least = max(MIN_GROWTH_BYTES, capacity * MIN_GROWTH_RATIO)
        if not self._bins or self._bins[-1][1] - min(used for _, used in self._bins) < least:
            return None
        points = np.array(self._bins)
        best: Growth | None = None
        for window in WINDOWS_S:
            found = _growth(points, window, least)
            if found is not None and (best is None or best.low <= found.median <= best.high):
                best = found
        return best if best is not None and _still_grows(points, best) else None


def forecast(growth: Growth, used: float, capacity: int, guard: int | None) -> Forecast | None:
    """When ``used`` bytes reach the lower of ``capacity`` and ``guard``; ``None`` when later than in ten minutes."""
    limit: Literal["capacity", "guard"] = "capacity" if guard is None or guard > capacity else "guard"
    limit_bytes = capacity if guard is None else min(guard, capacity)
    left = max(limit_bytes - used, 0.0)
    seconds = left / growth.median
    if seconds > HORIZON_S:
        return None
    return Forecast(
        seconds_low=left / growth.high,
        seconds=seconds,
        seconds_high=left / growth.low,
        limit=limit,
        limit_bytes=limit_bytes,
        bytes_per_second=growth.median,
        confidence=max(0.0, 1 - growth.spread / MAX_SPREAD),
    )


def _growth(points: NDArray[np.float64], window: float, least: float) -> Growth | None:
    """Theil–Sen over the newest ``window`` seconds, restricted to pairs at least a third of the window apart.

    Close pairs of a staircase, as allocations make it, have slopes of nought or far too much; distant ones average
    over the steps (Theil 1950; Sen 1968; the restriction is the incomplete variant of Jaeckel 1972).
    """
    if len(points) < MIN_BINS:
        return None
    newest = points[-1, 0]
    points = points[points[:, 0] >= newest - window]
    times, used = points[:, 0], points[:, 1]
    span = times[-1] - times[0]
    if len(points) < MIN_BINS or span < window - 2 * BIN_S:
        return None
    if np.diff(used).max() > MAX_STEP * (used[-1] - used[0]):
        return None
    first, second = np.triu_indices(len(points), 1)
    apart = times[second] - times[first]
    far = apart >= window / 3
    slopes = (used[second] - used[first])[far] / apart[far]
    low, median, high = (float(value) for value in np.percentile(slopes, (25, 50, 75)))
    if low <= 0 or median * span < least:
        return None
    growth = Growth(low, median, high)
    return growth if growth.spread <= MAX_SPREAD else None


def _still_grows(points: NDArray[np.float64], growth: Growth) -> bool:
    latest = points[points[:, 0] >= points[-1, 0] - WINDOWS_S[0]]
    span, grown = latest[-1] - latest[0]
    return bool(grown >= STILL_GROWING * growth.median * span)
