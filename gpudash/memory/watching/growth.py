"""Whether bins grow along a line, how fast, for how long, whether they slow down, and when that reaches a limit."""

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
"""Newest bins of a level that are fitted."""

MIN_BINS = 8
"""Bins without which a level says nothing."""

MIN_GROWTH_RATIO = 0.001
"""Growth over the fitted bins, as a part of capacity, that counts as noise of the machine."""

MIN_GROWTH_BYTES = 16 * 1024**2

MAX_SPREAD = 0.5
"""Largest interquartile range of the pairwise slopes, as a part of their median, that is still called a line."""

NEWEST = 6
"""Bins whose median on the line is where it ends."""

MAX_JUMP = 0.45
"""Largest single rise, as a part of the whole, of what grows rather than jumped."""

OVER_NOISE = 4.0
"""Growth over the fitted bins, in typical deviations from the line."""

STRAY = 0.3
"""How far a bin may lie off the line drawn backwards from now, as a part of the growth since, and belong to it."""

FALLEN = 0.1
"""Fall, as a part of the whole growth and beyond the usual swing, with which a growth has ended at once."""

PATIENCE = 1.5
"""Time without a rise after which a growth has ended, in its longest pauses."""

BEYOND = 0.05
"""How much further than to an earlier peak a rise must go, as a part of itself, to be something new."""

SLOWS_BELOW = 0.75
"""Growth of the later half of its time, as a part of the earlier half's, from which a growth slows down."""


@dataclass(frozen=True, slots=True)
class GrowthTrend:
    """A growth along a line, in bytes and seconds.

    Attributes:
        low, median, high: slope in bytes a second; quartiles over all pairs of bins that lie far enough apart.
        at_s: time of the newest bin.
        at_level: peak there, on the line.
        lasted_s: for how long it has been growing along this line.
        swing: how far use typically falls within a bin.
        slowing: k of a rate that falls as exp(−k·t); 0 where it does not.
        to_come: bytes that a slowing growth still has before it.
        grain_s: longest pause between two rises: the time is not known more exactly.
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
        """1 for a perfect line, ½ for the most spread that is still one."""
        return 1 - self.spread / MAX_SPREAD / 2

    def level(self, now_s: float) -> float:
        """Peak use on the line at ``now_s``."""
        return self.at_level + self.median * max(0.0, now_s - self.at_s)


def growth_of(table: Array, capacity: int, least_bins: int = MIN_BINS) -> GrowthTrend | None:
    """The growth of a level's newest `FITTED` rows; ``None`` when they do not grow, too little, or not along a line.

    Theil–Sen over the highs, restricted to pairs at least a third of the window apart: close pairs of a staircase, as
    allocations make it, have slopes of nought or far too much, distant ones average over the steps (Theil 1950; Sen
    1968; the restriction is the incomplete variant of Jaeckel 1972).
    """
    least = max(MIN_GROWTH_BYTES, capacity * MIN_GROWTH_RATIO)
    if len(table) < least_bins:
        return None
    newest = table[-FITTED:]
    times = newest[:, 1]
    highs = newest[:, 2]
    lows = newest[:, 3]
    # the cheap tests first: most levels of most readings end here
    if highs[-1] - highs.min() < least:
        return None
    slopes = _slopes(times, highs)
    if slopes is None:
        return None
    low, median, high = slopes
    span = float(times[-1] - times[0])
    # falling pairs, too little in all, or slopes too different for one line
    if low <= 0 or median * span < least or (high - low) > MAX_SPREAD * median:
        return None
    rises = np.diff(highs)
    # one rise is nearly all of it: the memory has jumped and need not go on
    if rises.max() > MAX_JUMP * (highs.max() - highs.min()):
        return None
    # every bin moved along the line to now: on a perfect line all are the same, and how they scatter is the
    # noise
    projected = highs + median * (times[-1] - times)
    noise = _median(np.abs(projected - _median(projected)))
    if median * span < OVER_NOISE * noise:
        return None
    # not above what was really reached: on a staircase the line runs ahead of the last step
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
    """For how long the growth's line, drawn backwards from its end, has been followed; at least what was fitted."""
    longest = growth.lasted_s
    for table in tables:
        back = growth.at_s - table[:, 1]
        line = growth.at_level - growth.median * back
        # further back the line may be off by more, as a part of what has grown since; close to now by as much
        # as over the time fitted
        off = (np.abs(table[:, 2] - line) > STRAY * growth.median * np.maximum(back, growth.lasted_s)).nonzero()[0]
        first = 0
        if len(off):
            # behind the newest bin that is off the line
            first = int(off[-1]) + 1
        if first < len(table):
            longest = max(longest, float(back[first]))
    return longest


def settled(growth: GrowthTrend, table: Array, now_s: float, now: float) -> GrowthTrend | None:
    """``growth`` with what its whole time shows: whether it slows down and how it pauses; ``None`` when it has ended.

    Args:
        growth: with `GrowthTrend.lasted_s` known.
        table: the finest rows that reach back to its beginning.
        now_s: time of the newest reading.
        now: its peak in bytes.
    """
    if growth.at_level - now > FALLEN * growth.median * growth.lasted_s + 2 * growth.swing:
        return None
    # the beginning is the time of a bin, worked out by a subtraction: the rounding must not lose that bin
    table = table[table[:, 1] >= growth.at_s - growth.lasted_s - 1e-9]
    if len(table) < MIN_BINS:
        return growth
    times = table[:, 1]
    # only new peaks are rises: what rises again after a fall takes no memory that was not taken before
    peaks = np.maximum.accumulate(table[:, 2])
    pauses = np.diff(times[np.flatnonzero(np.diff(peaks, prepend=-np.inf) > 0)])
    # before the first rise it may have been level for long
    if len(pauses) > 2:
        pauses = pauses[1:]
    longest = 0.0
    if len(pauses):
        longest = float(pauses.max())
    bin_s = float(times[-1] - times[0]) / (len(times) - 1)
    # argmax of booleans is the first that is true: the bin in which the present peak was reached
    since = now_s - float(times[int(np.argmax(peaks >= peaks[-1]))])
    if since > PATIENCE * longest + 2 * bin_s:
        return None
    k, to_come = _slowing(times, peaks)
    return dataclasses.replace(growth, slowing=k, to_come=to_come, grain_s=max(longest, bin_s))


