"""How far a figure of a run would lie from that of a second, equal run.

Steps that follow each other are alike: a processor that was busy stays busy for a while. The spread of single steps
divided by the root of their number is therefore far too small. Instead the run is cut into a few long blocks, each is
taken for a small run, and the interval is that in which another block would lie (prediction interval of a normal
variable, Student's t; batch means: Law & Kelton, Simulation Modeling and Analysis, 9.5.3). It is not made narrower for
the number of blocks, since what differs slowly within one run differs between two as well. 99 %, because a dozen
figures are told at once and one in twenty would be wrong at 95 %.

All functions answer half the width of an interval, in the unit of the values; ``None`` where the run does not tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gpudash.telemetry.series import Floats

BLOCKS = 10
"""Blocks of a run: enough for a spread, few enough for each to be long."""

LEAST_BLOCKS = 4
"""Values below which a run does not tell its spread."""

STUDENT_T = {3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355, 9: 3.250}
"""99.5 % quantile of Student's t by degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""

TIME_SHARE = 0.02
"""Least noise of a time or a rate, as a share of it: where code and data happen to lie in memory alone is worth a few
per cent (Mytkowicz et al., Producing Wrong Data Without Doing Anything Obviously Wrong, 2009)."""

ALONE_SHARE = 0.10
"""Noise of a time or a rate that was measured once, as a share of it: chosen, since nothing in the run tells it."""

SET_UP_SHARE = 0.25
"""Noise of the time before the first and after the last step, as a share of it: six equal runs on two cores, each in a
fresh process, spread by 17 % (standard deviation); chosen above that."""

TIMER_S = 5e-6
"""Least noise of one execution of a stage, in seconds: what reading a clock twice and the Python around it may cost."""

MOST_CROWDED = 0.9
"""Share of the processor taken by others beyond which a run's times say nothing at all."""

READ_SHARE = 0.02
"""Noise of memory that is read from outside at intervals, as a share of it: equal runs differ by what libraries and the
driver happen to keep (0.2 % over six runs), and a peak between two readings is missed."""

COUNTED_SHARE = 0.001
"""Noise of memory that the allocator counts itself, as a share of it."""


def spread(values: Floats, reduce: Callable[[Floats], float]) -> float | None:
    """Noise of ``reduce`` (a median, a mean) over values in the order they came; the first, the warm-up, is left out.

    Half of ``t · s · sqrt(1 + 1/k)``, for ``k`` blocks whose figures have the standard deviation ``s``.
    """
    blocks = _blocks(values, reduce)
    if blocks is None:
        return None
    count = len(blocks)
    return float(STUDENT_T[count - 1] * np.std(blocks, ddof=1) * math.sqrt(1 + 1 / count))


def trending(values: Floats, window: int) -> float | None:
    """Noise of the median of the last ``window`` values of a quantity that goes somewhere, such as a loss.

    From the medians of the blocks of ``window`` values before the end, at most `BLOCKS`: a trend is kept out by taking
    the root of half the mean square of successive differences for ``s`` (von Neumann et al., The Mean Square
    Successive Difference, 1941). A run too short for that is measured by the spread within the window:
    ``t · 1.2533 · s / sqrt(n)``, the standard error of a median.
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

    A run that had only the share ``1 - crowding`` of the processor would have taken that share of the time.
    """
    if own is None:
        known = ALONE_SHARE * abs(seconds)
    else:
        known = own
    return max(known, TIME_SHARE * abs(seconds), crowding * abs(seconds))


def of_rate(rate: float, own: float | None, crowding: float) -> float:
    """Noise of a rate, as `of_time`: alone on the processor the run would have reached ``rate / (1 - crowding)``."""
    if own is None:
        known = ALONE_SHARE * abs(rate)
    else:
        known = own
    return max(known, TIME_SHARE * abs(rate), abs(rate) * crowding / (1 - crowding))


def crowding(busy: float, own_cores: float, cores: int) -> float:
    """Share of the processor that a run would have had, had others not used it: what they took beyond what stayed idle.

    Args:
        busy: use of the whole processor, 0 to 1.
        own_cores: use by the run's own process, in cores.
        cores: how many there are.
    """
    others = busy - own_cores / cores
    return min(MOST_CROWDED, max(0.0, others - (1.0 - busy)))


def _blocks(values: Floats, reduce: Callable[[Floats], float]) -> list[float] | None:
    known = values[np.isfinite(values)][1:]
    if len(known) < LEAST_BLOCKS:
        return None
    return [float(reduce(block)) for block in np.array_split(known, min(BLOCKS, len(known)))]
