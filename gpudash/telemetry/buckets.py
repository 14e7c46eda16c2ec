"""The older part of a series: a bounded number of buckets that keep extremes, sums and gaps exactly."""

from __future__ import annotations

import copy
from enum import IntEnum
from typing import Self

import numpy as np

from gpudash.telemetry.thinning import Floats

WIDTH = 16
"""Samples of one bucket before any merge: five points are kept of them, so the first buckets save a factor of three."""


class BucketRow(IntEnum):
    """What is kept of a bucket. Times are those of the samples named; NaN where there is no such sample."""

    START_T = 0
    END_T = 1
    FIRST_T = 2
    FIRST = 3
    LAST_T = 4
    LAST = 5
    MIN_T = 6
    MIN = 7
    MAX_T = 8
    MAX = 9
    GAP_T = 10
    SUM = 11
    COUNT = 12


POINTS = 5
"""Points that are drawn of a bucket, at most: the four below and the first gap."""

_PAIRS = (
    (BucketRow.FIRST_T, BucketRow.FIRST),
    (BucketRow.MIN_T, BucketRow.MIN),
    (BucketRow.MAX_T, BucketRow.MAX),
    (BucketRow.LAST_T, BucketRow.LAST),
)


class Buckets:
    """At most ``capacity`` buckets of equally many samples; when they are full, neighbours merge in pairs.

    Args:
        capacity: an even number, at least 2.
        chunk: samples given at a time to `fold`; a power of two.
    """

    def __init__(self, capacity: int, chunk: int) -> None:
        self._rows = np.full((len(BucketRow), capacity), np.nan)
        self._chunk = chunk
        self._width = max(min(WIDTH, chunk), 2 * chunk // capacity)
        self._open = 0
        self._points = np.full((2, capacity * POINTS), np.nan)
        self._point_count: int | None = 0
        self.size = 0

    @classmethod
    def of(cls, rows: Floats, room: int, chunk: int, width: int) -> Self:
        """Buckets that were summarised before, with room for more.

        Args:
            rows: ascending in time, shape (13, n), rows as in `BucketRow`.
            room: how many more there may be before neighbours merge.
            chunk: as above.
            width: samples of a bucket to come, a power of two.
        """
        size = rows.shape[1]
        made = cls((size + room + 1) // 2 * 2, chunk)
        made._rows[:, :size] = rows
        made.size, made._point_count, made._width = size, None, width
        return made

    def until(self, t: float) -> Self:
        """These buckets as far as ``t``: whole ones as rows, every kept point; shares memory until the next `fold`."""
        times, _values = self.points()
        view: Self = copy.copy(self)
        view.size = int(np.searchsorted(self.rows[BucketRow.END_T], t, "right"))
        view._point_count = int(np.searchsorted(times, t, "right"))
        return view

    @property
    def rows(self) -> Floats:
        """The buckets in use, shape (13, n), rows as in `BucketRow`, ascending in time; a view."""
        return self._rows[:, : self.size]

    def fold(self, times: Floats, values: Floats) -> None:
        """Take in one chunk of samples that follow all earlier ones."""
        self._point_count = None
        piece = summary(times, values, min(self._width, self._chunk))
        if self._open:
            newest = slice(self.size - 1, self.size)
            self._rows[:, newest] = merge(self._rows[:, newest], piece)
        else:
            if self.size + piece.shape[1] > self._rows.shape[1]:
                self._merge_pairs()
                if piece.shape[1] > 1:
                    piece = merge(piece[:, 0::2], piece[:, 1::2])
            self._rows[:, self.size : self.size + piece.shape[1]] = piece
            self.size += piece.shape[1]
        if self._width > self._chunk:
            self._open = (self._open + self._chunk) % self._width

    def points(self) -> tuple[Floats, Floats]:
        """First, lowest, highest, last and first missing sample of every bucket in order of time; views."""
        if self._point_count is None:
            times, values = self._sorted_points()
            self._point_count = len(times)
            self._points[0, : len(times)] = times
            self._points[1, : len(times)] = values
        return self._points[0, : self._point_count], self._points[1, : self._point_count]

    def _merge_pairs(self) -> None:
        pairs = merged_pairs(self.rows)
        self.size = pairs.shape[1]
        self._rows[:, : self.size] = pairs
        self._width *= 2

    def _sorted_points(self) -> tuple[Floats, Floats]:
        rows = self.rows
        times = np.stack([rows[t] for t, _ in _PAIRS] + [rows[BucketRow.GAP_T]], axis=1)
        values = np.stack([rows[v] for _, v in _PAIRS] + [np.full(self.size, np.nan)], axis=1)
        order = np.argsort(times, axis=1, kind="stable")
        t = np.take_along_axis(times, order, axis=1).ravel()
        v = np.take_along_axis(values, order, axis=1).ravel()
        there = ~np.isnan(t)
        t, v = t[there], v[there]
        keep = np.ones(len(t), dtype=bool)
        keep[1:] = (t[1:] != t[:-1]) | (v[1:] != v[:-1])
        return t[keep], v[keep]


def merge(left: Floats, right: Floats) -> Floats:
    """Buckets that each span a bucket of ``left`` and the one of ``right`` behind it; shapes (13, n)."""
    merged = np.empty(left.shape)
    merged[BucketRow.START_T] = left[BucketRow.START_T]
    merged[BucketRow.END_T] = right[BucketRow.END_T]
    in_left, in_right = left[BucketRow.COUNT] > 0, right[BucketRow.COUNT] > 0
    choices = (
        in_left,
        in_left & ~(right[BucketRow.MIN] < left[BucketRow.MIN]),
        in_left & ~(right[BucketRow.MAX] > left[BucketRow.MAX]),
        ~in_right,
    )
    for (time, value), from_left in zip(_PAIRS, choices, strict=True):
        merged[time] = np.where(from_left, left[time], right[time])
        merged[value] = np.where(from_left, left[value], right[value])
    merged[BucketRow.GAP_T] = np.fmin(left[BucketRow.GAP_T], right[BucketRow.GAP_T])
    with np.errstate(invalid="ignore"):
        merged[BucketRow.SUM] = left[BucketRow.SUM] + right[BucketRow.SUM]
    merged[BucketRow.COUNT] = left[BucketRow.COUNT] + right[BucketRow.COUNT]
    return merged


def merged_pairs(rows: Floats) -> Floats:
    """Half as many buckets of twice the samples; the last of an odd number stays as it is."""
    even = rows.shape[1] // 2 * 2
    return np.concatenate((merge(rows[:, 0:even:2], rows[:, 1:even:2]), rows[:, even:]), axis=1)


def summary(times: Floats, values: Floats, width: int) -> Floats:
    """Buckets of ``width`` samples each, shape (13, n), the last of what is left; times ascend."""
    whole = len(times) // width * width
    if whole == len(times):
        return _even_summary(times, values, width)
    left = _even_summary(times[whole:], values[whole:], len(times) - whole)
    return left if whole == 0 else np.concatenate((_even_summary(times[:whole], values[:whole], width), left), axis=1)


def _even_summary(times: Floats, values: Floats, width: int) -> Floats:
    """Buckets of ``width`` samples each; ``len(times)`` is a multiple of it."""
    t, v = times.reshape(-1, width), values.reshape(-1, width)
    missing = np.isnan(v)
    count = width - missing.sum(axis=1)
    which = np.arange(len(t))
    rows = np.empty((len(BucketRow), len(t)))
    rows[BucketRow.START_T], rows[BucketRow.END_T] = t[:, 0], t[:, -1]
    positions = (
        (~missing).argmax(axis=1),
        (v == np.fmin.reduce(v, axis=1)[:, None]).argmax(axis=1),
        (v == np.fmax.reduce(v, axis=1)[:, None]).argmax(axis=1),
        width - 1 - (~missing)[:, ::-1].argmax(axis=1),
    )
    for (time, value), position in zip(_PAIRS, positions, strict=True):
        rows[time] = np.where(count > 0, t[which, position], np.nan)
        rows[value] = np.where(count > 0, v[which, position], np.nan)
    rows[BucketRow.GAP_T] = np.where(count < width, t[which, missing.argmax(axis=1)], np.nan)
    with np.errstate(invalid="ignore"):
        rows[BucketRow.SUM] = np.where(missing, 0.0, v).sum(axis=1)
    rows[BucketRow.COUNT] = count
    return rows
