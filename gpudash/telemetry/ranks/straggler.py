"""The rank that the others wait for, and the one that will run out of memory first; reported only where the figures
leave no doubt.

Steps are noisy and correlated: what slows a rank for a moment slows several of its steps. Each step is therefore
compared within itself (a rank's compute time with the median of the other ranks'). The newest steps are cut into ten
blocks of consecutive steps, and each block counts as one observation: its median. Whatever the distribution, the
median over the blocks is above the smallest of ten with a probability of 1 - 2^-10, and above the second smallest with
a probability of 1 - 11 * 2^-10 (order statistics: David and Nagaraja, Order Statistics, 7.1). That lower bound must
exceed `LEAST_SLOWER`.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudash.units import format_bytes, format_duration, format_like

WARM_UP = 5
"""Number of first steps that are ignored: they load kernels, fill caches and set up the collectives."""

LEAST_STEPS = 20
"""Fewest steps for a finding: two for each block."""

RECENT = 1000
"""Number of newest steps that count: older ones say nothing about the present."""

BLOCKS = 10

PLENTY = 100
"""Number of steps from which blocks are so long that one of the ten may disagree."""

LEAST_SLOWER = 0.06
"""Smallest lower bound of the slowness for which a rank is named. Equal processes on one machine differ by a few per
cent for no reason of their own (Mytkowicz et al., Producing Wrong Data Without Doing Anything Obviously Wrong,
2009)."""

LEAST_CERTAIN = 1 / 3
"""Smallest lower bound as a share of the figure: below it the figure would claim more than is known."""

MOST_OF_IT = 0.5
"""Share of the extra time that must be waiting for input for that to be named as the cause."""

LEAST_SHARE = 0.10
"""By how much the peak must exceed the median of the others', as a share."""

LEAST_BYTES = 64 * 2**20
"""And by how many bytes: equal processes differ by some MiB of buffers and libraries."""

KINDS = (("allocated_bytes", "allocated"), ("used_bytes", "used"))
"""Memory metrics to compare, the exact one first."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for.

    Attributes:
        rank: number of the rank.
        slower: how much longer its own part of a step takes than the others', 0.2 for 20 %.
        steps: number of steps that this is based on.
        text: all of this in a sentence.
    """

    rank: int
    slower: float
    steps: int
    text: str


def _recent(ranks: Iterable[int]) -> dict[int, deque[float]]:
    return {rank: deque(maxlen=RECENT) for rank in ranks}


