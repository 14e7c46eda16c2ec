"""Allocations as ribbons over time: each as thick as its bytes, on those that came before it and are still there.

What is drawn has a column of values for each column of pixels, whatever the number of allocations. Where too many would
lie in a picture to be told apart, they flow together: into one ribbon for each line of the program that allocated them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_APART = 6000
"""Allocations in a picture from which on each line of the program is one ribbon."""

MOST_SINGLE = 110
"""Ribbons of one allocation each; the smaller ones of a picture flow together even where few are in it."""

MOST_SITES = 18
"""Ribbons of one line each; the lines that held less are one ribbon together."""

BLOCK = 64
"""Events whose fullest is known beforehand."""

PAINTED_AT_ONCE = 128
"""Columns of pixels that are written together: so few that they stay in the processor's cache."""

FEW_LINES = 256
"""Of the program up to which what each of them holds is added up before the largest are known."""

FEW_EVENTS = 300_000
"""In a picture up to which each of them is looked at: they lie side by side, so that nothing has to be picked out."""

OTHERS = -1
"""The line that stands for all smaller ones."""


class Allocations:
    """What was allocated, n times, among m events of an allocator, one of which begins or ends one.

    Args:
        born: event that allocated each, ascending; -1 for what was there before the first.
        freed: event that freed each; m or more for what is still there.
        size: bytes of each.
        site: number of the line that allocated each, from 0 on.
        place: where each event lies across, ascending, shape (m,): seconds, or a number of events.
        level: bytes before the first event and after each, shape (m + 1,), where somebody has added them up.
    """

    def __init__(
        self, born: Ints, freed: Ints, size: Ints, site: Ints, place: Floats, level: Ints | None = None
    ) -> None:
        self.born = born
        self.freed = freed
        self.size = size
        self.site = site
        self.place = place
        self._level = level

    def __len__(self) -> int:
        return len(self.born)

    @cached_property
    def level(self) -> Ints:
        """Bytes before the first event and after each, shape (m + 1,)."""
        if self._level is not None:
            return self._level
        events = len(self.place)
        change = np.bincount(self.born + 1, self.size, events + 1)[: events + 1]
        ended = self.freed < events
        change -= np.bincount(self.freed[ended] + 1, self.size[ended], events + 1)[: events + 1]
        level: Ints = np.cumsum(change).astype(np.int64)
        return level

    @cached_property
    def size_in_sums(self) -> Floats:
        """Bytes of each, as they are added up: each sum would make them so again."""
        return self.size.astype(np.float64)

    @cached_property
    def fullest_of_block(self) -> Ints:
        """The first event of each whole `BLOCK` of them after which most of it was allocated."""
        blocks = len(self.place) // BLOCK
        levels = self.level[1 : blocks * BLOCK + 1].reshape(blocks, BLOCK)
        fullest: Ints = np.arange(blocks) * BLOCK + levels.argmax(axis=1)
        return fullest

    @cached_property
    def first_of_site(self) -> Ints:
        """The first allocation of each line, by which lines have the same order in every picture."""
        sites = int(self.site.max(initial=-1)) + 1
        first = np.full(sites, len(self), np.int64)
        # assigned from the last to the first, so that the first one stays
        first[self.site[::-1]] = np.arange(len(self) - 1, -1, -1)
        return first

    def at_places(self, place: Floats) -> Allocations:
        """The same ones, with their events elsewhere across."""
        return Allocations(self.born, self.freed, self.size, self.site, place, self.level)

    def moment(self, place: float) -> int:
        """The last event that is not behind a place; -1 before the first."""
        return int(np.searchsorted(self.place, place, "right")) - 1

    def stayed(self, earlier: int, later: int) -> Ints:
        """Numbers of the allocations that came after one event, and are there after another one."""
        begin, end = np.searchsorted(self.born, (earlier, later), "right")
        numbers: Ints = np.flatnonzero(self.freed[begin:end] > later) + int(begin)
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class Ribbons:
    """A picture of allocations, k ribbons in c columns.

    Attributes:
        low, high: what lies at its left and its right edge.
        moments: the event after which each column of pixels is drawn, the fullest moment of it, shape (c,).
        column_of: for each column of pixels the column of `tops`, shape (c,): those that look alike share one.
        tops: bytes up to the upper edge of each ribbon, the lowest first, shape (k, d).
        allocation: of each ribbon the number of the allocation it is, -1 where it is all of a line, shape (k,).
        site: of each ribbon the line, `OTHERS` for the smaller ones together, shape (k,).
    """

    low: float
    high: float
    moments: Ints
    column_of: Ints
    tops: Floats
    allocation: Ints
    site: Ints

    def at(self, column: int, size: float) -> int | None:
        """The ribbon in a column at so many bytes from the lowest edge; ``None`` above all of them."""
        if not 0 <= column < len(self.moments) or size < 0:
            return None
        found = int(np.searchsorted(self.tops[:, self.column_of[column]], size, "right"))
        if found < len(self.site):
            return found
        return None

    def bytes_at(self, ribbon: int, column: int) -> int:
        """How thick a ribbon is in a column."""
        edges = self.tops[:, self.column_of[column]]
        below = 0.0
        if ribbon:
            below = float(edges[ribbon - 1])
        return round(float(edges[ribbon]) - below)


