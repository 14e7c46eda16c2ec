"""How much of its memory each step of a program leaves behind, once that is certain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

FEWEST_STEPS = 4
"""Fewest steps in which a line must leave memory behind to count as growing: two may be a double buffer, three a
pipeline."""

FEWEST_STRIDES = 3
"""The same for memory of every n-th step: two steps lie some steps apart, whatever they are."""

SHARE_OF_STEPS = 0.5
"""Part of the steps since the first such step that must leave memory behind; of every n-th step if only those do."""

SHARE_OF_RUN = 2 / 3
"""Part of the run's steps that must have passed since then: if memory is freed periodically, such as after each epoch,
up to half of all steps may be live."""

LIKE_THE_MEDIAN = 0.5
"""How far the bytes of a step, or its distance from the one before, may be off the median, as a part of it, to count as
similar.
"""

SHARE_ALIKE = 0.75
"""Part of the steps whose bytes must be similar; and of their distances, for memory of every n-th step."""


@dataclass(frozen=True, slots=True)
class GrowthRate:
    """What stays of a run's steps.

    Attributes:
        bytes_per_step: bytes, on average over all steps.
        stride: steps from one that leaves memory behind to the next; 1.0 if they are not regular.
    """

    bytes_per_step: float
    stride: float


@dataclass(frozen=True, slots=True)
class HeldLine:
    """What a line holds at a moment.

    Attributes:
        bytes: that it allocated and that are there.
        growth: bytes that it keeps of every step, on average; 0.0 where it keeps nothing.
        stride: steps from one of which it keeps something to the next.
    """

    bytes: int
    growth: float = 0.0
    stride: float = 1.0


def growth_rate(steps: Mapping[int, int], now: int, fewest_steps: int = FEWEST_STEPS) -> GrowthRate | None:
    """What a step leaves behind; ``None`` if it does not: too few steps, long ago, or very different sizes.

    Args:
        steps: bytes of each step that are still allocated.
        now: the current step.
        fewest_steps: number of steps that must have left memory behind.
    """
    if len(steps) < fewest_steps:
        return None
    stride = _stride(sorted(steps))
    if stride > 1.0 and len(steps) < FEWEST_STRIDES:
        return None
    first = min(steps)
    last = max(steps)
    span = last - first + stride
    # What began recently has not yet shown that it continues.
    if now - first < SHARE_OF_RUN * (now - 1):
        return None
    # Too many steps left nothing, or the last ones did: it has ended.
    if len(steps) * stride < SHARE_OF_STEPS * span or now - last > math.ceil(span / len(steps)) + 1:
        return None
    median = statistics.median(steps.values())
    # Very different sizes come from batches of different lengths, which come and go.
    alike = [size for size in steps.values() if abs(size - median) <= LIKE_THE_MEDIAN * median]
    if len(alike) < SHARE_ALIKE * len(steps):
        return None
    if stride > 1.0:
        # The newest step may hold as much without keeping it: it would count as one more of them.
        return GrowthRate(statistics.fmean(alike) / stride, stride)
    return GrowthRate(sum(steps.values()) / span, stride)


def _stride(steps: Sequence[int]) -> float:
    """The regular distance between some steps, in ascending order; 1.0 if there is none."""
    distances = [after - before for before, after in pairwise(steps)]
    if not distances:
        return 1.0
    median = statistics.median(distances)
    alike = [distance for distance in distances if abs(distance - median) <= LIKE_THE_MEDIAN * median]
    stride = statistics.fmean(alike)
    if stride >= 2.0 and len(alike) >= SHARE_ALIKE * len(distances):
        return stride
    return 1.0
