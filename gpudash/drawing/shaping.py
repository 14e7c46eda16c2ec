"""Arrays made ready to draw: bands on top of each other, pulses with edges, dashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Points = tuple[Floats, Floats]

BRIDGED_PX = 3.0
"""Gaps of pulses narrower than this are drawn through."""

_DASHES_PX = {
    "dash": (7.0, 4.0),
    "dot": (2.0, 3.0),
    "dashdot": (9.0, 3.0, 2.0, 3.0),
    "dashdotdot": (9.0, 3.0, 2.0, 3.0, 2.0, 3.0),
}
"""Pixels of lines and gaps by turns."""


def turning_points(values: Floats) -> NDArray[np.bool_]:
    """Which points of a curve are needed to draw it: those that differ from a neighbour, the first and the last.

    Most columns repeat the height before, and Qt walks a dashed line point by point.
    """
    differs = values[1:] != values[:-1]
    # A point inside has a neighbour on each side; the ends are always kept.
    inside = differs[1:] | differs[:-1]
    return np.concatenate(([True], inside, [True]))


def stacked(
    bands: Sequence[Points | None], known: Sequence[Points | None] | None = None
) -> tuple[Floats, list[Floats | None]]:
    """Bands on one time base, summed from the first up.

    Each band brings its own kept extremes, so the base is the union of all their times and no band loses a peak. At the
    times that another band kept, a band's height is that of its sample then: interpolating between kept extremes would
    draw sums that never were. A band that is not there (``None``, or outside its samples) has no height; a gap inside
    one is a gap in all above it.

    Args:
        bands: times ascending and values of each band, thinned; ``None`` without data.
        known: all samples of each band; needed where the bands were thinned to different times.

    Returns:
        The times, shape (n,), and per band the upper edge, shape (n,), or ``None``.
    """
    present = [band for band in bands if band is not None and len(band[0])]
    if not present:
        return np.empty(0), [None] * len(bands)
    times = present[0][0]
    # Curves of one source share their times, and then nothing has to be merged.
    if any(len(band[0]) != len(times) or not np.array_equal(band[0], times) for band in present[1:]):
        # `np.unique` would do the same, but import numpy's masked arrays first: a long turn of the first frame.
        times = np.sort(np.concatenate([band[0] for band in present]), kind="stable")
        times = times[np.diff(times, prepend=-np.inf) > 0]
    total = np.zeros(len(times))
    edges: list[Floats | None] = []
    for position, band in enumerate(bands):
        if band is None or not len(band[0]):
            edges.append(None)
            continue
        whole = None
        if known is not None:
            whole = known[position]
        if whole is None:
            t, v = band
        else:
            t, v = whole
        if t is times:
            heights = v
        else:
            # The sample at or before each time, since readings hold until the next.
            heights = v[np.clip(np.searchsorted(t, times, "right") - 1, 0, None)]
        outside = (times < t[0]) | (times > t[-1])
        total = total + np.where(outside, 0.0, np.maximum(heights, 0.0))
        edges.append(total)
    return times, edges


def pulses(t: Floats, v: Floats, bridged_s: float) -> Points:
    """Bursts with edges down to 0; gaps up to ``bridged_s`` are drawn through.

    Args:
        t: times ascending, shape (n,).
        v: values, NaN between bursts.
        bridged_s: longest gap that is drawn through.
    """
    there = np.flatnonzero(np.isfinite(v))
    if not len(there):
        return t[:0], v[:0]
    times, values = t[there], v[there]
    # A gap in time alone is no gap: only where samples are missing between two bursts does the curve go down.
    breaks = np.flatnonzero((np.diff(there) > 1) & (np.diff(times) > bridged_s)) + 1
    # At each break three points come in: down to 0, a gap, and up from 0.
    positions = np.concatenate(([0], np.repeat(breaks, 3), [len(times)]))
    ends, starts = times[breaks - 1], times[breaks]
    edge_times = np.concatenate((times[:1], np.stack((ends, starts, starts), axis=1).ravel(), times[-1:]))
    edge_values = np.concatenate(([0.0], np.tile([0.0, np.nan, 0.0], len(breaks)), [0.0]))
    return np.insert(times, positions, edge_times), np.insert(values, positions, edge_values)


def dashes(t: Floats, seconds_per_pixel: float, style: str) -> NDArray[np.int32] | None:
    """Which points of a dense curve connect to the next, so that it looks dashed at no cost.

    Qt's own dashing walks every vertex; a curve with a point in nearly every column is dashed by leaving out columns.

    Args:
        t: session times, shape (n,); the pattern moves with them.
        seconds_per_pixel: of the drawing.
        style: "dash", "dot", "dashdot" or "dashdotdot".

    Returns:
        0 or 1 per point, or ``None`` when the points are too sparse for it.
    """
    lengths = np.array(_DASHES_PX[style]) * seconds_per_pixel
    # Where points are farther apart than half a gap, whole dashes would fall between two of them.
    if len(t) < 3 or float(np.median(np.diff(t))) > lengths[1] / 2:
        return None
    ends = np.cumsum(lengths)
    # The pattern is anchored to session time, so that it moves with the curve and does not flicker.
    places = np.searchsorted(ends, np.mod(t, ends[-1]), "right")
    return np.asarray(places % 2 == 0, dtype=np.int32)