def ribbons(
    found: Allocations, low: float, high: float, columns: int, *, apart: int = MOST_APART, single: int = MOST_SINGLE
) -> Ribbons:
    """The picture between two places.

    Args:
        found: of which events.
        low, high: what lies at its left and its right edge.
        columns: of pixels.
        apart: the most allocations in it of which the larger ones are ribbons of their own.
        single: the most such ribbons.
    """
    moments = _fullest(found, low, high, columns)
    # what nothing happens between is drawn once and repeated, which in a narrow picture is most of it
    shown, column_of = _different(moments)
    kept, first, end = _spans(found, shown)
    size = found.size_in_sums[kept]
    site = found.site[kept]
    if len(kept) > apart and len(found.first_of_site) <= FEW_LINES:
        by_line = _thickness(site, first, end, size, len(found.first_of_site), len(shown))
        return _of_lines(found, by_line, low, high, moments, column_of)
    weight = size * (end - first)
    alone = np.zeros(0, np.int64)
    if len(kept) <= apart:
        alone = np.sort(_largest(weight, single))
    # of the lines of what flows together the largest have a ribbon each
    lines = np.bincount(site, weight, len(found.first_of_site))
    lines -= np.bincount(site[alone], weight[alone], len(lines))
    large = _largest(lines, MOST_SITES)
    large = np.sort(large[lines[large] > 0])
    rest = int(np.count_nonzero(lines) > len(large))
    ribbon_of_line = np.full(len(lines), len(large))
    ribbon_of_line[large] = np.arange(len(large))
    others = np.full(rest, OTHERS)
    allocation = np.concatenate((np.full(len(large) + rest, -1), kept[alone]))
    sites = np.concatenate((large, others, site[alone]))
    # an early ribbon lies below a later one, and a line where its first allocation would; all others are the topmost
    age = np.concatenate((found.first_of_site[large], np.full(rest, len(found)), kept[alone]))
    order = np.argsort(age, kind="stable")
    row = np.argsort(order)
    of = np.zeros(0, np.int64)  # of a range in which nothing is held, such as one between two runs
    if len(row):
        of = row[np.minimum(ribbon_of_line, len(row) - 1)][site]
    of[alone] = row[len(large) + rest :]
    tops = _tops(of, first, end, size, len(order), len(shown))
    return Ribbons(low, high, moments, column_of, tops, allocation[order], sites[order])


def _of_lines(found: Allocations, by_line: Floats, low: float, high: float, moments: Ints, column_of: Ints) -> Ribbons:
    """The picture in which each line is one ribbon, from the bytes of each line in each column.

    With many allocations in it this takes half the time of sorting out first which ribbon each of them belongs to.
    """
    lines = by_line.sum(axis=1)
    large = _largest(lines, MOST_SITES)
    large = large[lines[large] > 0]
    # where its first allocation would be, a line lies; the others are the topmost
    large = large[np.argsort(found.first_of_site[large], kind="stable")]
    rest = lines > 0
    rest[large] = False
    sites = large
    tops = by_line[large]
    if rest.any():
        sites = np.append(large, OTHERS)
        tops = np.vstack((tops, by_line[rest].sum(axis=0)))
    _stack_up(tops)
    return Ribbons(low, high, moments, column_of, tops, np.full(len(sites), -1), sites)


def by_group(found: Allocations, low: float, high: float, columns: int, group_of_line: Ints) -> Floats:
    """Bytes of each group of lines at the fullest moment of each column between two places, shape (groups, columns).

    Args:
        group_of_line: number of the group of each line, from 0 on.
    """
    shown, column_of = _different(_fullest(found, low, high, columns))
    kept, first, end = _spans(found, shown)
    groups = int(group_of_line.max(initial=-1)) + 1
    tops = _tops(group_of_line[found.site[kept]], first, end, found.size_in_sums[kept], groups, len(shown))
    thick: Floats = np.diff(tops, axis=0, prepend=0.0)[:, column_of]
    return thick


