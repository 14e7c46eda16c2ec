"""Fewer points for the same picture: the exact lowest and highest sample of every cell of time, and every gap."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEPS_PER_OCTAVE = 4
"""Cell widths are 2^(k/4) seconds, so that a growing window keeps its cells and a curve does not shimmer."""


def cell_width(span: float, columns: int) -> float:
    """The largest width of the ladder that puts a cell in each of ``columns`` columns of ``span`` seconds."""
    exponent = math.floor(math.log2(span / columns) * STEPS_PER_OCTAVE)
    return float(2.0 ** (exponent / STEPS_PER_OCTAVE))


def cell_start(cell: int, width: float) -> float:
    """The smallest time that `thin` counts to ``cell``: comparing times with it is exact, whatever the rounding."""
    inverse = 1.0 / width
    start = cell * width
    while math.floor(start * inverse) < cell:
        start = math.nextafter(start, math.inf)
    while math.floor(math.nextafter(start, -math.inf) * inverse) >= cell:
        start = math.nextafter(start, -math.inf)
    return start


def thin(times: Floats, values: Floats, width: float) -> tuple[Floats, Floats]:
    """Of each cell of ``width`` seconds the lowest, the highest and the first missing sample, in order of time.

    Args:
        times: ascending, shape (n,), seconds.
        values: shape (n,); NaN is a gap.
        width: cell width in seconds; cells begin at multiples of it, not at the first sample.

    Returns:
        Copies of the kept times and values. Both are samples as they came, nothing is averaged.
    """
    if len(times) < 3:
        return times.copy(), values.copy()
    cells = np.floor(times * (1.0 / width))
    starts = np.empty(len(times), dtype=bool)
    starts[0] = True
    np.not_equal(cells[1:], cells[:-1], out=starts[1:])
    edges = np.flatnonzero(starts)
    number = np.cumsum(starts) - 1
    keep = np.zeros(len(times), dtype=bool)
    for extreme in (np.fmin, np.fmax):
        _keep_first(values == extreme.reduceat(values, edges)[number], number, keep)
    _keep_first(np.isnan(values), number, keep)
    return times[keep], values[keep]


def _keep_first(wanted: NDArray[np.bool_], number: NDArray[np.int64], keep: NDArray[np.bool_]) -> None:
    positions = np.flatnonzero(wanted)
    if len(positions):
        cells = number[positions]
        keep[positions[np.flatnonzero(np.diff(cells, prepend=-1))]] = True
