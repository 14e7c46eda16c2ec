"""Prepares a curve of levels for drawing: the exact minimum and maximum in every pixel column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.history.phases import Band

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The data of the timeline; n events. Moments are those of a history: ``m`` is after event ``m``, -1 before the
    first.

    Attributes:
        allocated, reserved: bytes before the first event and after each, shape (n + 1,).
        time_s: times of the events since the first one, ascending, shape (n,); ``None`` if the file has no times.
        bands: the phases, in order.
        capacity: bytes available to PyTorch; ``None`` if unknown.
        peak: the moment with most memory allocated.
        ooms: the moments at which a request was refused.
    """

    allocated: Ints
    reserved: Ints
    time_s: Floats | None
    bands: tuple[Band, ...] = ()
    capacity: int | None = None
    peak: int = 0
    ooms: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.allocated) - 1

    def at(self, moment: int) -> tuple[int, int]:
        """Allocated and reserved bytes at a moment."""
        return int(self.allocated[moment + 1]), int(self.reserved[moment + 1])


class Axis:
    """The x axis: events by number or by time.

    A moment lies at the position of its event; the moment before the first event has an extra position.
    """

    def __init__(self, levels: Levels, by_time: bool) -> None:
        self.by_time = by_time and levels.time_s is not None and len(levels) > 0
        self._length = len(levels)
        self._places = None
        if self.by_time and levels.time_s is not None:
            self._places = np.concatenate([levels.time_s[:1], levels.time_s])

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last position; never equal."""
        if self._places is None:
            return 0.0, float(max(1, self._length))
        first, last = float(self._places[0]), float(self._places[-1])
        return first, last if last > first else first + 1e-6

    def place(self, moment: int) -> float:
        """The position of a moment."""
        if self._places is None:
            return float(moment + 1)
        return float(self._places[moment + 1])

    @property
    def events(self) -> Floats:
        """The positions of the events, shape (n,)."""
        if self._places is None:
            return np.arange(1.0, self._length + 1)
        return self._places[1:]

    def moment(self, place: float) -> int:
        """The last moment at or before a position."""
        if self._places is None:
            return int(min(max(0.0, np.floor(place + 0.5)), self._length)) - 1
        return int(np.clip(np.searchsorted(self._places, place, "right") - 2, -1, self._length - 1))

    def starts(self, left: float, right: float, columns: int) -> Ints:
        """Index of the first level in each column between two positions, and the last end, shape (columns + 1,)."""
        edges = np.linspace(left, right, columns + 1)
        if self._places is None:
            return np.clip(np.ceil(edges), 0, self._length + 1).astype(np.int64)
        return np.searchsorted(self._places, edges, "left").astype(np.int64)


def extremes(levels: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """The lowest and the highest level in each column, including the level at its start.

    Args:
        levels: shape (n,); a level holds until the next.
        starts: the first index of each column and the end of the last, ascending, shape (columns + 1,).

    Returns:
        Two arrays of shape (columns,).
    """
    held = levels[np.clip(starts[:-1] - 1, 0, len(levels) - 1)]
    low, high = held.copy(), held.copy()
    filled = np.flatnonzero(starts[1:] > starts[:-1])
    if len(filled):
        edges = starts[filled]
        inside = levels[: starts[filled[-1] + 1]]
        low[filled] = np.minimum(low[filled], np.minimum.reduceat(inside, edges))
        high[filled] = np.maximum(high[filled], np.maximum.reduceat(inside, edges))
    first = None
    if len(filled):
        first = filled[0]
    if first is not None and starts[first] == 0:
        low[first] = levels[: starts[first + 1]].min()
        high[first] = levels[: starts[first + 1]].max()
    return low, high


def band_runs(bands: tuple[Band, ...], starts: Ints) -> list[tuple[str, int, int]]:
    """Bands as runs of columns (name, first column, end); bands narrower than a column are dropped.

    Args:
        bands: in order, without overlaps.
        starts: as for `extremes`.
    """
    if not bands:
        return []
    firsts = np.array([band.begin_event for band in bands])
    ends = np.array([band.end_event for band in bands])
    middles = (starts[:-1] + starts[1:]) // 2 - 1
    found = np.searchsorted(firsts, middles, "right") - 1
    inside = (found >= 0) & (middles < ends[np.clip(found, 0, None)])
    names = [bands[number].name if is_in else "" for number, is_in in zip(found.tolist(), inside.tolist(), strict=True)]
    runs: list[tuple[str, int, int]] = []
    for column, name in enumerate(names):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], column + 1)
        else:
            runs.append((name, column, column + 1))
    return [run for run in runs if run[0]]
