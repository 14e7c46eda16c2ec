"""The middle and the spread of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median_and_iqr(values: Sequence[float]) -> tuple[float, float]:
    """Median and interquartile range (linear between the nearest ranks, as NumPy's default); of one value 0 spread."""
    if len(values) < 2:
        return values[0], 0.0
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return middle, upper - lower
