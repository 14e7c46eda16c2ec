"""Whether bins grow along a line, how fast, how long, whether they slow down, and when that reaches a limit."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FITTED = 32
"""Number of newest bins of a level that are fitted."""

MIN_BINS = 8
"""Fewest bins for a result."""

MIN_GROWTH_RATIO = 0.001
"""Growth over the fitted bins, as a part of the capacity, that may be noise of the machine."""

MIN_GROWTH_BYTES = 16 * 1024**2

MAX_SPREAD = 0.5
"""Largest interquartile range of the pairwise slopes, as a part of their median, that still counts as a line."""

NEWEST = 6
"""Number of newest bins whose median on the line is its end."""

MAX_JUMP = 0.45
"""Largest single rise, as a part of the whole, for a growth; beyond it, memory has jumped."""

OVER_NOISE = 4.0
"""Least growth over the fitted bins, in typical deviations from the line."""

STRAY = 0.3
"""How far a bin may be off the line extended backwards, as a part of the growth since, and still belong to it."""

FALLEN = 0.1
"""Fall, as a part of the whole growth and beyond the usual swing, that ends a growth immediately."""

PATIENCE = 1.5
"""Time without a rise after which a growth has ended, in multiples of its longest pause."""

BEYOND = 0.05
"""How far above an earlier peak a rise must go to be new, as a part of itself."""

SLOWS_BELOW = 0.75
"""Growth in the later half of its time, as a part of the earlier half's, below which it is slowing down."""


@dataclass(frozen=True, slots=True)
class GrowthTrend:
    """Growth along a line, in bytes and seconds.

    Attributes:
        low, median, high: slope in bytes per second; quartiles over all pairs of bins that are far enough apart.
        at_s: time of the newest bin.
        at_level: peak at that time, on the line.
        lasted_s: how long it has been growing along this line.
        swing: typical fall of the use within a bin.
        slowing: k of a rate that falls as exp(−k·t); 0 if it does not.
        to_come: remaining bytes of a growth that slows down.
        grain_s: longest pause between two rises, which is the accuracy in time.
    """

    low: float
    median: float
    high: float
    at_s: float
    at_level: float
    lasted_s: float
    swing: float = 0.0
    slowing: float = 0.0
    to_come: float = math.inf
    grain_s: float = 0.0

    @property
    def spread(self) -> float:
        """Interquartile range of the slopes as a part of their median."""
        return (self.high - self.low) / self.median

    @property
    def quality(self) -> float:
        """1 for a perfect line, ½ for the largest spread that still counts as one."""
        return 1 - self.spread / MAX_SPREAD / 2

    def level(self, now_s: float) -> float:
        """Peak on the line at ``now_s``."""
        return self.at_level + self.median * max(0.0, now_s - self.at_s)


def growth_of(table: Array, capacity: int, least_bins: int = MIN_BINS) -> GrowthTrend | None:
    """Growth of a level's newest `FITTED` rows; ``None`` if they do not grow, too little, or not along a line.

    Theil–Sen over the maxima, restricted to pairs at least a third of the window apart: close pairs on a staircase,
    which allocations form, have slopes of zero or far too large; distant pairs average over the steps (Theil 1950; Sen
    1968; the restriction is the incomplete variant of Jaeckel 1972).
    """
    least = max(MIN_GROWTH_BYTES, capacity * MIN_GROWTH_RATIO)
    if len(table) < least_bins:
        return None
    newest = table[-FITTED:]
    times = newest[:, 1]
    highs = newest[:, 2]
    lows = newest[:, 3]
    # The cheap tests first: they settle most levels of most readings.
    if highs[-1] - highs.min() < least:
        return None
    slopes = _slopes(times, highs)
    if slopes is None:
        return None
    low, median, high = slopes
    span = float(times[-1] - times[0])
    # Falling pairs, too little growth, or too different slopes for one line.
    if low <= 0 or median * span < least or (high - low) > MAX_SPREAD * median:
        return None
    rises = np.diff(highs)
    # Nearly all of it is one rise: memory has jumped, and need not continue.
    if rises.max() > MAX_JUMP * (highs.max() - highs.min()):
        return None
    # Project all bins along the line to now: on a perfect line they coincide; their scatter is the noise.
    projected = highs + median * (times[-1] - times)
    noise = _median(np.abs(projected - _median(projected)))
    if median * span < OVER_NOISE * noise:
        return None
    # Not above the real maximum: on a staircase the line runs ahead of the last step.
    level = min(_median(projected[-NEWEST:]), float(highs[-NEWEST:].max()))
    swing = _median(highs - lows)
    return GrowthTrend(low, median, high, float(times[-1]), level, span, swing)


