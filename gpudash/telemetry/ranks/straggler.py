"""The rank that the others wait for, and the one that will run out of memory first: found only where the figures
leave no doubt.

Steps are noisy, and neighbours are alike: what slows one rank for a moment slows several of its steps. So every step is
compared within itself (a rank's computing against the median of the other ranks'), the newest steps are cut into ten
blocks of consecutive ones, and each block is taken for one observation: its median. Whatever the distribution, the
median over the blocks lies above the smallest of ten with a probability of 1 - 2^-10, above the second smallest with
one of 1 - 11 * 2^-10 (order statistics: David and Nagaraja, Order Statistics, 7.1). That lower bound has to exceed
`LEAST_SLOWER`.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudash.units import format_bytes, format_duration, format_like

WARM_UP = 5
"""First steps that are left out: they load kernels, fill caches and set up the collectives."""

LEAST_STEPS = 20
"""Fewest steps for a finding: two per block."""

RECENT = 1000
"""Newest steps that count: what a rank did long ago says nothing of now."""

BLOCKS = 10

PLENTY = 100
"""Steps from which on a block is long enough that one of the ten may disagree."""

LEAST_SLOWER = 0.06
"""Lower bound of the slowness from which on a rank is named. Equal processes on one machine differ by a few per cent
for no reason of their own (Mytkowicz et al., Producing Wrong Data Without Doing Anything Obviously Wrong, 2009)."""

LEAST_CERTAIN = 1 / 3
"""Least lower bound as a share of the figure: below it the figure would say more than is known."""

MOST_OF_IT = 0.5
"""Part of the time by which a rank is slower that has to be its waiting for input for that to be the cause."""

LEAST_SHARE = 0.10
"""By how much the peak has to exceed the median of the others'."""

LEAST_BYTES = 64 * 2**20
"""And by how much at least: processes that do the same differ by some MiB of buffers and libraries."""

KINDS = (("allocated_bytes", "allocated"), ("used_bytes", "used"))
"""Which memory is compared, the exact one first."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for.

    Attributes:
        rank: its number.
        slower: by how much longer it takes for its own part of a step than the others, 0.2 for 20 %.
        steps: from how many.
        text: all of it in a sentence.
    """

    rank: int
    slower: float
    steps: int
    text: str


class Paces:
    """How each rank's computing compares with that of the others, step by step.

    Args:
        ranks: their numbers.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ratios = {rank: deque[float](maxlen=RECENT) for rank in ranks}
        self._waits = {rank: deque[float](maxlen=RECENT) for rank in self._ratios}
        self._inputs = {rank: deque[float](maxlen=RECENT) for rank in self._ratios}
        self._own = {rank: deque[float](maxlen=RECENT) for rank in self._ratios}
        self._seen = 0

    def take(
        self,
        own: Mapping[int, float | None],
        waiting: Mapping[int, float],
        inputs: Mapping[int, float] | None = None,
    ) -> None:
        """Take in a step, in seconds.

        Args:
            own: what each rank spent without the others.
            waiting: how long those waited for others that know it.
            inputs: of its own part, how long each waited for its input, where it knows.
        """
        known = {rank: s for rank, s in own.items() if s is not None and math.isfinite(s) and s > 0}
        # a step counts only where all ranks tell of it: their ratios belong together
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
        """The one rank that is clearly slower than the others; ``None`` where there is none or it is unknown."""
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
        # a second witness: who makes others wait does not wait as long itself
        own = waits.pop(slowest, None)
        awaited_s = None
        if waits:
            awaited_s = statistics.median(waits.values())
        if own is not None and awaited_s is not None and own >= awaited_s:
            return None
        text = _sentence(slowest, slower, bound, steps, awaited_s, self.others, self._input_s(slowest))
        return Straggler(slowest, slower, steps, text)

    def _input_s(self, slowest: int) -> float | None:
        """How long the slowest rank waits for its input a step; ``None`` where that is not what makes it slower."""
        if any(len(inputs) < LEAST_STEPS for inputs in self._inputs.values()):
            return None
        inputs = {rank: statistics.median(known) for rank, known in self._inputs.items()}
        owns = {rank: statistics.median(known) for rank, known in self._own.items()}
        input_s = inputs.pop(slowest)
        own_s = owns.pop(slowest)
        # by how much more than the others, and how much of that is its waiting for input
        more_input_s = input_s - statistics.median(inputs.values())
        more_s = own_s - statistics.median(owns.values())
        if more_input_s >= MOST_OF_IT * more_s:
            return input_s
        return None

    @property
    def others(self) -> int:
        """Ranks that a rank is compared with."""
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
    # the two in the middle, the same one of an odd number; those at or behind the rank's own place are one further on
    low = (count - 1) // 2
    high = count // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def _lower_bound(ratios: Sequence[float]) -> float:
    """What the median of the steps' ratios exceeds with a probability of at least 0.989."""
    size = len(ratios) / BLOCKS
    # consecutive steps, so that what slows neighbours alike stays within one block
    blocks = (ratios[round(place * size) : round((place + 1) * size)] for place in range(BLOCKS))
    medians = sorted(statistics.median(block) for block in blocks)
    # the second smallest with longer blocks: 0.989 by the order statistics above; of few steps all ten have
    # to agree
    if len(ratios) >= PLENTY:
        return medians[1]
    return medians[0]


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The rank with the most memory.

    Attributes:
        rank: its number.
        bytes: its peak.
        others_bytes: median of the other ranks' peaks.
        text: both in a sentence.
    """

    rank: int
    bytes: int
    others_bytes: int
    text: str


def compared(peaks: Collection[Mapping[str, int]]) -> str | None:
    """The metric of `KINDS` by which ranks can be compared, by their peaks; ``None`` where one of them lacks both."""
    if len(peaks) < 2:
        return None
    for metric, _word in KINDS:
        # all of them, and not only zeros: an allocator that nobody uses tells 0
        if all(metric in of for of in peaks) and any(of[metric] for of in peaks):
            return metric
    return None


def imbalance(peaks: Mapping[int, Mapping[str, int]]) -> Imbalance | None:
    """The rank whose peak is well above the others', of ``peaks`` by rank and metric."""
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
