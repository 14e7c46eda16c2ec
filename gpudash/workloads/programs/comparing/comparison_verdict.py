"""The verdict of a comparison as text, with the cause if the GPU does not pay.

It is based on the measurements of two sides, and on the ratio of their times with its confidence.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpudash.devices.names import kind_of
from gpudash.units import format_percent, listed

EXACT = 50
"""Up to this many values the signed ranks' distribution is counted exactly; beyond, the normal one is as good."""

FEWEST_MERGED = 16
"""How many values must remain for neighbours to be merged."""


@dataclass(frozen=True)
class Ratio:
    """A ratio and its confidence interval; ``high`` is infinite and ``low`` 0 if there are too few values.

    Attributes:
        values: number of independent values behind it.
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
    """The ratio of ``first`` to ``second``, times measured in the order A B B A.

    Each A B B A gives one value, the mean of its two log ratios, in which a drift that is linear over the four cancels
    out. Neighbours are merged while the values depend on each other (batch means: Law and Kelton 1991, section 9.5.3).
    The estimate is the median of all pairwise means, with the interval of the signed ranks (Hodges and Lehmann 1963;
    Hollander and Wolfe 1999, section 3.2 and 3.3). It assumes only that errors are symmetric, which the alternation
    ensures, and one disturbed repetition in ten changes it little.

    Args:
        first, second: seconds per step of the repetitions on each side, equally many of both. A last one without its
            partner in a group of four is ignored.
        confidence: of the interval, 0 to 1.

    Raises:
        ValueError: there are fewer than two of each.
    """
    # `A B B A`: first and second have the same positions in each group, in order of time.
    logs = [math.log(one / other) for one, other in zip(first, second, strict=True)]
    values = decorrelated([(logs[index] + logs[index + 1]) / 2 for index in range(0, len(logs) - 1, 2)])
    if not values:
        raise ValueError("a ratio needs two repetitions of each side")
    middle, low, high = centre(values, confidence)
    # exp overflows from about 709 on.
    return Ratio(math.exp(middle), math.exp(low), math.exp(high) if high < 700 else math.inf, len(values))


def decorrelated(values: list[float]) -> list[float]:
    """Merge neighbours in ``values`` until they are uncorrelated: lag-1 autocorrelation within 2/√n."""
    while len(values) >= 2 * FEWEST_MERGED and autocorrelation(values) > 2 / math.sqrt(len(values)):
        values = [(values[index] + values[index + 1]) / 2 for index in range(0, len(values) - 1, 2)]
    return values


def autocorrelation(values: Sequence[float]) -> float:
    """Correlation of each value with the next; 0 if all are equal."""
    mean = statistics.fmean(values)
    whole = math.fsum((value - mean) ** 2 for value in values)
    if whole == 0:
        return 0.0
    return math.fsum((one - mean) * (other - mean) for one, other in itertools.pairwise(values)) / whole


def centre(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """The Hodges-Lehmann estimate of the centre and its interval, which is infinite with too few values."""
    means = sorted(
        (one + other) / 2 for index, one in enumerate(values) for other in values[index:]
    )  # Walsh averages, each value with itself too
    cut = _cut(len(values), confidence)
    middle = statistics.median(means)
    # Too few values for this confidence: no pair of means bounds the centre.
    if cut < 1:
        return middle, -math.inf, math.inf
    return middle, means[cut - 1], means[len(means) - cut]


def _cut(count: int, confidence: float) -> int:
    """How many of the smallest and largest pairwise means lie outside the interval, plus one; 0 for no interval."""
    # The interval is symmetric: equally many are left out below and above.
    tail = (1 - confidence) / 2
    if count > EXACT:
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        middle = count * (count + 1) / 4
        # Normal approximation of the signed-rank statistic: mean n(n+1)/4, variance n(n+1)(2n+1)/24.
        return max(0, math.floor(middle - statistics.NormalDist().inv_cdf(1 - tail) * deviation))
    # `counts[t]`: how many of the 2^n choices of signs have the rank sum t; each rank is either added or not.
    counts = [1]
    for rank in range(1, count + 1):
        longer = [*counts, *[0] * rank]
        for total, number in enumerate(counts):
            longer[total + rank] += number
        counts = longer
    below, whole = 0, 2**count
    for total, number in enumerate(counts):
        # The interval starts at the first sum that too many choices stay below.
        below += number
        if below > tail * whole:
            return total
    return 0


def more_needed(ratio: Ratio, target: float) -> int:
    """Groups of four still missing for half a width of ``target``: the width shrinks with the root of their number."""
    if math.isinf(ratio.half_width):
        return max(1, FEWEST_MERGED - ratio.values)
    needed = ratio.values * (ratio.half_width / target) ** 2
    return max(1, math.ceil(needed - 1e-9) - ratio.values)  # rounding may put the square root slightly above an integer


@dataclass(frozen=True)
class SideFigures:
    """One side.

    Attributes:
        label: its name.
        device: torch's name of the device.
        step_seconds: of a step, the median over the repetitions.
        quartiles: of the repetitions' seconds per step: minimum, 25 %, 50 %, 75 %, maximum.
        copied, computed: fractions of a step, 0 to 1; the rest is waiting and Python's own work.
        peak_used_bytes: of this process's memory, between steps.
        peak_allocated_bytes, peak_reserved_bytes, capacity_bytes: of the GPU's memory.
        retries: number of times the allocator released cached memory to make room.
        lost: fraction of the time in which other programs had the cores, 0 to 1.
        strays: tensors that are not on the device.
        energy_j: joules per step; ``None`` if not measured.
        energy_words: what the figure includes, or why there is none.
        product: the device's product name.
    """

    label: str
    device: str
    step_seconds: float
    quartiles: Sequence[float] = ()
    copied: float = 0.0
    computed: float = 1.0
    peak_used_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    capacity_bytes: int | None = None
    retries: int = 0
    lost: float = 0.0
    strays: Sequence[str] = ()
    energy_j: float | None = None
    energy_words: str = ""
    product: str = ""

    @property
    def waiting(self) -> float:
        """Fraction of a step that no stage accounts for."""
        return max(0.0, 1.0 - self.copied - self.computed)

    @property
    def fullness(self) -> float | None:
        """Highest usage of the GPU's memory, 0 to 1; ``None`` if unknown."""
        if self.peak_reserved_bytes is None or not self.capacity_bytes:
            return None
        return self.peak_reserved_bytes / self.capacity_bytes


