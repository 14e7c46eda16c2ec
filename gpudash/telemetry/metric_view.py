"""The figures of one metric of a run, kept up to date value by value."""

from __future__ import annotations

import array
import math
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

EXACT_VALUES = 100_000
"""Values of a metric up to which its median is exact; beyond, it is that of a uniform sample of as many."""

DIGEST_VALUES = 256
"""Values of a metric that a digest carries at most: enough for the median of a run that is still on."""


class MetricView:
    """First, last, extremes and medians of one metric of a run. NaN and infinities count in `first` and `last` only."""

    def __init__(self) -> None:
        self.count = 0
        self.first = math.nan
        self.last = math.nan
        self.min = math.inf
        self.max = -math.inf
        self._values = array.array("d")
        self._finite = 0
        self._newest: deque[float] = deque(maxlen=20)
        self._random = random.Random(0)
        self._capacity = EXACT_VALUES
        self._known_median: float | None = None

    def add(self, value: float) -> None:
        """Take in the next value."""
        if self.count == 0:
            self.first = value
        self.count += 1
        self.last = value
        if not math.isfinite(value):
            return
        self._finite += 1
        self._known_median = None
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        self._newest.append(value)
        if len(self._values) < self._capacity:
            self._values.append(value)
        elif (place := self._random.randrange(self._finite)) < self._capacity:
            self._values[place] = value  # Vitter 1985, algorithm R: every value is kept with the same probability

    @property
    def median(self) -> float | None:
        """Median of all finite values; ``None`` when there is none."""
        if self._known_median is None and self._values:
            self._known_median = float(np.median(np.frombuffer(self._values)))
        return self._known_median

    @property
    def last_20_median(self) -> float | None:
        """Median of the newest 20 finite values; ``None`` when there is none."""
        return float(np.median(self._newest)) if self._newest else None

    def summary(self) -> dict[str, float | None]:
        return {
            "first": self.first if self.count else None,
            "last": self.last if self.count else None,
            "min": self.min if self._finite else None,
            "max": self.max if self._finite else None,
            "median": self.median,
            "last_20_median": self.last_20_median,
        }

    def digest(self) -> dict[str, Any]:
        """What `of` makes an equal view of: every figure, and of the values an even choice."""
        step = -(-len(self._values) // DIGEST_VALUES) or 1
        return {
            "count": self.count,
            "finite": self._finite,
            "first": self.first,
            "last": self.last,
            "min": self.min,
            "max": self.max,
            "median": self.median,
            "newest": list(self._newest),
            "values": self._values[::step].tolist(),
        }

    @classmethod
    def of(cls, digest: Mapping[str, Any]) -> MetricView:
        """The view that was digested: equal figures; the median of values added later is that of the choice kept."""
        view = cls()
        view.count, view._finite = int(digest["count"]), int(digest["finite"])
        view.first, view.last = float(digest["first"]), float(digest["last"])
        view.min, view.max = float(digest["min"]), float(digest["max"])
        view._newest.extend(map(float, digest["newest"]))
        view._values.extend(map(float, digest["values"]))
        if len(view._values) < view._finite:
            view._capacity = len(view._values)
        view._known_median = None if digest["median"] is None else float(digest["median"])
        return view
