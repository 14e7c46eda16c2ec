"""The history of one quantity: every recent sample, and exact extremes of everything older, in bounded memory.

Older samples are stored in buckets; for drawing, each cell of time is thinned to its lowest and highest sample.
"""

from __future__ import annotations

import array
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Span = tuple[float, float]
Point = tuple[float, float]
Request = Callable[[float, float], None]

STEPS_PER_OCTAVE = 4
"""Cell widths are 2^(k/4) seconds, so that a growing window keeps its cells and its curve does not flicker."""

WIDTH = 16
"""Samples of a bucket before any merge: it keeps five points of them, so the first buckets save a factor of three."""

_NAN = math.nan

REFRESH = 512
"""Number of new samples after which the thinned history is rebuilt; until then, only those are thinned for drawing."""

FIRST_ROOM = 64
"""Samples for which a new series has memory."""

ROOM = 512
"""Buckets that a preloaded series may create for newer samples before neighbours merge."""

NARROWEST = 2.0**-40
"""Narrowest cell relative to its time: below it, doubles cannot distinguish neighbouring cells."""


def cell_width(span: float, columns: int) -> float:
    """The largest cell width in the ladder that puts a cell in each of ``columns`` columns of ``span`` seconds."""
    exponent = math.floor(math.log2(span / columns) * STEPS_PER_OCTAVE)
    return float(2.0 ** (exponent / STEPS_PER_OCTAVE))


def cell_start(cell: int, width: float) -> float:
    """The smallest time that `thin` assigns to ``cell``: comparing with it is exact, whatever the rounding."""
    inverse = 1.0 / width
    start = cell * width
    # `thin` multiplies by the inverse, so this does too. Rounding may move the boundary by one double: search for it.
    while math.floor(start * inverse) < cell:
        start = math.nextafter(start, math.inf)
    while math.floor(math.nextafter(start, -math.inf) * inverse) >= cell:
        start = math.nextafter(start, -math.inf)
    return start


def thin(times: Floats, values: Floats, width: float) -> tuple[Floats, Floats]:
    """The lowest, the highest and the first missing sample of each cell of ``width`` seconds, in order of time.

    Args:
        times: ascending, shape (n,), seconds.
        values: shape (n,); NaN is a gap.
        width: cell width in seconds; cells start at multiples of it, not at the first sample.

    Returns:
        Copies of the kept times and values. Both are original samples; nothing is averaged.
    """
    if len(times) < 3:
        return times.copy(), values.copy()
    # The same arithmetic as in `cell_start`: a division would round differently.
    cells = np.floor(times * (1.0 / width))
    starts = np.empty(len(times), dtype=bool)
    starts[0] = True
    np.not_equal(cells[1:], cells[:-1], out=starts[1:])
    # The start of each cell, and the cell of each sample: spreads the results of `reduceat` back to samples.
    edges = np.flatnonzero(starts)
    number = np.cumsum(starts) - 1
    keep = np.zeros(len(times), dtype=bool)
    # fmin and fmax skip NaN; in a cell with only gaps nothing equals the extreme, and just the gap is kept.
    for extreme in (np.fmin, np.fmax):
        _keep_first(values == extreme.reduceat(values, edges)[number], number, keep)
    _keep_first(np.isnan(values), number, keep)
    return times[keep], values[keep]


def _keep_first(wanted: NDArray[np.bool_], number: NDArray[np.int64], keep: NDArray[np.bool_]) -> None:
    positions = np.flatnonzero(wanted)
    if len(positions):
        cells = number[positions]
        # Of the selected samples, the first in each cell: those whose cell differs from the previous one's.
        keep[positions[np.flatnonzero(np.diff(cells, prepend=-1))]] = True


class BucketRow(IntEnum):
    """The content of a bucket. Times are those of the named samples; NaN if there is no such sample."""

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


_PAIRS = (
    (BucketRow.FIRST_T, BucketRow.FIRST),
    (BucketRow.MIN_T, BucketRow.MIN),
    (BucketRow.MAX_T, BucketRow.MAX),
    (BucketRow.LAST_T, BucketRow.LAST),
)