def _fullest(found: Allocations, low: float, high: float, columns: int) -> Ints:
    """The event of each column after which most was allocated: the one before it where nothing happens in it."""
    starts = np.searchsorted(found.place, np.linspace(low, high, columns + 1), "left")
    moments = starts[:-1] - 1
    filled = np.flatnonzero(np.diff(starts))
    if not len(filled):
        return moments.astype(np.int64)
    begin, end = int(starts[0]), int(starts[-1])
    if end - begin <= FEW_EVENTS:
        events = None
        inside = found.level[begin + 1 : end + 1]
        edges = starts[filled] - begin
    else:
        events = _candidates(found, starts)
        inside = found.level[events + 1]
        edges = np.searchsorted(events, starts[filled])
    most = np.maximum.reduceat(inside, edges)
    counts = np.diff(np.append(edges, len(inside)))
    at = np.flatnonzero(inside == np.repeat(most, counts))
    first = at[np.searchsorted(at, edges)]
    # what a column begins with is in it as well
    higher = most > found.level[starts[filled]]
    if events is None:
        moments[filled[higher]] = first[higher] + begin
    else:
        moments[filled[higher]] = events[first[higher]]
    return moments.astype(np.int64)


def _different(moments: Ints) -> tuple[Ints, Ints]:
    """The different ones of ascending moments, and for each moment the place of its own among them."""
    new = np.diff(moments, prepend=moments[0] - 1) > 0
    return moments[new], np.cumsum(new) - 1


