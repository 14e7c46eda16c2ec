"""How far a figure of a run is expected to differ from a second, equal run's.

Consecutive steps are correlated: a busy processor stays busy for a while. The spread of single steps divided by the
root of their number is therefore far too small. Instead, the run is cut into a few long blocks, each treated as a
small run; the interval is the one in which another block would lie (prediction interval of a normal variable,
Student's t; batch means: Law & Kelton, Simulation Modeling and Analysis, 9.5.3). It does not shrink with the number of
blocks, since slow changes within a run also occur between runs. It covers 99 %: a dozen figures are shown together,
and at 95 % one in twenty would be wrong.

All functions return half the width of an interval, in the unit of the values; ``None`` if the run is too short.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gpudash.telemetry.series import Floats

BLOCKS = 10
"""Number of blocks: enough for a spread, few enough for each to be long."""

LEAST_BLOCKS = 4
"""Fewest values for a spread."""

STUDENT_T = {3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355, 9: 3.250}
"""99.5 % quantile of Student's t by degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""

TIME_SHARE = 0.02
"""Least noise of a time or a rate, as a share of it: the layout of code and data in memory alone causes a few per cent
(Mytkowicz et al., Producing Wrong Data Without Doing Anything Obviously Wrong, 2009)."""

ALONE_SHARE = 0.10
"""Noise of a time or rate that was measured once, as a share of it; an assumption, since the run cannot show it."""

SET_UP_SHARE = 0.25
"""Noise of the time before the first and after the last step, as a share of it: six equal runs on two cores, each in a
new process, had a standard deviation of 17 %; chosen above that."""

TIMER_S = 5e-6
"""Least noise of a stage's execution, in seconds: the cost of reading a clock twice and the Python around it."""

MOST_CROWDED = 0.9
"""Share of the processor used by others beyond which a run's times mean nothing."""

READ_SHARE = 0.02
"""Noise of memory that is polled from outside, as a share of it: libraries and the driver cache different amounts (0.2
% over six runs), and a peak between two readings is missed."""

COUNTED_SHARE = 0.001
"""Noise of memory that the allocator itself counts, as a share of it."""


def spread(values: Floats, reduce: Callable[[Floats], float]) -> float | None:
    """Noise of ``reduce`` (a median, a mean) over values in order; without the first one, the warm-up.

    Half of ``t · s · sqrt(1 + 1/k)``, for ``k`` blocks whose figures have the standard deviation ``s``.
    """
    blocks = _blocks(values, reduce)
    if blocks is None:
        return None
    count = len(blocks)
    return float(STUDENT_T[count - 1] * np.std(blocks, ddof=1) * math.sqrt(1 + 1 / count))


def trending(values: Floats, window: int) -> float | None:
    """Noise of the median of the last ``window`` values of a quantity with a trend, such as a loss.

    Uses the medians of at most `BLOCKS` blocks of ``window`` values before the end. To exclude the trend, ``s`` is the
    root of half the mean square of successive differences (von Neumann et al., The Mean Square Successive Difference,
    1941). A run too short for that uses the spread within the window: ``t · 1.2533 · s / sqrt(n)``, the standard error
    of a median.
    """
    known = values[np.isfinite(values)]
    count = min(len(known) // window, BLOCKS)
    if count >= LEAST_BLOCKS:
        medians = np.median(known[len(known) - count * window :].reshape(count, window), axis=1)
        s = math.sqrt(float(np.mean(np.diff(medians) ** 2)) / 2)
        return STUDENT_T[count - 1] * s * math.sqrt(1 + 1 / count)
    last = known[-window:]
    if len(last) < LEAST_BLOCKS:
        return None
    return float(STUDENT_T[9] * 1.2533 * np.std(last, ddof=1) / math.sqrt(len(last)))


def of_time(seconds: float, own: float | None, crowding: float) -> float:
    """Noise of a time: that of its blocks, at least `TIME_SHARE`, and at least what other programs took from the run.

    A run that had only the share ``1 - crowding`` of the processor would otherwise have needed that share of the time.
    """
    return max(_own(seconds, own), crowding * abs(seconds))


def of_rate(rate: float, own: float | None, crowding: float) -> float:
    """Noise of a rate, like `of_time`: alone on the processor, the run would have reached ``rate / (1 -
    crowding)``."""
    return max(_own(rate, own), abs(rate) * crowding / (1 - crowding))


def _own(value: float, own: float | None) -> float:
    """The noise of a value itself; `ALONE_SHARE` of it if it has no blocks."""
    if own is None:
        own = ALONE_SHARE * abs(value)
    return max(own, TIME_SHARE * abs(value))


def crowding(busy: float, own_cores: float, cores: int) -> float:
    """Share of the processor that others took from a run: their use beyond what would have been idle.

    Args:
        busy: use of the whole processor, 0 to 1.
        own_cores: use by the run's own process, in cores.
        cores: number of cores.
    """
    others = busy - own_cores / cores
    return min(MOST_CROWDED, max(0.0, others - (1.0 - busy)))


def _blocks(values: Floats, reduce: Callable[[Floats], float]) -> list[float] | None:
    known = values[np.isfinite(values)][1:]
    if len(known) < LEAST_BLOCKS:
        return None
    return [float(reduce(block)) for block in np.array_split(known, min(BLOCKS, len(known)))]
