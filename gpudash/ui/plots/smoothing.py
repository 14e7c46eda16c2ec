"""Exponential smoothing that does not lie: a view of the samples, never the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Smoother:
    """Bias-corrected exponential moving average, sample by sample.

    The average after n samples weighs them by weight^age, normalised: m += (x − m)·(1 − weight)/(1 − weight^n), which
    is Adam's bias correction (Kingma and Ba 2015, section 3) rearranged so that a constant stays that constant exactly.
    A sample that is not finite breaks the line and the average starts anew behind it.

    Attributes:
        weight: of the past, 0 (raw) up to but not 1.
    """

    weight: float
    _mean: float = 0.0
    _decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < 1:
            raise ValueError(f"smoothing {self.weight} is outside 0 to below 1")

    def extend(self, values: Floats) -> Floats:
        """The averages at ``values``, shape (n,), going on from earlier calls; NaN where a value is not finite."""
        if self.weight == 0:
            return np.where(np.isfinite(values), values, np.nan)
        weight, mean, decay = self.weight, self._mean, self._decay
        result: list[float] = []
        for value in values.tolist():
            if math.isfinite(value):
                decay *= weight
                mean = value if decay == weight else mean + (value - mean) * ((1 - weight) / (1 - decay))
                result.append(mean)
            else:
                decay = 1.0
                result.append(math.nan)
        self._mean, self._decay = mean, decay
        return np.array(result, dtype=np.float64)


def smooth(values: Floats, weight: float) -> Floats:
    """``values`` smoothed from the first to the last sample, shape (n,).

    Raises:
        ValueError: when ``weight`` is not from 0 to below 1.
    """
    return Smoother(weight).extend(values)