class Paces:
    """The ranks' compute times relative to the others', step by step.

    Args:
        ranks: numbers of the ranks.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        ranks = tuple(ranks)
        self._ratios = _recent(ranks)
        self._waits = _recent(ranks)
        self._inputs = _recent(ranks)
        self._own = _recent(ranks)
        self._seen = 0

    def take(
        self,
        own: Mapping[int, float | None],
        waiting: Mapping[int, float],
        inputs: Mapping[int, float] | None = None,
    ) -> None:
        """Add a step; all times in seconds.

        Args:
            own: time each rank spent on its own.
            waiting: time that ranks waited for others, for those that know it.
            inputs: part of each rank's own time that it waited for input, where known.
        """
        known = {rank: s for rank, s in own.items() if s is not None and math.isfinite(s) and s > 0}
        # Only use steps that all ranks have reported: the ratios belong together.
        if len(known) < len(self._ratios) or len(known) < 2:
            return
        self._seen += 1
        if self._seen <= WARM_UP:
            return
        ordered = sorted(known.values())
        for rank, seconds in known.items():
            self._ratios[rank].append(seconds / _median_of_others(ordered, seconds))
            if rank in waiting:
                self._waits[rank].append(waiting[rank])
            if inputs and rank in inputs:
                self._inputs[rank].append(inputs[rank])
                self._own[rank].append(seconds)

    def straggler(self) -> Straggler | None:
        """The rank that is clearly slower than the others; ``None`` if there is none or that is unknown."""
        steps = min(map(len, self._ratios.values()))
        if len(self._ratios) < 2 or steps < LEAST_STEPS:
            return None
        medians = {rank: statistics.median(ratios) for rank, ratios in self._ratios.items()}
        slowest = max(medians, key=medians.__getitem__)
        slower = medians[slowest] - 1
        bound = _lower_bound(list(self._ratios[slowest])) - 1
        if bound <= max(LEAST_SLOWER, slower * LEAST_CERTAIN):
            return None
        waits = {rank: statistics.median(known) for rank, known in self._waits.items() if len(known) >= LEAST_STEPS}
        # A second criterion: a rank that others wait for does not itself wait as long.
        own = waits.pop(slowest, None)
        awaited_s = None
        if waits:
            awaited_s = statistics.median(waits.values())
        if own is not None and awaited_s is not None and own >= awaited_s:
            return None
        text = _sentence(slowest, slower, bound, steps, awaited_s, self.others, self._input_s(slowest))
        return Straggler(slowest, slower, steps, text)

    def _input_s(self, slowest: int) -> float | None:
        """Time that the slowest rank waits for its input in a step; ``None`` if that is not why it is slower."""
        if any(len(inputs) < LEAST_STEPS for inputs in self._inputs.values()):
            return None
        inputs = {rank: statistics.median(known) for rank, known in self._inputs.items()}
        owns = {rank: statistics.median(known) for rank, known in self._own.items()}
        input_s = inputs.pop(slowest)
        own_s = owns.pop(slowest)
        # Its extra time, and how much of that is extra waiting for input.
        more_input_s = input_s - statistics.median(inputs.values())
        more_s = own_s - statistics.median(owns.values())
        if more_input_s >= MOST_OF_IT * more_s:
            return input_s
        return None

    @property
    def others(self) -> int:
        """Number of ranks that a rank is compared with."""
        return len(self._ratios) - 1


def _sentence(
    rank: int, slower: float, bound: float, steps: int, awaited_s: float | None, others: int, input_s: float | None
) -> str:
    does = "takes"
    if input_s is None:
        does = "computes"
    compared_with = "the other ranks"
    waits = "which wait"
    if others == 1:
        compared_with = "the other rank"
        waits = "which waits"
    if awaited_s is not None:
        waits += f" {format_duration(awaited_s)} a step"
    text = (
        f"Rank {rank} {does} {slower * 100:.0f} % longer a step than {compared_with} "
        f"(at least {bound * 100:.0f} %, last {steps} steps), {waits} for it."
    )
    if input_s is None:
        return text
    return f"{text} Rank {rank} waits {format_duration(input_s)} a step for its input."


def _median_of_others(ordered: Sequence[float], own: float) -> float:
    """Median of sorted values without one of them."""
    place = ordered.index(own)
    count = len(ordered) - 1
    # The two middle positions (equal for an odd number); from the rank's own position on, one further.
    low = (count - 1) // 2
    high = count // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def _lower_bound(ratios: Sequence[float]) -> float:
    """A bound that the median of the steps' ratios exceeds with a probability of at least 0.989."""
    size = len(ratios) / BLOCKS
    # Consecutive steps, so that a disturbance of several steps stays within one block.
    blocks = (ratios[round(place * size) : round((place + 1) * size)] for place in range(BLOCKS))
    medians = sorted(map(statistics.median, blocks))
    # With many steps the second smallest, 0.989 by the order statistics above; with few, all ten must agree.
    if len(ratios) >= PLENTY:
        return medians[1]
    return medians[0]


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The rank with the most memory.

    Attributes:
        rank: number of the rank.
        bytes: its peak.
        others_bytes: median of the other ranks' peaks.
        text: both in a sentence.
    """

    rank: int
    bytes: int
    others_bytes: int
    text: str


def compared(peaks: Collection[Mapping[str, int]]) -> str | None:
    """The metric of `KINDS` by which the ranks' peaks can be compared; ``None`` if a rank has neither."""
    if len(peaks) < 2:
        return None
    for metric, _word in KINDS:
        # In all ranks, and not only zeros: an unused allocator reports 0.
        if all(metric in of for of in peaks) and any(of[metric] for of in peaks):
            return metric
    return None


def imbalance(peaks: Mapping[int, Mapping[str, int]]) -> Imbalance | None:
    """The rank whose peak is well above the others', from ``peaks`` by rank and metric."""
    metric = compared(list(peaks.values()))
    if metric is None:
        return None
    return _of({rank: of[metric] for rank, of in peaks.items()}, dict(KINDS)[metric])


def _of(sizes: Mapping[int, int], word: str) -> Imbalance | None:
    rank = max(sizes, key=sizes.__getitem__)
    others = [other for other in sizes if other != rank]
    size = sizes[rank]
    typical = int(statistics.median(sizes[other] for other in others))
    if size - typical <= LEAST_BYTES or size <= typical * (1 + LEAST_SHARE):
        return None
    rest = "the other ranks (median)"
    if len(others) == 1:
        rest = f"rank {others[0]}"
    text = (
        f"Memory is unequal: rank {rank} {word} {format_bytes(size)} at its peak, {rest} "
        f"{format_like(typical, size)}; the fullest device limits the batch of all."
    )
    return Imbalance(rank, size, typical, text)
