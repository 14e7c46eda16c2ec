"""Lives of blocks and segments: from the event that created them to the one that ended them, or beyond the trace."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.blocks import SMALL_SEGMENT, Rounding
from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.allocator.settings import LARGE_SEGMENT_SIZE
from gpudash.memory.snapshot.history.model import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NONE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Columns,
    DeviceSnapshot,
)

Ints = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Lives:
    """Blocks from allocation to end: arrays of one length.

    Attributes:
        address: of the block.
        bytes: size of the whole block; `requested` is the requested size.
        stream: stream it was allocated for.
        born: event that allocated it; -1 if before the first event.
        freed: event that freed it; the number of events if none did, -1 if before the first event.
        done: event from which it could be reused: later than `freed` while another stream used it.
        stack: index of the stack that allocated it; -1 for none.
        category: index into the history's `categories`.
        phase: phase of its allocation, an index into `roles.PHASES`.
    """

    address: Ints
    bytes: Ints
    requested: Ints
    stream: Ints
    born: Ints
    freed: Ints
    done: Ints
    stack: Ints
    category: NDArray[np.uint8]
    phase: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.address)


def rounded(sizes: Ints, settings: AllocatorSettings) -> Ints:
    """Block sizes for requests of ``sizes`` bytes, without rests that cannot be split off."""
    rounding = Rounding(settings)
    if rounding.is_plain:
        return (sizes + 511) & -512
    # A trace of millions of requests has a few hundred sizes: round each of those once.
    different, places = np.unique(sizes, return_inverse=True)
    return np.fromiter((rounding.rounded(int(size)) for size in different), np.int64)[places]


def matched(device: DeviceSnapshot, columns: Columns) -> tuple[Lives, int]:
    """All lives in the trace or the segments, with rounded sizes where the segments lack them.

    Returns:
        The lives: those in the trace by address and time, then those it never mentions; and the number of blocks alive
        at the end in only one of trace and segments.
    """
    count = len(columns)
    of_trace = _in_trace(columns, device.settings)
    ends = _final_blocks(device)
    alive = np.flatnonzero(of_trace.done == count)
    places = np.searchsorted(ends.address, of_trace.address[alive])
    # An address beyond all of them: any position will do, since it is compared below.
    places[places == len(ends)] = 0
    if len(ends):
        known = ends.address[places] == of_trace.address[alive]
    else:
        known = np.zeros(len(alive), bool)
    # Lives in both: `found` among the trace's, `there` among the segments' blocks.
    found = alive[known]
    there = places[known]
    of_trace.bytes[found] = ends.bytes[there]
    without_stack = (of_trace.stack[found] == NONE) & (of_trace.born[found] == -1)
    of_trace.stack[found[without_stack]] = ends.stack[there[without_stack]]
    # It waits for a stream, and the trace does not contain its free: use the earliest possible event.
    freed_unseen = (ends.freed[there] == -1) & (of_trace.freed[found] == count)
    of_trace.freed[found[freed_unseen]] = np.maximum(of_trace.born[found[freed_unseen]], 0)
    never_reported = np.ones(len(ends), bool)
    never_reported[there] = False
    # Blocks that the trace never mentions were there all the time.
    before = _pick(ends, never_reported)
    before.freed[before.freed == 0] = count
    before.done[:] = count
    # Addresses freed in the trace that are in use in the segments without another allocation.
    disagreeing = int(len(alive) - len(found)) + int(np.isin(before.address, of_trace.address).sum())
    return _joined(of_trace, before), disagreeing


def _in_trace(columns: Columns, settings: AllocatorSettings) -> Lives:
    count = len(columns)
    action = columns.action
    event = np.flatnonzero((action == ALLOC) | (action == FREE_REQUESTED) | (action == FREE_COMPLETED))
    # By address, then by time: the events of one life are adjacent.
    event = event[np.argsort(columns.address[event], kind="stable")]
    address = columns.address[event]
    kind = action[event]
    if not len(event):
        return _empty()
    follows = address[1:] == address[:-1]
    # A life begins with its allocation, or, if that was before the trace, with the first event at its address.
    is_begin = (kind == ALLOC) | np.concatenate(([True], ~follows))
    starts = np.flatnonzero(is_begin)
    first = event[starts]
    # The earliest of each kind within each life; `count` means none.
    requested_free = np.minimum.reduceat(np.where(kind == FREE_REQUESTED, event, count), starts)
    done = np.minimum.reduceat(np.where(kind == FREE_COMPLETED, event, count), starts)
    # An address that is allocated again has ended its life, whatever the trace omits.
    again = np.full(len(starts), count, np.int64)
    same = address[starts[1:]] == address[starts[:-1]]
    again[:-1][same] = first[1:][same]
    done = np.minimum(done, again)
    was_allocated = kind[starts] == ALLOC
    requested = columns.size[first]
    return Lives(
        address=address[starts],
        bytes=rounded(requested, settings),
        requested=requested,
        stream=columns.stream[first],
        born=np.where(was_allocated, first, -1),
        freed=np.minimum(requested_free, done),
        done=done,
        stack=np.where(was_allocated, columns.stack[first], NONE).astype(np.int64),
        category=np.zeros(len(starts), np.uint8),
        phase=np.zeros(len(starts), np.uint8),
    )


def _final_blocks(device: DeviceSnapshot) -> Lives:
    """Blocks in use at the end, by address; `freed` is -1 for those that are only waiting, else 0."""
    held = []
    for segment in device.segments:
        for block in segment.blocks:
            if block.state == "inactive":
                continue
            stack = NONE
            if isinstance(block.owner, int):
                stack = block.owner
            freed = 0
            if block.state == "active_pending_free":
                freed = -1
            held.append((block.address, block.size, block.requested_size, segment.stream, stack, freed))
    if not held:
        return _empty()
    table = np.array(sorted(held), np.int64)
    zero = np.zeros(len(held), np.uint8)
    addresses, sizes, requested, streams, stacks, ends = (np.ascontiguousarray(table[:, place]) for place in range(6))
    born = np.full(len(held), -1, np.int64)
    return Lives(addresses, sizes, requested, streams, born, ends, born.copy(), stacks, zero, zero.copy())


def _empty() -> Lives:
    none = np.zeros(0, np.int64)
    codes = np.zeros(0, np.uint8)
    return Lives(
        none, none.copy(), none.copy(), none.copy(), none.copy(), none.copy(), none.copy(), none.copy(), codes, codes
    )


_NAMES = tuple(field.name for field in fields(Lives))


def _pick(lives: Lives, which: NDArray[np.bool_]) -> Lives:
    return Lives(**{name: getattr(lives, name)[which] for name in _NAMES})


def _joined(first: Lives, second: Lives) -> Lives:
    return Lives(**{name: np.concatenate((getattr(first, name), getattr(second, name))) for name in _NAMES})


@dataclass(slots=True)
class Piece:
    """Memory from one cudaMalloc, or part of an expandable segment that was mapped and unmapped as a whole.

    Attributes:
        address, size: address, and size in bytes.
        born: event that created it; -1 if before the first event.
        freed: event that released it; the number of events if none did.
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
    """Pieces held, going back in time; counts those that the trace cannot have produced."""

    def __init__(self, device: DeviceSnapshot, count: int) -> None:
        self.ended: list[Piece] = []
        self.disagreeing = 0
        self._held: dict[int, Piece] = {}
        self._begins: list[int] = []
        # Only the end is certain: undo the events from there, the last one first.
        for s in device.segments:
            self._put(Piece(s.address, s.total_size, s.stream, s.is_small, s.pool_id, s.is_expandable, -1, count))

    def _put(self, piece: Piece) -> None:
        if piece.address in self._held:
            self.disagreeing += 1
            return
        self._held[piece.address] = piece
        insort(self._begins, piece.address)

    def came(self, event: int, address: int, size: int) -> None:
        """Undo an event that added memory; parts of it may since have been removed from an expandable segment."""
        # Start with the last piece at or below the address: it may overlap the added range.
        place = max(0, bisect_right(self._begins, address) - 1)
        end = address + size
        found = []
        while place < len(self._begins) and self._begins[place] < end:
            piece = self._held[self._begins[place]]
            if piece.address + piece.size > address:
                found.append(piece)
            place += 1
        covered = sum(min(end, piece.address + piece.size) - max(address, piece.address) for piece in found)
        # A cudaMalloc segment is freed as a whole; only expandable ones are unmapped in parts.
        whole = len(found) == 1 and (found[0].address, found[0].size) == (address, size)
        if covered != size or not (whole or all(piece.is_expandable for piece in found)):
            self.disagreeing += 1
            return
        for piece in found:
            del self._begins[bisect_left(self._begins, piece.address)]
            del self._held[piece.address]
            begin = max(address, piece.address)
            last = min(end, piece.address + piece.size)
            # Parts outside of the range existed before this event, and stay held further back in time.
            for left, right in ((piece.address, begin), (last, piece.address + piece.size)):
                if left < right:
                    self._put(_part(piece, left, right - left, piece.born))
            self.ended.append(_part(piece, begin, last - begin, event))

    def went(self, event: int, address: int, size: int, stream: int, pool: Hashable, grows: bool) -> None:
        """Undo an event that removed memory."""
        # Guess by the size, since the event does not say; a neighbour that is still there is certain.
        is_small = size == SMALL_SEGMENT or (grows and size % LARGE_SEGMENT_SIZE != 0)
        neighbour = None
        if grows:
            neighbour = self._neighbour(address, address + size, stream)
        if neighbour is not None:
            is_small = neighbour.is_small
            pool = neighbour.pool
        self._put(Piece(address, size, stream, is_small, pool, grows, -1, event))

    def _neighbour(self, address: int, end: int, stream: int) -> Piece | None:
        """The piece of the same expandable segment that is adjacent to this one."""
        place = bisect_left(self._begins, address) - 1
        before = None
        if place >= 0:
            before = self._held[self._begins[place]]
        if before is not None and before.address + before.size != address:
            before = None
        known = (piece for piece in (before, self._held.get(end)) if piece is not None)
        return next((piece for piece in known if piece.is_expandable and piece.stream == stream), None)

    def all(self) -> list[Piece]:
        """All pieces, by address and time."""
        return sorted([*self.ended, *self._held.values()], key=lambda piece: (piece.address, piece.born))


def _part(piece: Piece, address: int, size: int, born: int) -> Piece:
    return Piece(address, size, piece.stream, piece.is_small, piece.pool, piece.is_expandable, born, piece.freed)


def pieces(device: DeviceSnapshot, columns: Columns) -> tuple[list[Piece], int]:
    """All pieces that ever existed, by address and time, and the number of events that contradict the segments."""
    action = columns.action
    # The codes of the four segment actions are consecutive; the newest event comes first.
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
            if pool == NONE:
                identity = SHARED
            else:
                identity = columns.pools[pool]
            undoing.went(event, address, size, stream, identity, kind == SEGMENT_UNMAP)
    return undoing.all(), undoing.disagreeing


def reserved_changes(columns: Columns) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Bytes that each event took from the card; negative if it returned them."""
    action = columns.action
    came = (action == SEGMENT_ALLOC) | (action == SEGMENT_MAP)
    went = (action == SEGMENT_FREE) | (action == SEGMENT_UNMAP)
    return np.where(came, columns.size, np.where(went, -columns.size, 0))
