"""Curves of runs laid over one another: by step, or by time from a moment that both have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpudash.telemetry.thinning import Floats, cell_width, thin


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Points in order of ``x``; shapes (n,). A NaN in ``y`` is a gap, which breaks the line."""

    x: Floats
    y: Floats

    @property
    def extent(self) -> tuple[float, float] | None:
        """First and last ``x``; ``None`` without points."""
        return (float(self.x[0]), float(self.x[-1])) if len(self.x) else None

    def at(self, place: float) -> float:
        """The newest value at or before ``place``; NaN outside the curve."""
        extent = self.extent
        if extent is None or not extent[0] <= place <= extent[1]:
            return math.nan
        return float(self.y[int(np.searchsorted(self.x, place, "right")) - 1])

    def moved(self, offset: float) -> Curve:
        """The curve ``offset`` further right."""
        return Curve(self.x + offset, self.y)

    def drawn(self, low: float, high: float, columns: int) -> Curve:
        """What a picture from ``low`` to ``high`` on ``columns`` pixel columns needs: the extremes of each column.

        One point on either side is included, so that the line reaches the edge. Nothing is averaged.

        Raises:
            ValueError: when the range is empty or there is no column.
        """
        if not low < high or columns < 1:
            raise ValueError(f"nothing can be drawn from {low} to {high} on {columns} columns")
        first, last = np.searchsorted(self.x, low, "left"), np.searchsorted(self.x, high, "right")
        part = slice(max(int(first) - 1, 0), int(last) + 1)
        x, y = self.x[part], self.y[part]
        if len(x) <= 2 * columns:
            return Curve(x, y)
        thinned = thin(x, y, cell_width(high - low, columns))
        return Curve(*thinned)


EMPTY = Curve(np.empty(0), np.empty(0))


def difference(a: Curve, b: Curve, low: float, high: float, columns: int) -> Curve:
    """``b`` minus ``a`` where both have values, from ``low`` to ``high``, in at most a few points a pixel column.

    Between its points a curve is a straight line, so the difference is one between the points of both together. A gap
    in either is a gap in the difference.

    Raises:
        ValueError: when there is no column.
    """
    if columns < 1:
        raise ValueError("a difference needs a column to be drawn on")
    if len(a.x) == 0 or len(b.x) == 0:
        return EMPTY
    start, end = max(a.x[0], b.x[0], low), min(a.x[-1], b.x[-1], high)
    if not start < end:
        return EMPTY
    near = [curve.drawn(float(start), float(end), columns) for curve in (a, b)]
    x = np.unique(np.concatenate([[start], *(curve.x for curve in near), [end]]))
    x = x[(x >= start) & (x <= end)]
    values = [_at(curve, x) for curve in near]
    with np.errstate(invalid="ignore"):  # infinite minus infinite is no number
        return Curve(x, values[1] - values[0])


def _at(curve: Curve, x: Floats) -> Floats:
    """Values at ``x`` on the straight lines between points; NaN beside a gap."""
    with np.errstate(invalid="ignore", over="ignore"):
        values: Floats = np.interp(x, curve.x, curve.y)
    return values
