"""How far a y axis reaches: it grows at once and shrinks only after a calm while or on request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpudash.ui.plots.curve import Unit

CALM_S = 3.0
"""How long the data must need clearly less of the axis before it shrinks."""

_SHRINK_BELOW = 0.6
"""Share of the axis that must suffice before it may shrink at all."""


_LEAST = 1e-9
"""Narrowest axis."""

_LEAST_BYTES = 16 * 2.0**20
"""Narrowest axis of a memory: one that is empty has no ticks within a mebibyte."""


@dataclass(slots=True)
class Autoscale:
    """The range of one y axis, in drawn coordinates (decimal logarithms where `log`).

    Attributes:
        unit: memory, rates and numbers begin at 0; ratios are 0 to 1.
        log: logarithmic; only where 0 cannot occur.
        manual: a range the user chose; kept until `reset`.
    """

    unit: Unit
    log: bool = False
    manual: tuple[float, float] | None = None
    _low: float = 0.0
    _high: float = 0.0
    _fresh: bool = True
    _calm_since: float | None = None

    def range(self) -> tuple[float, float]:
        """The range in force; low < high."""
        if self.manual is not None:
            return self.manual
        if self._fresh:
            return 0.0, _LEAST_BYTES if self.unit == "bytes" else 1.0
        return self._low, self._high

    def reset(self) -> None:
        """Fit to the data again at the next `update`."""
        self.manual = None
        self.refit()

    def refit(self) -> None:
        """Fit to the data again at the next `update`, and keep a range the user chose."""
        self._fresh = True
        self._calm_since = None

    def update(self, low: float, high: float, now_s: float) -> tuple[float, float]:
        """Take in the data's extremes, in drawn coordinates, at ``now_s``; NaN for no data."""
        if math.isnan(low) or math.isnan(high):
            return self.range()
        target = self._target(low, high)
        if self._fresh:
            self._low, self._high = target
            self._fresh = False
        if target[0] < self._low or target[1] > self._high:
            self._low, self._high = min(target[0], self._low), max(target[1], self._high)
        if target[1] - target[0] >= (self._high - self._low) * _SHRINK_BELOW:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now_s
        elif now_s - self._calm_since >= CALM_S:
            self._low, self._high = target
            self._calm_since = None
        return self.range()

    def zoom(self, factor: float, anchor: float) -> None:
        """Make the range ``factor`` times as high around ``anchor``; axes that begin at 0 keep doing so."""
        low, high = self.range()
        if self.unit in ("bytes", "rate", "number", "ratio") and low >= 0:
            self.manual = (low, low + (high - low) * factor)
        else:
            self.manual = (anchor - (anchor - low) * factor, anchor + (high - anchor) * factor)

    def _target(self, low: float, high: float) -> tuple[float, float]:
        if self.log or self.unit in ("nats", "loss"):
            pad = max((high - low) * 0.08, abs(high) * 0.02, 1e-6)
            return self._rounded(low - pad, high + pad)
        if self.unit == "ratio":
            return min(0.0, low), max(1.04, high * 1.04)
        if self.unit == "bytes":
            return min(0.0, low), max(high * 1.12, _LEAST_BYTES)
        return self._rounded(min(0.0, low), high * 1.08 if high > 0 else 1.0)

    def _rounded(self, low: float, high: float) -> tuple[float, float]:
        """Ends on a coarse raster, so that noise does not move the axis at every frame."""
        high = max(high, low + _LEAST)
        raster = 10.0 ** math.floor(math.log10(high - low)) / 5
        return math.floor(low / raster + 1e-9) * raster, math.ceil(high / raster - 1e-9) * raster