@dataclass(frozen=True)
class Point:
    """One size of a sweep: seconds per step on either side."""

    size: int
    seconds: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.seconds[0] / self.seconds[1]


@dataclass(frozen=True)
class Sweep:
    """Both sides at several sizes.

    Attributes:
        field: of the workload, that was enlarged.
        points: by size, ascending.
        ended: why it stopped, if it found no size from which the second is faster.
    """

    field: str
    points: Sequence[Point] = ()
    ended: str = ""

    @property
    def crossing(self) -> float | None:
        """The size from which the second is faster, interpolated between logarithms; ``None`` if not found."""
        for before, after in zip(self.points, self.points[1:], strict=False):
            if before.ratio <= 1 < after.ratio:
                # In logarithms, because sizes grow by factors and times by powers.
                share = math.log(1 / before.ratio) / math.log(after.ratio / before.ratio)
                return float(before.size * (after.size / before.size) ** share)
        return None


@dataclass(frozen=True)
class Agreement:
    """Whether the results of both sides are equal.

    Attributes:
        agrees: ``None`` if there was nothing to compare.
        sentence: the finding.
    """

    agrees: bool | None
    sentence: str
    largest: float | None = None
    tolerance: float | None = None
    loss: tuple[float, float] | None = None
    accuracy: tuple[float, float] | None = None


@dataclass(frozen=True)
class Measured:
    """A comparison's figures.

    Attributes:
        ratio: the first side's time per step over the second's.
        compute_only: the same without copies.
        resident: the same with the data kept on the second side's device; ``None`` if not measured.
    """

    first: SideFigures
    second: SideFigures
    ratio: Ratio
    compute_only: Ratio
    agreement: Agreement
    resident: Ratio | None = None
    sweep: Sweep | None = None

    def with_energy(self, energies: Sequence[tuple[float | None, str]]) -> Measured:
        """These figures with energy added: joules per step, or ``None``, and a text, for either side."""
        first, second = (
            replace(side, energy_j=joules, energy_words=text)
            for side, (joules, text) in zip((self.first, self.second), energies, strict=True)
        )
        return replace(self, first=first, second=second)

    @property
    def challenger(self) -> SideFigures:
        """The side to be judged: the GPU if exactly one is a GPU, otherwise the second."""
        kinds = kind_of(self.first.device), kind_of(self.second.device)
        if kinds[1] == "cpu" and kinds[0] != "cpu":
            return self.first
        return self.second

    def of_challenger(self, ratio: Ratio) -> Ratio:
        """Convert a ratio of the first to the second side to one of the other side to the challenger."""
        if self.challenger is self.second:
            return ratio
        return Ratio(1 / ratio.value, 1 / ratio.high, 1 / ratio.low if ratio.low else float("inf"), ratio.values)