class Buckets:
    """At most ``capacity`` buckets of equally many samples; when it is full, neighbours merge in pairs.

    Args:
        capacity: largest number of buckets, even and at least 2.
        chunk: number of samples in each call of `fold`; a power of two.
    """

    def __init__(self, capacity: int, chunk: int) -> None:
        self._capacity = capacity
        self._rows: Floats = np.empty((len(BucketRow), 0))
        self._chunk = chunk
        # Two chunks must fit without a merge, or the first fold would have to merge its own buckets.
        self._width = max(min(WIDTH, chunk), 2 * chunk // capacity)
        self._open = 0
        self._points: Floats = np.empty((2, 0))
        self._point_count: int | None = 0
        self.size = 0

    @classmethod
    def of(cls, rows: Floats, room: int, chunk: int, width: int) -> Self:
        """Restore summarised buckets, with room for more.

        Args:
            rows: buckets, ascending in time, shape (13, n), rows as in `BucketRow`.
            room: how many more fit before neighbours merge.
            chunk: as above.
            width: number of samples of new buckets, a power of two.
        """
        size = rows.shape[1]
        made = cls((size + room + 1) // 2 * 2, chunk)
        made._rows = rows
        made.size = size
        made._point_count = None
        made._width = width
        return made

    def until(self, t: float) -> Self:
        """These buckets up to ``t``: complete ones as rows, and all kept points; shares memory until the next
        `fold`."""
        times, _values = self.points()
        view: Self = copy.copy(self)
        # A bucket that contains `t` is not among the rows, but its points before `t` are kept.
        view.size = int(np.searchsorted(self.rows[BucketRow.END_T], t, "right"))
        view._point_count = int(np.searchsorted(times, t, "right"))
        return view

    @property
    def rows(self) -> Floats:
        """The used buckets, shape (13, n), rows as in `BucketRow`, ascending in time; a view."""
        return self._rows[:, : self.size]

    @property
    def nbytes(self) -> int:
        """Memory of the buckets and their points, in bytes."""
        return self._rows.nbytes + self._points.nbytes

    def fold(self, times: Floats, values: Floats) -> None:
        """Add a chunk of samples that follow all earlier ones."""
        if self._rows.shape[1] < self._capacity:
            self._allocate()
        # The points are computed again on demand.
        self._point_count = None
        # Once buckets are wider than a chunk, each chunk is part of one; `_open` counts the chunks in it.
        piece = summary(times, values, min(self._width, self._chunk))
        if self._open:
            # A slice, not an index, to keep the shape of buckets.
            newest = slice(self.size - 1, self.size)
            self._rows[:, newest] = merge(self._rows[:, newest], piece)
        else:
            if self.size + piece.shape[1] > self._capacity:
                self._merge_pairs()
                # The piece has the old width: merge its pairs too. Its number of buckets is even, as widths are powers
                # of two.
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
            self._points = np.stack((times, values))
            self._point_count = len(times)
        return self._points[0, : self._point_count], self._points[1, : self._point_count]

    def _allocate(self) -> None:
        """Allocate the memory late: most series never need it, since their samples are all recent."""
        rows = np.full((len(BucketRow), self._capacity), np.nan)
        rows[:, : self.size] = self.rows
        self._rows = rows

    def _merge_pairs(self) -> None:
        pairs = merged_pairs(self.rows)
        self.size = pairs.shape[1]
        self._rows[:, : self.size] = pairs
        self._width *= 2

    def _sorted_points(self) -> tuple[Floats, Floats]:
        rows = self.rows
        times = np.stack([rows[t] for t, _ in _PAIRS] + [rows[BucketRow.GAP_T]], axis=1)
        values = np.stack([rows[v] for _, v in _PAIRS] + [np.full(self.size, np.nan)], axis=1)
        # Sort within each bucket: the buckets are in order already. NaN, for missing points, goes to the end.
        order = np.argsort(times, axis=1, kind="stable")
        t = np.take_along_axis(times, order, axis=1).ravel()
        v = np.take_along_axis(values, order, axis=1).ravel()
        there = ~np.isnan(t)
        t = t[there]
        v = v[there]
        # The first sample of a bucket may also be its lowest: keep it once.
        keep = np.ones(len(t), dtype=bool)
        keep[1:] = (t[1:] != t[:-1]) | (v[1:] != v[:-1])
        return t[keep], v[keep]


def merge(left: Floats, right: Floats) -> Floats:
    """Buckets that each join a bucket of ``left`` with the next one, in ``right``; shapes (13, n)."""
    merged = np.empty(left.shape)
    merged[BucketRow.START_T] = left[BucketRow.START_T]
    merged[BucketRow.END_T] = right[BucketRow.END_T]
    in_left = left[BucketRow.COUNT] > 0
    in_right = right[BucketRow.COUNT] > 0
    # For each of `_PAIRS`, whether to use the left one. Written as "not less", so that the earlier of two equal
    # extremes is kept, and so is one next to a bucket of NaN, for which comparisons are false.
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
    # Infinities of both signs add up to NaN, which needs no warning.
    with np.errstate(invalid="ignore"):
        merged[BucketRow.SUM] = left[BucketRow.SUM] + right[BucketRow.SUM]
    merged[BucketRow.COUNT] = left[BucketRow.COUNT] + right[BucketRow.COUNT]
    return merged


def merged_pairs(rows: Floats) -> Floats:
    """Half as many buckets, each of twice the samples; the last of an odd number is unchanged."""
    even = rows.shape[1] // 2 * 2
    return np.concatenate((merge(rows[:, 0:even:2], rows[:, 1:even:2]), rows[:, even:]), axis=1)


def summary(times: Floats, values: Floats, width: int) -> Floats:
    """Buckets of ``width`` samples each, shape (13, n), the last with the remaining ones; times ascend."""
    whole = len(times) // width * width
    if whole == len(times):
        return _even_summary(times, values, width)
    left = _even_summary(times[whole:], values[whole:], len(times) - whole)
    if whole == 0:
        return left
    return np.concatenate((_even_summary(times[:whole], values[:whole], width), left), axis=1)


def _even_summary(times: Floats, values: Floats, width: int) -> Floats:
    """Buckets of ``width`` samples each; ``len(times)`` is a multiple of it."""
    t = times.reshape(-1, width)
    v = values.reshape(-1, width)
    missing = np.isnan(v)
    count = width - missing.sum(axis=1)
    which = np.arange(len(t))
    rows = np.empty((len(BucketRow), len(t)))
    rows[BucketRow.START_T] = t[:, 0]
    rows[BucketRow.END_T] = t[:, -1]
    # In the order of `_PAIRS`: argmax finds the first true value, so search backwards for the last one.
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


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of the samples in a range. `delta` is `end` − `start`; `mean` weighs all samples equally."""

    count: int
    start: float
    end: float
    delta: float
    min: float
    mean: float
    max: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class _Thinned:
    """The history from `since` to `until`, thinned to cells of `width` s when the series had `total` samples."""

    width: float
    since: float
    until: float
    total: int
    times: Floats
    values: Floats


class Series:
    """Samples (time, value) in order of time; a missing value is NaN.

    The newest ``recent`` samples (at least seven eighths of them) are kept unchanged. Older ones are folded into at
    most ``buckets`` buckets of equally many samples, which merge in pairs when they are full; each keeps its first,
    lowest, highest, last and first missing sample, with their own times. Memory grows with the samples, since a
    recording may have any number of series.

    Past samples may be available in more detail elsewhere. If `request` is set, a drawing or a selection calls it with
    the range that it needs in more detail; `sharpen` then provides the samples. Until then extremes are exact, with
    their own times.

    Not thread-safe: threads that share a series hold a lock around every call (`Store.lock`). Results are copies.

    Attributes:
        request: callback that requests more detail for a range and returns immediately; ``None`` if there is none.
        thinned: whether even the newest samples represent several.
    """

    request: Request | None = None
    thinned = False
    _details: Sequence[tuple[Span, Series]] = ()
    _end: Point | None = None
    _view: tuple[tuple[object, ...], Self] | None = None

    def __init__(self, recent: int = 8192, buckets: int = 2048) -> None:
        if recent < 8 or buckets < 2 or buckets % 2:
            raise ValueError("a series keeps at least 8 recent samples and an even number of buckets")
        self._recent = recent
        # An eighth, rounded down to a power of two.
        self._chunk = 1 << (recent // 8).bit_length() - 1
        self._size = 0
        self._room = 0
        # An `array.array`, since `append` sets single items, for which numpy is several times slower; numpy shares its
        # memory.
        self._t = self._v = array.array("d")
        self._grow()
        self._folded = 0
        self._newest = -math.inf
        self._buckets = Buckets(buckets, self._chunk)
        self._cache: _Thinned | None = None

    @classmethod
    def preloaded(cls, rows: Floats, count: int, width: int) -> Self:
        """A series whose older part is already summarised; newer samples are appended to it.

        Args:
            rows: one or more buckets in order of time; shape (13, n), rows as in `BucketRow`.
            count: number of samples in them.
            width: number of samples of new buckets, a power of two.
        """
        series = cls()
        series._buckets = Buckets.of(rows, ROOM, series._chunk, width)
        series._folded = count
        series._newest = float(rows[BucketRow.END_T, -1])
        return series

    def sharpen(self, details: Sequence[tuple[Span, Series]]) -> None:
        """From now on, answer within each span from its more detailed series."""
        self._details = details

    def until(self, t: float, newest: Point | None = None) -> Self:
        """The series as it was at ``t``: a view that shares memory and is valid until the next `append`.

        Args:
            t: session time in seconds.
            newest: time and value (NaN for a gap) of the newest sample then, in case the buckets do not contain it.
        """
        # What a view depends on; compares details by identity, which changes with `sharpen`.
        state = (len(self), *(detail for _, detail in self._details))
        kept = None
        if self._view is not None and self._view[0][2:] == state:
            kept = self._view
        if kept is not None and kept[0][:2] == (t, newest):
            return kept[1]
        # The thinned history of a view is also valid for the next one.
        before: Series = self if kept is None else kept[1]
        view: Self = copy.copy(self)
        view._view = None
        view._size = int(np.searchsorted(self._times[: self._size], t, "right"))
        if not view._size and self._folded:
            view._buckets = self._buckets.until(t)
            view._folded = len(view._buckets.points()[0])
        cache = before._cache
        view._cache = None
        if cache is not None and cache.until <= t and cache.total <= len(view):
            view._cache = cache
        view._details = [(span, detail.until(t)) for span, detail in self._details]
        last = view.last()
        view._newest = -math.inf
        if last is not None:
            view._newest = last[0]
        if newest is not None and newest[0] > view._newest:
            view._end = newest
            view._newest = newest[0]
        self._view = (t, newest, *state), view
        return view

    def __len__(self) -> int:
        """Number of samples ever appended."""
        return self._folded + self._size

    @property
    def nbytes(self) -> int:
        """Memory of the samples and their summaries, in bytes."""
        thinned = 0
        if self._cache is not None:
            thinned = self._cache.times.nbytes + self._cache.values.nbytes
        return self._times.nbytes + self._values.nbytes + self._buckets.nbytes + thinned

    def append(self, t: float, v: float | None) -> None:
        """Add a sample; ``None`` is a gap. A late one gets the newest time, to keep the order."""
        if self._size == self._room:
            self._make_room()
        if t < self._newest:
            t = self._newest
        else:
            self._newest = t
        size = self._size
        self._t[size] = t
        if v is None:
            self._v[size] = _NAN
        else:
            self._v[size] = v
        self._size = size + 1

    def extend(self, times: Floats, values: Floats) -> None:
        """Add samples as `append` does, in one go; NaN is a gap."""
        # none is earlier than the one before it, nor than what is there
        times = np.maximum.accumulate(np.maximum(times, self._newest))
        added = 0
        while added < len(times):
            if self._size == self._room:
                self._make_room()
            part = slice(added, added + self._room - self._size)
            size = self._size + len(times[part])
            self._times[self._size : size] = times[part]
            self._values[self._size : size] = values[part]
            added = part.stop
            self._size = size
            self._newest = float(times[part][-1])

    def last(self) -> tuple[float, float] | None:
        """Time and value (NaN for a gap) of the newest sample; ``None`` if there is none."""
        if self._end is not None:
            return self._end
        if self._size:
            return self._t[self._size - 1], self._v[self._size - 1]
        times, values = self._buckets.points()
        if len(times):
            return (float(times[-1]), float(values[-1]))
        return None

    def newest(self, count: int) -> tuple[Floats, Floats]:
        """Times and values of the newest ``count`` samples, as far as they are kept unchanged; copies."""
        part = slice(max(0, self._size - count), self._size)
        return self._times[part].copy(), self._values[part].copy()

    def extent(self) -> tuple[float, float] | None:
        """Times of the oldest and the newest sample; ``None`` if there is none."""
        if not len(self):
            return None
        rows = self._buckets.rows
        if rows.shape[1]:
            return float(rows[BucketRow.START_T, 0]), self._newest
        if self._folded:
            first = self._buckets.points()[0][0]
        else:
            first = self._t[0]
        return float(first), self._newest

    def window(self, t0: float, t1: float, columns: int) -> tuple[Floats, Floats]:
        """Times and values to draw between ``t0`` and ``t1`` on ``columns`` pixel columns.

        If there are few samples, all of them; else the lowest and the highest of each column (a column may have up to
        1.2 cells), and NaN where one is missing, so that the line breaks. Includes one sample on either side of the
        range, so that the line reaches the edge.

        Raises:
            ValueError: if the range is empty or there is no column.
        """
        if not t0 < t1 or columns < 1:
            raise ValueError(f"nothing can be drawn from {t0} to {t1} on {columns} columns")
        detail = self._more_exact(t0, t1)
        if detail is not None:
            return detail.window(t0, t1, columns)
        times, values = self._kept(t0, t1, columns)
        if self._end is None or not t0 <= self._end[0] <= t1:
            return times, values
        return np.append(times, self._end[0]), np.append(values, self._end[1])

    def _kept(self, t0: float, t1: float, columns: int) -> tuple[Floats, Floats]:
        """The result of `window` from the samples in this series."""
        old, _ = self._buckets.points()
        recent = self._times[: self._size]
        old_range = np.searchsorted(old, t0, "left"), np.searchsorted(old, t1, "right")
        recent_range = np.searchsorted(recent, t0, "left"), np.searchsorted(recent, t1, "right")
        # Samples are numbered from the buckets' first: recent ones follow the old ones.
        low = int(old_range[0] + recent_range[0])
        high = int(old_range[1] + recent_range[1])
        total = len(old) + self._size
        if high - low <= 2 * columns:
            return self._known(max(low - 1, 0), min(high + 1, total))
        before = self._known(max(low - 1, 0), low)
        after = self._known(high, min(high + 1, total))
        inside = self._thinned_between(t0, t1, columns, low, high)
        return (
            np.concatenate((before[0], *(times for times, _ in inside), after[0])),
            np.concatenate((before[1], *(values for _, values in inside), after[1])),
        )

    def statistics(self, t0: float, t1: float, *, exactly: bool = True) -> Statistics | None:
        """Figures of the samples from ``t0`` to ``t1`` without gaps; ``None`` if there are none.

        Exact if all samples are still kept, or available in more detail. Older buckets are exact too, but only count
        as a whole: a bucket at the range's edge counts if its centre is inside.

        Args:
            t0, t1: the range.
            exactly: whether to use and request more detail; extremes are samples in any case.
        """
        detail = None
        if exactly:
            detail = self._more_exact(t0, t1)
        if detail is not None:
            return detail.statistics(t0, t1)
        rows = self._buckets.rows
        # Each bucket counts once, in the range of its centre, so that adjacent ranges add up to the whole.
        centre = (rows[BucketRow.START_T] + rows[BucketRow.END_T]) / 2
        rows = rows[:, (centre >= t0) & (centre <= t1) & (rows[BucketRow.COUNT] > 0)]
        recent = self._times[: self._size]
        part = slice(np.searchsorted(recent, t0, "left"), np.searchsorted(recent, t1, "right"))
        values = self._values[part]
        there = ~np.isnan(values)
        values = values[there]
        times = self._times[part][there]
        count = int(rows[BucketRow.COUNT].sum()) + len(values)
        if count == 0:
            return None
        # The oldest and the newest number, wherever they are kept; the slices may be empty.
        ends = (
            np.concatenate((rows[BucketRow.FIRST, :1], values[:1])),
            np.concatenate((rows[BucketRow.LAST, -1:], values[-1:])),
        )
        spans = (
            np.concatenate((rows[BucketRow.FIRST_T, :1], times[:1])),
            np.concatenate((rows[BucketRow.LAST_T, -1:], times[-1:])),
        )
        start = float(ends[0][0])
        end = float(ends[1][-1])
        with np.errstate(invalid="ignore"):
            mean = float((rows[BucketRow.SUM].sum() + values.sum()) / count)
        return Statistics(
            count=count,
            start=start,
            end=end,
            delta=end - start,
            min=float(np.concatenate((rows[BucketRow.MIN], values)).min()),
            mean=mean,
            max=float(np.concatenate((rows[BucketRow.MAX], values)).max()),
            duration_s=float(spans[1][-1] - spans[0][0]),
        )

    def has_value(self, t0: float, t1: float) -> bool:
        """Whether any sample from ``t0`` to ``t1`` is a number."""
        extent = self.extent()
        if extent is None or extent[0] > t1 or extent[1] < t0:
            return False
        # The newest answers for most: every frame asks of every curve.
        newest = self._size - 1
        if newest >= 0 and t0 <= self._times[newest] <= t1 and math.isfinite(self._values[newest]):
            return True
        since = max(t0, extent[0])
        until = min(t1, extent[1])
        # The kept samples are enough: `window` would request more from a file.
        times, values = self._kept(since, max(until, math.nextafter(since, math.inf)), 1)
        return bool(np.any(np.isfinite(values) & (times >= since) & (times <= until)))

    def at(self, t: float, max_gap: float = math.inf) -> float | None:
        """Value of the newest known sample at or before ``t``; ``None`` for a gap or if older than ``max_gap`` s."""
        detail = self._detail(t, t)
        if detail is not None:
            return detail.at(t, max_gap)
        # The newest sample of a view, which the buckets do not contain.
        if self._end is not None and t >= self._end[0]:
            if math.isnan(self._end[1]) or t - self._end[0] > max_gap:
                return None
            return self._end[1]
        index = self._count_until(t) - 1
        if index < 0:
            return None
        times, values = self._known(index, index + 1)
        value = float(values[0])
        if math.isnan(value) or t - float(times[0]) > max_gap:
            return None
        return value

    def neighbour(self, t: float, steps: int) -> float | None:
        """Time of the known sample ``steps`` after ``t`` (before it if negative), or the outermost one."""
        detail = self._detail(t, t)
        found = None
        if detail is not None:
            found = detail.neighbour(t, steps)
        if found is not None and self._detail(found, found) is not None:
            return found
        total = len(self._buckets.points()[0]) + self._size
        if total == 0:
            return None
        if steps >= 0:
            index = self._count_until(t) - 1 + steps
        else:
            index = self._count_before(t) + steps
        index = min(max(index, 0), total - 1)
        return float(self._known(index, index + 1)[0][0])

    def _more_exact(self, t0: float, t1: float) -> Series | None:
        """A more detailed series from ``t0`` to ``t1``, if there is one; requests it if not."""
        extent = self.extent()
        if self.request is None or extent is None or t1 <= extent[0] or t0 >= extent[1]:
            return None
        # All samples of the range are still kept unchanged: nothing is more exact.
        if not self.thinned and (not self._folded or (self._size and t0 >= self._t[0])):
            return None
        detail = self._detail(max(t0, extent[0]), min(t1, extent[1]))
        # Also request it next to a detail that is thinned itself: a narrower one may follow.
        if (detail is None or self.thinned) and math.isfinite(t0) and math.isfinite(t1):
            self.request(t0, t1)
        return detail

    def _detail(self, t0: float, t1: float) -> Series | None:
        return next((each for span, each in self._details if span[0] <= t0 and t1 <= span[1] and len(each)), None)

    def _make_room(self) -> None:
        if self._room < self._recent:
            self._grow()
        else:
            self._fold()

    def _grow(self) -> None:
        """Double the memory for recent samples; views keep theirs."""
        room = min(max(FIRST_ROOM, 2 * self._room), self._recent)
        more = array.array("d", [_NAN]) * (room - self._room)
        # A new array, not a longer one: a view may still use the old one's memory.
        self._t = self._t + more
        self._v = self._v + more
        self._room = room
        self._times: Floats = np.frombuffer(self._t, dtype=np.float64)
        self._values: Floats = np.frombuffer(self._v, dtype=np.float64)

    def _fold(self) -> None:
        """Move the oldest samples to the buckets and close the gap."""
        chunk = self._chunk
        kept = self._recent - self._chunk
        self._buckets.fold(self._times[:chunk], self._values[:chunk])
        # Source and target overlap.
        self._times[:kept] = self._times[chunk:].copy()
        self._values[:kept] = self._values[chunk:].copy()
        self._size = kept
        self._folded += chunk

    def _count_until(self, t: float) -> int:
        recent = np.searchsorted(self._times[: self._size], t, "right")
        return int(np.searchsorted(self._buckets.points()[0], t, "right") + recent)

    def _count_before(self, t: float) -> int:
        recent = np.searchsorted(self._times[: self._size], t, "left")
        return int(np.searchsorted(self._buckets.points()[0], t, "left") + recent)

    def _known(self, low: int, high: int) -> tuple[Floats, Floats]:
        """Copies of the known samples ``low`` to ``high``, numbered from the oldest bucket's first."""
        old_times, old_values = self._buckets.points()
        old = len(old_times)
        recent = slice(max(low - old, 0), max(high - old, 0))
        if low >= old:
            return self._times[recent].copy(), self._values[recent].copy()
        return (
            np.concatenate((old_times[low:high], self._times[recent])),
            np.concatenate((old_values[low:high], self._values[recent])),
        )

    def _thinned_between(self, t0: float, t1: float, columns: int, low: int, high: int) -> list[tuple[Floats, Floats]]:
        """The known samples ``low`` to ``high``, between ``t0`` and ``t1``, thinned.

        Complete cells come from the thinned history; the cell that contains ``t0`` and newer ones are thinned here.
        """
        # Far from zero, a cell must be wider than the distance between two doubles.
        width = max(cell_width(t1 - t0, columns), NARROWEST * max(abs(t0), abs(t1)))
        inside = cell_start(math.floor(t0 / width) + 1, width)
        end = cell_start(math.floor(t1 / width), width)
        cache = self._history(width, inside, t1 - t0)
        # The newest cell may still get samples, and is never cached.
        end = min(end, cache.until)
        if inside >= end:
            return [thin(*self._known(low, high), width)]
        ready = slice(np.searchsorted(cache.times, inside, "left"), np.searchsorted(cache.times, end, "left"))
        # Three adjacent parts, each thinned by the same cells: no cell is in two of them.
        return [
            thin(*self._known(low, self._count_before(inside)), width),
            (cache.times[ready], cache.values[ready]),
            thin(*self._known(self._count_before(end), high), width),
        ]

    def _history(self, width: float, since: float, span: float) -> _Thinned:
        """The thinned history from ``since`` on, including a ``span`` before it, in case the user looks back."""
        cache = self._cache
        # All windows of this width share the same cells, so that a scrolling plot only thins new samples.
        stale = cache is None or cache.width != width or cache.since > since or len(self) - cache.total > REFRESH
        if cache is None or stale:
            since = cell_start(math.floor((since - span) / width), width)
            until = cell_start(math.floor(self._newest / width), width)
            known = self._known(self._count_before(since), self._count_before(until))
            cache = self._cache = _Thinned(width, since, until, len(self), *thin(*known, width))
        return cache