def _median(values: Array) -> float:
    """As `numpy.median` of one dimension; that one loads numpy's masked arrays, at the first readings of a window."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    if np.isnan(ordered[-1]):  # what is no number is sorted to the end
        return math.nan
    if len(ordered) % 2:
        return float(ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2)


def lasting(growth: GrowthTrend, tables: Sequence[Array]) -> float:
    """How long the growth has followed its line, extended backwards from its end; at least the fitted time."""
    longest = growth.lasted_s
    for table in tables:
        back = growth.at_s - table[:, 1]
        line = growth.at_level - growth.median * back
        # Further back the deviation may be larger, as a part of the growth since; near the end, as large as over the
        # fitted time.
        off = (np.abs(table[:, 2] - line) > STRAY * growth.median * np.maximum(back, growth.lasted_s)).nonzero()[0]
        first = 0
        if len(off):
            # After the newest bin that is off the line.
            first = int(off[-1]) + 1
        if first < len(table):
            longest = max(longest, float(back[first]))
    return longest


def settled(growth: GrowthTrend, table: Array, now_s: float, now: float) -> GrowthTrend | None:
    """``growth`` with the results of its whole duration: slowing and pauses; ``None`` if it has ended.

    Args:
        growth: with `GrowthTrend.lasted_s` known.
        table: the finest rows that reach back to its start.
        now_s: time of the newest reading.
        now: peak of that reading, in bytes.
    """
    if growth.at_level - now > FALLEN * growth.median * growth.lasted_s + 2 * growth.swing:
        return None
    # The start is a bin's time computed by subtraction: do not lose that bin to rounding.
    table = table[table[:, 1] >= growth.at_s - growth.lasted_s - 1e-9]
    if len(table) < MIN_BINS:
        return growth
    times = table[:, 1]
    # Only new peaks are rises: a rise after a fall needs no new memory.
    peaks = np.maximum.accumulate(table[:, 2])
    pauses = np.diff(times[np.flatnonzero(np.diff(peaks, prepend=-np.inf) > 0)])
    # It may have been level for a long time before the first rise.
    if len(pauses) > 2:
        pauses = pauses[1:]
    longest = 0.0
    if len(pauses):
        longest = float(pauses.max())
    bin_s = float(times[-1] - times[0]) / (len(times) - 1)
    # argmax finds the first true value: the bin in which the present peak was reached.
    since = now_s - float(times[int(np.argmax(peaks >= peaks[-1]))])
    if since > PATIENCE * longest + 2 * bin_s:
        return None
    k, to_come = _slowing(times, peaks)
    return dataclasses.replace(growth, slowing=k, to_come=to_come, grain_s=max(longest, bin_s))


def _slowing(times: Array, peaks: Array) -> tuple[float, float]:
    """k of a rate exp(−k·t) and the remaining bytes, from the two halves of a growth; (0, ∞) if it continues.

    With growths a and b < a of two equal spans h, k = ln(a/b)/h; the geometric series b²/a, b³/a², … adds up to b²/(a
    − b).
    """
    middle = (times[0] + times[-1]) / 2
    at_middle = float(np.interp(middle, times, peaks))
    early = at_middle - float(peaks[0])
    late = float(peaks[-1]) - at_middle
    if early <= 0 or late <= 0 or late >= SLOWS_BELOW * early:
        return 0.0, math.inf
    return math.log(early / late) / float(middle - times[0]), late * late / (early - late)


def has_precedent(growth: GrowthTrend, tables: Sequence[Array]) -> bool:
    """Whether memory was as high before and fell: the rise may be one more of the same kind."""
    began_s = growth.at_s - growth.lasted_s
    began = growth.at_level - growth.median * growth.lasted_s
    grown = growth.at_level - began
    for table in tables:
        before = table[table[:, 1] <= began_s, 2]
        if len(before) and grown < (1 + BEYOND) * (float(before.max()) - began):
            return True
    return False


def _slopes(times: Array, values: Array) -> tuple[float, float, float] | None:
    """Quartiles of the slopes of all pairs at least a third of the span apart."""
    first, second = _pairs(len(times))
    apart = times[second] - times[first]
    far = apart >= (times[-1] - times[0]) / 3
    if apart.max() <= 0:
        return None
    slopes = (values[second] - values[first])[far] / apart[far]
    slopes.sort()
    count = len(slopes)
    return float(slopes[count // 4]), float(slopes[count // 2]), float(slopes[min(3 * count // 4, count - 1)])


@functools.cache
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    first, second = np.triu_indices(count, 1)
    return first, second


HORIZON_S = 600.0
"""Ten minutes: a slower growth gives no forecast."""

LEAST_SURE = 0.2
"""Confidence below which there is no forecast."""

SOON_S = 60.0
"""Remaining time below which a forecast is worth a warning."""

SURE = 0.55
"""Confidence from which a forecast is worth a warning, for memory that is nearly full or fills within `BRIEF_S`."""

NEARLY_FULL = 0.88

BRIEF_S = 3.0
"""Memory that fills within this time is reported at any level: it is too late to wait until it is nearly full."""

VERY_SURE = 0.75
"""Confidence from which a forecast is worth a warning, for memory that is `FAIRLY_FULL`."""

FAIRLY_FULL = 0.8

WIDER = 1.6
"""Width of the range relative to the slopes' quartiles, so that it contains the truth in four of five cases."""