def _candidates(found: Allocations, starts: Ints) -> Ints:
    """Events among which is the first of the most allocated between each two of ``starts``, ascending.

    Of a block of events that lies within one column its own fullest stands for all; of one that a column begins in
    each of its events is looked at.
    """
    begin, end = int(starts[0]), int(starts[-1])
    divided = np.unique(starts // BLOCK)
    whole = np.setdiff1d(np.arange(divided[0], divided[-1]), divided, assume_unique=True)
    each = (divided[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    each = each[(each >= begin) & (each < end)]
    return np.sort(np.concatenate((found.fullest_of_block[whole], each)), kind="stable")


def _spans(found: Allocations, moments: Ints) -> tuple[Ints, NDArray[np.int32], NDArray[np.int32]]:
    """Numbers of the allocations that are in a picture, the first column of each and the one behind its last."""
    columns = len(moments)
    began = np.searchsorted(found.born, moments, "right")
    before, known = int(began[0]), int(began[-1])
    # of what came before the first column most is gone: it is sorted out first
    old = np.flatnonzero(found.freed[:before] > moments[0])
    # in a wide picture most come and go between two moments: one comparison sorts them out
    new = np.flatnonzero(found.freed[before:known] > np.repeat(moments[1:], np.diff(began)))
    kept = np.concatenate((old, before + new))
    in_column = np.diff(np.searchsorted(new, began - before))
    first = np.concatenate((np.zeros(len(old), np.int32), np.repeat(np.arange(1, columns, dtype=np.int32), in_column)))
    # columns come from a table, since looking so many events up among the moments would cost ten times as much
    lengths = np.concatenate(([1], np.diff(moments), [1]))
    end_of = np.repeat(np.arange(columns + 1, dtype=np.int32), lengths)
    return kept, first, end_of[np.minimum(found.freed[kept] - moments[0], len(end_of) - 1)]


def _largest(sizes: Floats | Ints, count: int) -> Ints:
    """Places of the largest, ``count`` at most."""
    if len(sizes) <= count:
        return np.arange(len(sizes))
    return np.argpartition(sizes, len(sizes) - count)[len(sizes) - count :]


def _tops(of: Ints, first: NDArray[np.int32], end: NDArray[np.int32], size: Floats, count: int, columns: int) -> Floats:
    """Upper edges: what comes and goes at each column, added up along each ribbon, and then from the lowest up."""
    tops = _thickness(of, first, end, size, count, columns)
    _stack_up(tops)
    return tops


def _thickness(
    of: Ints, first: NDArray[np.int32], end: NDArray[np.int32], size: Floats, count: int, columns: int
) -> Floats:
    """Bytes of each ribbon in each column, shape (count, columns)."""
    width = columns + 1
    begins = of * width
    # in place, since memory that is asked of the system for each sum takes longer than the sum
    change = np.bincount(begins + first, size, count * width)
    change -= np.bincount(begins + end, size, count * width)
    # of no allocations numpy counts in integers
    thick = change.astype(np.float64, copy=False).reshape(count, width)
    np.cumsum(thick, axis=1, out=thick)
    return thick[:, :columns]


def _stack_up(thick: Floats) -> None:
    """Put each ribbon on the one below it, in place."""
    for lower, upper in pairwise(thick):  # row by row: half the time of a sum down the columns
        upper += lower


@dataclass(frozen=True, slots=True, eq=False)
class RibbonGround:
    """What ribbons stand on and what is above them, in each column of pixels.

    Attributes:
        base: bytes below the lowest ribbon.
        roof: bytes up to the upper edge of what is above the highest.
        colour: of that, 0xAARRGGBB.
    """

    base: Floats
    roof: Floats
    colour: int


def painted(
    shown: Ribbons,
    colours: NDArray[np.uint32],
    height: int,
    scale: float,
    around: RibbonGround | None = None,
    spare: NDArray[np.uint32] | None = None,
) -> NDArray[np.uint32]:
    """Ribbons as pixels, shape (height, columns), from the top; 0 where there are none.

    Filling shapes with thousands of corners takes ten times as long as writing pixels column by column.

    Args:
        colours: of each ribbon, 0xAARRGGBB.
        height: pixels.
        scale: pixels a byte.
        around: ``None`` for ribbons that stand on the lower edge, with nothing above them.
        spare: pixels of a picture that nobody shows any more; the new one is written there if it has the same shape.
            In new memory each frame would wait for the system to clear it.
    """
    if around is None:
        nothing = np.zeros(shown.tops.shape[1])
        ground = RibbonGround(nothing, nothing, 0)
        pixels = _columns_of_pixels(shown.tops.copy(), colours, height, scale, ground, None)
        return np.take(pixels, shown.column_of, axis=1)
    tops = np.take(shown.tops, shown.column_of, axis=1)
    tops += around.base
    return _columns_of_pixels(tops, colours, height, scale, around, spare)


def _columns_of_pixels(
    tops: Floats,
    colours: NDArray[np.uint32],
    height: int,
    scale: float,
    around: RibbonGround,
    spare: NDArray[np.uint32] | None,
) -> NDArray[np.uint32]:
    """Ribbons as pixels, shape (height, columns). ``tops`` is used up."""
    count, columns = tops.shape
    tops *= scale
    # ribbon k goes from the edge in column k + 1 to the next one, in whole pixels from the bottom
    edges = np.empty((columns, count + 4), np.int32)
    edges[:, 0] = 0
    edges[:, 1] = _whole(around.base * scale, height)
    edges[:, 2:-2] = _whole(tops, height).T
    edges[:, -2] = np.maximum(_whole(around.roof * scale, height), edges[:, -3])
    # above the highest of all columns nothing has to be sorted into rows
    filled = max(1, int(edges[:, -2].max()))
    edges[:, -1] = filled
    runs = np.diff(edges, axis=1)
    palette = np.concatenate(([0], colours, [around.colour, 0])).astype(np.uint32)
    several = np.tile(palette, PAINTED_AT_ONCE)
    pixels = spare
    if pixels is None or pixels.shape != (height, columns):
        pixels = np.empty((height, columns), np.uint32)
    pixels[: height - filled] = 0
    rows = pixels[height - filled :]
    for begin in range(0, columns, PAINTED_AT_ONCE):
        some = runs[begin : begin + PAINTED_AT_ONCE]
        written = np.repeat(several[: some.size], some.ravel()).reshape(len(some), filled)
        rows[:, begin : begin + len(some)] = written.T[::-1]
    return pixels


def _whole(pixels: Floats, height: int) -> Floats:
    """The nearest whole pixels that are in the picture, in place."""
    np.rint(pixels, out=pixels)
    return np.clip(pixels, 0, height, out=pixels)


@dataclass(frozen=True, slots=True)
class Stayed:
    """What a line of the program allocated between two moments and had not freed at the later one.

    Attributes:
        site: number of the line.
        bytes, count: of its allocations.
    """

    site: int
    bytes: int
    count: int


def stayed_by_line(found: Allocations, earlier: int, later: int) -> Sequence[Stayed]:
    """What was born between two moments and stayed, by line, the largest first."""
    numbers = found.stayed(earlier, later)
    site = found.site[numbers]
    sizes = np.bincount(site, found.size[numbers]).astype(np.int64)
    counts = np.bincount(site)
    order = np.argsort(-sizes, kind="stable")
    return [Stayed(int(line), int(sizes[line]), int(counts[line])) for line in order if counts[line]]
