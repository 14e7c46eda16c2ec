"""The memory map: every segment a strip, every block a stretch of it, as many bytes a pixel everywhere. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.history.layout import Layout
from gpudash.memory.snapshot.history.segment_lives import Piece

Ints = NDArray[np.int64]

GAP_PX = 3
"""Pixels between segments."""

LEAST_PX = 3
"""Pixels of the smallest segment."""

WIDE_PX = 4
"""Pixels of a block whose beginning is marked."""

NOTHING, IDLE = -1, -2
"""What a pixel shows that shows no block: the ground beside segments, or free memory inside one."""


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """All segments of a device at one moment, one behind the other, the large ones first.

    Attributes:
        segments: in their order.
        offset: where each segment begins when they lie one behind the other; shape (segments + 1,), bytes.
        begin, end: of the blocks in the same count, ascending.
        life: index of each block's life.
        waits: whether a block is freed, but still in use by another stream.
    """

    segments: tuple[Piece, ...]
    offset: Ints
    begin: Ints
    end: Ints
    life: Ints
    waits: NDArray[np.bool_]

    @property
    def total(self) -> int:
        """Bytes of all segments."""
        return int(self.offset[-1])

    def segment_at(self, place: float) -> int:
        """The segment at a place."""
        return int(np.searchsorted(self.offset, place, "right")) - 1

    def address(self, place: int) -> int:
        """The address of a place."""
        number = self.segment_at(place)
        return self.segments[number].address + place - int(self.offset[number])

    def idle_at(self, place: float) -> tuple[int, int]:
        """First and last place of the free memory around a place."""
        number = self.segment_at(place)
        after = int(np.searchsorted(self.begin, place, "right"))
        low = max(int(self.offset[number]), int(self.end[after - 1]) if after else 0)
        high = int(self.offset[number + 1])
        return low, min(high, int(self.begin[after])) if after < len(self.begin) else high


def map_of(layout: Layout) -> Map:
    """The map of a layout: large segments before small ones, shared before private, by address."""
    order = sorted(
        range(len(layout.held)),
        key=lambda n: (layout.held[n].is_small, str(layout.held[n].pool), layout.held[n].address),
    )
    segments = tuple(layout.held[number] for number in order)
    sizes = np.array([piece.size for piece in segments], dtype=np.int64)
    offset = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    shift = np.zeros(len(order) + 1, dtype=np.int64)
    addresses = np.array([piece.address for piece in segments], dtype=np.int64)
    shift[np.array(order, dtype=np.int64)] = offset[:-1] - addresses
    begin = layout.address + shift[layout.segment]
    sorted_by_place = np.argsort(begin, kind="stable")
    begin = begin[sorted_by_place]
    return Map(
        segments,
        offset,
        begin,
        begin + layout.size[sorted_by_place],
        layout.life[sorted_by_place],
        layout.waits[sorted_by_place],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The map in rows of pixels, each of shape (rows, width).

    Attributes:
        block: which block each pixel shows, or `NOTHING` or `IDLE`.
        place: byte in the middle of each pixel; meaningless where there is nothing.
        begins: pixels at which a block begins that is wide enough to be told apart.
    """

    block: Ints
    place: NDArray[np.float64]
    begins: NDArray[np.bool_]


def fitting_scale(found: Map, width: int, rows: int) -> float:
    """Bytes a pixel with which the map fills about ``rows`` rows of ``width`` pixels."""
    room = max(width, width * rows - len(found.segments) * (GAP_PX + 1))
    return max(1.0, found.total / (room * 0.94))


def lay_out(found: Map, width: int, scale: float) -> Lines:
    """Segments one behind the other; one that fits a row is not broken.

    Args:
        found: what is shown.
        width: of a row, in pixels.
        scale: bytes a pixel.
    """
    starts, lengths = _places(found.segments, width, scale)
    rows = 1 if not len(starts) else int((starts[-1] + lengths[-1] - 1) // width) + 1
    block = np.full(rows * width, NOTHING, dtype=np.int64)
    place = np.zeros(rows * width)
    if len(starts):
        number = np.repeat(np.arange(len(starts)), lengths)
        within = np.arange(len(number)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        sizes = np.diff(found.offset)
        middles = found.offset[number] + (within + 0.5) / lengths[number] * sizes[number]
        pixels = starts[number] + within
        place[pixels] = middles
        block[pixels] = _blocks_at(found, middles)
    changes = np.flatnonzero(block[1:] != block[:-1]) + 1
    begins = np.zeros(len(block), dtype=bool)
    begins[changes[np.diff(np.append(changes, len(block))) >= WIDE_PX]] = True
    begins &= block >= 0
    return Lines(block.reshape(rows, width), place.reshape(rows, width), begins.reshape(rows, width))


def _blocks_at(found: Map, places: NDArray[np.float64]) -> Ints:
    if not len(found.begin):
        return np.full(len(places), IDLE, dtype=np.int64)
    number = np.searchsorted(found.begin, places, "right") - 1
    inside = (number >= 0) & (places < found.end[number])
    return np.where(inside, number, IDLE).astype(np.int64)


def _places(segments: tuple[Piece, ...], width: int, scale: float) -> tuple[Ints, Ints]:
    """First pixel of each segment, and how many it takes."""
    starts, lengths, at = [], [], 0
    for segment in segments:
        length = max(LEAST_PX, round(segment.size / scale))
        left = width - at % width
        if left < min(length, width) and (length <= width or left < LEAST_PX):
            at += left
        starts.append(at)
        lengths.append(length)
        at += length + GAP_PX
    return np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64)
