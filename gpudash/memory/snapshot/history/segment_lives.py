"""When the memory of segments came from the card and went back: the segments at the end, undone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from gpudash.memory.allocator.blocks import SMALL_SEGMENT
from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.allocator.settings import LARGE_SEGMENT_SIZE
from gpudash.memory.snapshot.history.model import (
    NONE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Columns,
    DeviceSnapshot,
)


@dataclass(slots=True)
class Piece:
    """Memory from one cudaMalloc, or a part of an expandable segment that was mapped and unmapped together.

    Attributes:
        address, size: bytes.
        born: event it came with, -1 before the first event.
        freed: event it went back with, the number of events when it stayed.
    """

    address: int
    size: int
    stream: int
    is_small: bool
    pool: Hashable
    is_expandable: bool
    born: int
    freed: int


class _Undoing:
    """Pieces that are held, back in time; those that a trace cannot have led to are counted."""

    def __init__(self, device: DeviceSnapshot, count: int) -> None:
        self.ended: list[Piece] = []
        self.disagreeing = 0
        self._held: dict[int, Piece] = {}
        self._begins: list[int] = []
        for s in device.segments:
            self._put(Piece(s.address, s.total_size, s.stream, s.is_small, s.pool_id, s.is_expandable, -1, count))

    def _put(self, piece: Piece) -> None:
        if piece.address in self._held:
            self.disagreeing += 1
            return
        self._held[piece.address] = piece
        insort(self._begins, piece.address)

    def _take(self, address: int) -> Piece:
        del self._begins[bisect_left(self._begins, address)]
        return self._held.pop(address)

    def came(self, event: int, address: int, size: int) -> None:
        """Go back over an event with which memory came: into an expandable segment, parts of it may have gone since."""
        place, end = max(0, bisect_right(self._begins, address) - 1), address + size
        found = []
        while place < len(self._begins) and self._begins[place] < end:
            piece = self._held[self._begins[place]]
            if piece.address + piece.size > address:
                found.append(piece)
            place += 1
        covered = sum(min(end, piece.address + piece.size) - max(address, piece.address) for piece in found)
        whole = len(found) == 1 and (found[0].address, found[0].size) == (address, size)
        if covered != size or not (whole or all(piece.is_expandable for piece in found)):
            self.disagreeing += 1
            return
        for piece in found:
            self._take(piece.address)
            begin, last = max(address, piece.address), min(end, piece.address + piece.size)
            for left, right in ((piece.address, begin), (last, piece.address + piece.size)):
                if left < right:
                    self._put(_part(piece, left, right - left, piece.born))
            self.ended.append(_part(piece, begin, last - begin, event))

    def went(self, event: int, address: int, size: int, stream: int, pool: Hashable, grows: bool) -> None:
        """Go back over an event with which memory went."""
        is_small = size == SMALL_SEGMENT or (grows and size % LARGE_SEGMENT_SIZE != 0)
        beside = self._beside(address, address + size, stream) if grows else None
        if beside is not None:
            is_small, pool = beside.is_small, beside.pool
        self._put(Piece(address, size, stream, is_small, pool, grows, -1, event))

    def _beside(self, address: int, end: int, stream: int) -> Piece | None:
        """The piece of the same expandable segment that ends or begins where this one does."""
        place = bisect_left(self._begins, address) - 1
        before = self._held[self._begins[place]] if place >= 0 else None
        if before is not None and before.address + before.size != address:
            before = None
        known = (piece for piece in (before, self._held.get(end)) if piece is not None)
        return next((piece for piece in known if piece.is_expandable and piece.stream == stream), None)

    def all(self) -> list[Piece]:
        """Every piece, by address and time."""
        return sorted([*self.ended, *self._held.values()], key=lambda piece: (piece.address, piece.born))


def _part(piece: Piece, address: int, size: int, born: int) -> Piece:
    return Piece(address, size, piece.stream, piece.is_small, piece.pool, piece.is_expandable, born, piece.freed)


def pieces(device: DeviceSnapshot, columns: Columns) -> tuple[list[Piece], int]:
    """Every piece there ever was, by address and time, and how many events the segments contradict."""
    action = columns.action
    events = np.flatnonzero((action >= SEGMENT_ALLOC) & (action <= SEGMENT_UNMAP))[::-1]
    undoing = _Undoing(device, len(columns))
    rows = zip(
        events.tolist(),
        action[events].tolist(),
        columns.address[events].tolist(),
        columns.size[events].tolist(),
        columns.stream[events].tolist(),
        columns.pool[events].tolist(),
        strict=True,
    )
    for event, kind, address, size, stream, pool in rows:
        if kind in (SEGMENT_ALLOC, SEGMENT_MAP):
            undoing.came(event, address, size)
        else:
            identity = SHARED if pool == NONE else columns.pools[pool]
            undoing.went(event, address, size, stream, identity, kind == SEGMENT_UNMAP)
    return undoing.all(), undoing.disagreeing


def reserved_changes(columns: Columns) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Bytes that each event took from the card; negative where it gave them back."""
    action = columns.action
    came = (action == SEGMENT_ALLOC) | (action == SEGMENT_MAP)
    went = (action == SEGMENT_FREE) | (action == SEGMENT_UNMAP)
    return np.where(came, columns.size, np.where(went, -columns.size, 0))