LEAST_WIDTH = 0.12
"""Half-width of the narrowest range, as a part of the time left: readings and allocations are not continuous."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a memory reaches its limit at its present growth.

    Attributes:
        seconds_low: earliest; if the growth continues, the range contains the truth in about four of five cases.
        seconds: most likely.
        seconds_high: latest.
        limit: which is reached first, the capacity or the guard's level.
        limit_bytes: bytes at that limit.
        bytes_per_second: rate of growth.
        confidence: estimated probability, 0 to 1, that the growth lasts so long.
        bytes_per_step: growth per step of the run; ``None`` without known steps.
        level_bytes: present level of the growth; for a sawtooth, its peaks.
        cause: what grows, for the end of a sentence ("losses.append at train.py:31"); ``None`` if unknown.
    """

    seconds_low: float
    seconds: float
    seconds_high: float
    limit: Literal["capacity", "guard"]
    limit_bytes: int
    bytes_per_second: float
    confidence: float
    level_bytes: float = 0.0
    bytes_per_step: float | None = None
    cause: str | None = None


def outlook(
    growth: GrowthTrend, now_s: float, limit: Literal["capacity", "guard"], limit_bytes: int
) -> Forecast | None:
    """When ``growth`` reaches ``limit_bytes``; ``None`` if it ends before, needs over ten minutes, or is uncertain.

    The confidence is T / (T + s) for a growth that has lasted T and must last s more: the probability of lasting that
    long if nothing is known about its total duration (Gott 1993, "Implications of the Copernican principle"), times
    the line's quality.
    """
    left = max(limit_bytes - growth.level(now_s), 0.0)
    straight = left / growth.median
    slowed = _slowed(left, growth)
    if slowed is None or straight > HORIZON_S:
        return None
    seconds = 0.0
    if straight:
        # Between constant growth and the observed slowing: the geometric mean, since both are ratios to the rate.
        seconds = math.sqrt(straight * slowed)
    width = max(LEAST_WIDTH, WIDER * growth.spread / 2)
    # A staircase reaches the limit at a step, which may come half a pause sooner or later.
    grain = growth.grain_s / 2
    low = max(0.0, min(straight, seconds) / (1 + width) - grain)
    high = max(slowed, seconds) * (1 + width) + grain
    confidence = growth.lasted_s / (growth.lasted_s + seconds) * growth.quality
    if confidence < LEAST_SURE:
        return None
    return Forecast(
        seconds_low=low,
        seconds=min(max(seconds, low), high),
        seconds_high=high,
        limit=limit,
        limit_bytes=limit_bytes,
        bytes_per_second=growth.median,
        confidence=confidence,
        level_bytes=limit_bytes - left,
    )


def is_due(ahead: Forecast, soon_s: float = SOON_S) -> bool:
    """Whether ``ahead`` is worth a warning: within ``soon_s``, likely enough, and near enough to the limit."""
    if ahead.seconds >= soon_s:
        return False
    # The fuller the memory, the less certain a forecast must be.
    ratio = ahead.level_bytes / ahead.limit_bytes
    if ratio >= NEARLY_FULL or ahead.seconds < BRIEF_S:
        return ahead.confidence >= SURE
    return ratio >= FAIRLY_FULL and ahead.confidence >= VERY_SURE


def _slowed(left: float, growth: GrowthTrend) -> float | None:
    """Seconds in which a growth that slows down adds ``left`` bytes; ``None`` if it ends before.

    With a rate that falls as exp(−k·t), the part 1 − exp(−k·t) of the remaining growth has occurred after t.
    """
    if growth.slowing <= 0:
        return left / growth.median
    part = left / growth.to_come
    if part >= 1:
        return None
    return -math.log1p(-part) / growth.slowing
