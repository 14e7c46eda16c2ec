"""How many times as fast one side is as the other, and how sure that is."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

EXACT = 50
"""Values up to which the signed ranks' distribution is counted out; beyond, the normal one is as good."""

FEWEST_MERGED = 16
"""Values that must remain for neighbours to be merged."""


@dataclass(frozen=True)
class Ratio:
    """A ratio and its confidence interval; ``high`` is infinite and ``low`` 0 where there are too few values.

    Attributes:
        values: independent values it is made from.
    """

    value: float
    low: float
    high: float
    values: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval, in natural logarithms: 0.02 is about 2 % of the ratio."""
        if self.low <= 0 or math.isinf(self.high):
            return math.inf
        return (math.log(self.high) - math.log(self.low)) / 2


def ratio_of(first: Sequence[float], second: Sequence[float], confidence: float) -> Ratio:
    """The ratio of ``first`` to ``second``, times taken in the order A B B A.

    Each A B B A gives one value, the mean of its two log ratios, from which a drift that is linear over the four is
    gone. Neighbours are merged while the values depend on each other (batch means: Law and Kelton 1991, section 9.5.3).
    Estimated is the median of all pairwise means, with the interval of the signed ranks (Hodges and Lehmann 1963;
    Hollander and Wolfe 1999, section 3.2 and 3.3): nothing is assumed but that errors are symmetric, which alternation
    sees to, and one disturbed repetition in ten moves it little.

    Args:
        first, second: seconds per step of the repetitions of each side; as many of the one as of the other. A last one
            without its partner in a foursome is left out.
        confidence: of the interval, 0 to 1.

    Raises:
        ValueError: when there are fewer than two of each.
    """
    logs = [math.log(one / other) for one, other in zip(first, second, strict=True)]
    values = decorrelated([(logs[index] + logs[index + 1]) / 2 for index in range(0, len(logs) - 1, 2)])
    if not values:
        raise ValueError("a ratio needs two repetitions of each side")
    middle, low, high = centre(values, confidence)
    return Ratio(math.exp(middle), math.exp(low), math.exp(high) if high < 700 else math.inf, len(values))


def decorrelated(values: list[float]) -> list[float]:
    """``values`` with neighbours merged until one says nothing of the next: lag-1 autocorrelation within 2/√n."""
    while len(values) >= 2 * FEWEST_MERGED and autocorrelation(values) > 2 / math.sqrt(len(values)):
        values = [(values[index] + values[index + 1]) / 2 for index in range(0, len(values) - 1, 2)]
    return values


def autocorrelation(values: Sequence[float]) -> float:
    """Correlation of each value with the next; 0 when all are alike."""
    mean = statistics.fmean(values)
    whole = math.fsum((value - mean) ** 2 for value in values)
    if whole == 0:
        return 0.0
    return math.fsum((one - mean) * (other - mean) for one, other in itertools.pairwise(values)) / whole


def centre(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """The Hodges-Lehmann estimate of the centre and its interval; infinite while there are too few values."""
    means = sorted(
        (one + other) / 2 for index, one in enumerate(values) for other in values[index:]
    )  # Walsh averages, each value with itself too
    cut = _cut(len(values), confidence)
    middle = statistics.median(means)
    if cut < 1:
        return middle, -math.inf, math.inf
    return middle, means[cut - 1], means[len(means) - cut]


def _cut(count: int, confidence: float) -> int:
    """How many of the smallest and largest pairwise means lie outside of the interval, plus one; 0: no interval."""
    tail = (1 - confidence) / 2
    if count > EXACT:
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        middle = count * (count + 1) / 4
        return max(0, math.floor(middle - statistics.NormalDist().inv_cdf(1 - tail) * deviation))
    ways = [1]
    for rank in range(1, count + 1):
        longer = [*ways, *[0] * rank]
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    below, whole = 0, 2**count
    for total, number in enumerate(ways):
        below += number
        if below > tail * whole:
            return total
    return 0


def more_needed(ratio: Ratio, target: float) -> int:
    """Foursomes still missing for half a width of ``target``: the width shrinks as the root of their number."""
    if math.isinf(ratio.half_width):
        return max(1, FEWEST_MERGED - ratio.values)
    needed = ratio.values * (ratio.half_width / target) ** 2
    return max(1, math.ceil(needed - 1e-9) - ratio.values)  # the root of a square may be a hair above it