def _slowing(times: Array, peaks: Array) -> tuple[float, float]:
    """k of a rate exp(−k·t) and the bytes still to come, from the two halves of a growth; (0, ∞) when it goes on.

    With growths a and b < a of two equal spans h, k = ln(a/b)/h, and the geometric series b²/a, b³/a², … sums up to
    b²/(a − b).
    """
    middle = (times[0] + times[-1]) / 2
    at_middle = float(np.interp(middle, times, peaks))
    early = at_middle - float(peaks[0])
    late = float(peaks[-1]) - at_middle
    if early <= 0 or late <= 0 or late >= SLOWS_BELOW * early:
        return 0.0, math.inf
    return math.log(early / late) / float(middle - times[0]), late * late / (early - late)


def has_precedent(growth: GrowthTrend, tables: Sequence[Array]) -> bool:
    """Whether the memory was as high before and fell: the rise may be one more of the same kind."""
    began_s = growth.at_s - growth.lasted_s
    began = growth.at_level - growth.median * growth.lasted_s
    grown = growth.at_level - began
    for table in tables:
        before = table[table[:, 1] <= began_s, 2]
        if len(before) and grown < (1 + BEYOND) * (float(before.max()) - began):
            return True
    return False


def _slopes(times: Array, values: Array) -> tuple[float, float, float] | None:
    """Quartiles of the slopes of all pairs that are at least a third of the span apart."""
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
"""Ten minutes: a growth that needs longer is no forecast."""

LEAST_SURE = 0.2
"""Confidence below which nothing is said."""

SOON_S = 60.0
"""Remaining time below which a forecast is worth a notice."""

SURE = 0.55
"""Confidence from which a forecast is worth a notice, of a memory that is nearly full or fills within `BRIEF_S`."""

NEARLY_FULL = 0.88

BRIEF_S = 3.0
"""A memory that fills within this is reported at any level: there is no time to wait until it is nearly full."""

VERY_SURE = 0.75
"""Confidence from which a forecast is worth a notice, of a memory that is `FAIRLY_FULL`."""

FAIRLY_FULL = 0.8

WIDER = 1.6
"""How much wider than the quartiles of the slopes the range is, so that it holds the truth four times in five."""

LEAST_WIDTH = 0.12
"""Half-width of the narrowest range, as a part of the time left: readings and allocations are not continuous."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a memory reaches its limit if it goes on growing as it does.

    Attributes:
        seconds_low: earliest; the range holds the truth about four times in five when the growth does go on.
        seconds: most likely.
        seconds_high: latest.
        limit: what is reached first, the capacity or the guard's level.
        limit_bytes: where that lies.
        bytes_per_second: growth.
        confidence: estimated probability, 0 to 1, that the growth goes on that long.
        bytes_per_step: growth per step of the run; ``None`` where no steps are known.
        level_bytes: where the growth stands now; of a sawtooth, its peaks.
        cause: what grows, in words for the end of a sentence ("losses.append at train.py:31"); ``None`` when unknown.
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
    """When ``growth`` reaches ``limit_bytes``; ``None`` when it ends before, takes more than ten minutes, or is unsure.

    The confidence is T / (T + s) for a growth that has lasted T and must last s more: the probability of lasting that
    long when nothing is known of its whole length (Gott 1993, "Implications of the Copernican principle"), times the
    line's quality.
    """
    left = max(limit_bytes - growth.level(now_s), 0.0)
    straight = left / growth.median
    slowed = _slowed(left, growth)
    if slowed is None or straight > HORIZON_S:
        return None
    seconds = 0.0
    if straight:
        # between going straight on and slowing down as it has: the geometric mean, since both are ratios to
        # the rate
        seconds = math.sqrt(straight * slowed)
    width = max(LEAST_WIDTH, WIDER * growth.spread / 2)
    # a staircase reaches the limit with a step, which may come half a pause sooner or later
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
    """Whether ``ahead`` is worth telling unasked: within ``soon_s``, likely enough, and far enough on the way."""
    if ahead.seconds >= soon_s:
        return False
    # the fuller the memory, the less sure a forecast has to be
    ratio = ahead.level_bytes / ahead.limit_bytes
    if ratio >= NEARLY_FULL or ahead.seconds < BRIEF_S:
        return ahead.confidence >= SURE
    return ratio >= FAIRLY_FULL and ahead.confidence >= VERY_SURE


def _slowed(left: float, growth: GrowthTrend) -> float | None:
    """Seconds that ``left`` bytes take a growth that slows down as it has; ``None`` when it ends before.

    With a rate that falls as exp(−k·t), the part 1 − exp(−k·t) of what is still to come has come after t.
    """
    if growth.slowing <= 0:
        return left / growth.median
    part = left / growth.to_come
    if part >= 1:
        return None
    return -math.log1p(-part) / growth.slowing