NOTICEABLE = 1.05
"""Ratios closer to 1, in either direction, are too close to call."""

FINEST = 0.005
"""Half a width (0.5 %) below which no more runs are suggested: a ratio may be exactly at the limit."""

COPYING = 0.25
"""Fraction of a step from which copying is named as the cause."""

FULL = 0.95
"""Usage of the GPU's memory that counts as full: the allocator then frees and retries."""

BUSY = 0.2
"""Fraction of the time used by other programs from which a GPU's time says little about it.

A CPU's time excludes what other programs used.
"""

RISEN = 1.05
"""Factor from which energy counts as increased."""

Outcome = Literal["faster", "slower", "close"]
Cause = Literal["placement", "transfers", "memory", "too_small", "arithmetic", "energy"]


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison.

    Attributes:
        outcome: for the second side, or for the GPU if exactly one side is one.
        cause: why it does not pay; ``None`` if it does, or if both sides are the same device.
        headline: one sentence with the number.
        because: the cause in a sentence, "" without one.
        more: further repetitions on each device needed for a decision; 0 if there is one.
    """

    outcome: Outcome
    cause: Cause | None
    headline: str
    because: str
    more: int = 0

    @property
    def text(self) -> str:
        return f"{self.headline} {self.because}".strip()


def verdict(found: Measured) -> Verdict:
    """Judge: faster or slower only if the whole interval agrees and the ratio is noticeable."""
    ratio = found.ratio
    # A settled interval needs no quiet machine: noise only widens it.
    settled = ratio.low >= 1 / NOTICEABLE and ratio.high <= NOTICEABLE
    crowded = any(side.lost >= BUSY and kind_of(side.device) != "cpu" for side in (found.first, found.second))
    if crowded and not settled:
        more = max(2, more_runs(ratio))
        headline = f"Too close to call, needs {_runs(more)} on each device."
        return Verdict("close", None, headline, "Other programs took the cores; close them and run it again.", more)
    if ratio.low > 1 and ratio.value >= NOTICEABLE:
        winner, loser, times = found.second, found.first, ratio.value
    elif ratio.high < 1 and ratio.value <= 1 / NOTICEABLE:
        winner, loser, times = found.first, found.second, 1 / ratio.value
    else:
        return _close(found)
    names = name(winner, found), name(loser, found)
    good = winner is found.challenger
    headline = f"{_capital(names[0])} is {times_text(times)} faster than {names[1]} for this workload."
    if not good and _unlike(found):
        # Only for GPU against CPU does the text name the GPU as slower.
        same = ""
        if found.agreement.agrees:
            same = ", and both find the same"
        headline = f"The GPU is not worth it here: {names[0]} is {times_text(times)} faster{same}."
    if good:
        cause, because = _energy(winner, loser)
    else:
        cause, because = _cause(found)
    return Verdict("faster" if good else "slower", cause, headline, because)


def more_runs(ratio: Ratio) -> int:
    """Repetitions on each device still missing for a decision; 0 if the difference is below 5 %.

    A decision needs an interval that ends before 1, or, for a ratio that is not noticeable, one within 0.95 to 1.05.
    """
    limit, middle = math.log(NOTICEABLE), abs(math.log(ratio.value))
    if -limit <= _log(ratio.low) and _log(ratio.high) <= limit:
        return 0
    if middle >= limit:
        distance = middle
    else:
        distance = limit - middle
    return 2 * more_needed(ratio, max(distance, FINEST))


def _close(found: Measured) -> Verdict:
    more = more_runs(found.ratio)
    if more:
        headline = f"Too close to call, needs {_runs(more)} on each device."
    else:
        headline = "Too close to call: the difference is below 5 %."
    if _unlike(found) and not more:
        cause, because = _cause(found)
    else:
        cause, because = (None, "")
    return Verdict("close", cause, headline, because, more)


def _runs(more: int) -> str:
    return f"{more} more run{'' if more == 1 else 's'}"


def _cause(found: Measured) -> tuple[Cause | None, str]:
    """The first applicable reason why a device is not faster."""
    # The easiest to fix come first.
    slow = found.challenger
    the = name(slow, found)
    if slow.strays:
        return "placement", f"Not everything is on {the}: {listed(slow.strays, 2)}."
    if not _unlike(found) and found.first.device == found.second.device:
        return None, "Both sides are the same device, so what differs is not the device."
    # Copying is the cause if there is much of it, or if a run without it was measured and paid off.
    if slow.copied >= COPYING or _would_pay_resident(found):
        return "transfers", _copying_text(found, slow)
    if slow.retries or (slow.fullness or 0) > FULL:
        return "memory", _memory_text(slow, the)
    if kind_of(slow.device) != "cpu" and _too_small(found, slow):
        return "too_small", _size_text(found, slow)
    return (
        "arithmetic",
        f"{_capital(the)}'s arithmetic itself takes longer: {format_percent(slow.computed)} of its step.",
    )


def _would_pay_resident(found: Measured) -> bool:
    return found.resident is not None and found.of_challenger(found.resident).low > 1


def _copying_text(found: Measured, slow: SideFigures) -> str:
    text = f"{_capital(name(slow, found))} spends {format_percent(slow.copied)} of its step copying data"
    kept = found.of_challenger(found.resident or found.compute_only)
    measured = "without the copies"
    if found.resident is not None:
        measured = "with the data kept there"
    if kept.value >= NOTICEABLE:
        return f"{text}; {measured} it is {times_text(kept.value)} faster than {name(_other(found), found)}."
    if kept.value <= 1 / NOTICEABLE:
        return f"{text}; {measured} it is still {times_text(1 / kept.value)} slower."
    return f"{text}; {measured} both are equally fast."


def _memory_text(slow: SideFigures, the: str) -> str:
    if slow.retries:
        if slow.retries == 1:
            times = "once"
        else:
            times = f"{slow.retries} times"
        return f"The memory of {the} was full: its allocator had to give memory back and ask again {times}."
    return f"The memory of {the} was {format_percent(slow.fullness)} full."


def _too_small(found: Measured, slow: SideFigures) -> bool:
    """Whether larger pieces of work would pay, or most of a step is spent on starting them."""
    return (found.sweep is not None and found.sweep.crossing is not None) or slow.waiting >= 0.5


def _size_text(found: Measured, slow: SideFigures) -> str:
    text = "The pieces of work are too small"
    if slow.waiting >= 0.5:
        text += f": {format_percent(slow.waiting)} of a step passes without computing"
    sweep = found.sweep
    if sweep is None:
        return f"{text}."
    if sweep.crossing is not None:
        return f"{text}; {name(slow, found)} pays off from about {sweep.field} {round_size(sweep.crossing)} upward."
    return f"{text}; up to {sweep.field} {sweep.points[-1].size} it did not pay off."


def _energy(winner: SideFigures, loser: SideFigures) -> tuple[Cause | None, str]:
    if winner.energy_j is None or not loser.energy_j or winner.energy_j < RISEN * loser.energy_j:
        return None, ""
    times = winner.energy_j / loser.energy_j
    return "energy", f"But it takes {times_text(times)} the energy: {joules(winner)} a step against {joules(loser)}."


def joules(side: SideFigures) -> str:
    """A step's energy as text."""
    value = side.energy_j or 0.0
    if value >= 1:
        return f"{value:.3g} J"
    return f"{value * 1e3:.3g} mJ"


def name(side: SideFigures, found: Measured) -> str:
    """The name of a side in a sentence."""
    if _unlike(found):
        if kind_of(side.device) == "cpu":
            return "the CPU"
        return "the GPU"
    return side.label


def times_text(ratio: float) -> str:
    """A factor as text: without decimals from 10 on, below that with one."""
    if ratio >= 9.95:
        return f"{ratio:.0f}×"
    return f"{ratio:.1f}×"


def interval_text(ratio: Ratio) -> str:
    """The interval as text, one digit finer than the number."""
    if ratio.low <= 0 or math.isinf(ratio.high):
        return "no interval yet"
    digits = 2
    if ratio.value >= 9.95:
        digits = 1
    return f"{ratio.low:.{digits}f} – {ratio.high:.{digits}f}"


def round_size(size: float) -> int:
    """A size with two digits: an interpolated one is no more precise."""
    finest = int(10 ** max(0, math.floor(math.log10(max(1.0, size))) - 1))
    return round(size / finest) * finest


def _other(found: Measured) -> SideFigures:
    if found.challenger is found.second:
        return found.first
    return found.second


def _unlike(found: Measured) -> bool:
    return (kind_of(found.first.device) == "cpu") != (kind_of(found.second.device) == "cpu")


def _capital(text: str) -> str:
    if text.startswith("the "):
        return text[0].upper() + text[1:]
    return text


def _log(value: float) -> float:
    if value > 0:
        return math.log(value)
    return -math.inf
