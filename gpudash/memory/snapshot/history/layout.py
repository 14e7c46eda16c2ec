"""Addresses of a trace's blocks: their real sizes, and the memory map at any moment.

A trace contains requested sizes. A block's additional bytes follow from the placement of later blocks: a request gets
the lower end of a free block, together with a rest of at most 1 MiB (c10/cuda/CUDACachingAllocator.cpp,
`should_split`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import AllocatorSettings, BlockView, Segment
from gpudash.memory.allocator.blocks import LARGEST_SMALL
from gpudash.memory.snapshot.history.lives import Ints, Lives, Piece, matched, pieces
from gpudash.memory.snapshot.history.model import NONE, DeviceSnapshot

_CAME, _WENT, _BORN, _DONE = range(4)


class _Space:
    """Free memory of the large pools in ordinary segments."""

    def __init__(self, limit: int) -> None:
        # begin → size, and end → begin, to find both neighbours of a block quickly.
        self._free: dict[int, int] = {}
        self._begin_of_end: dict[int, int] = {}
        self._walls: set[int] = set()
        self._limit = limit
        self.slack: dict[int, int] = {}
        self.disagreeing = 0

    def put(self, address: int, size: int) -> None:
        """Free memory, merging it with free neighbours in its segment."""
        free, begin_of_end, end = self._free, self._begin_of_end, address + size
        # A block that begins at a segment's start belongs to that segment, even if the addresses touch.
        if end in free and end not in self._walls:
            more = free.pop(end)
            end += more
        before = begin_of_end.get(address)
        if before is not None and address not in self._walls:
            del begin_of_end[address]
            address = before
        free[address] = end - address
        begin_of_end[end] = address

    def come(self, address: int, size: int) -> None:
        """Add a segment from the card."""
        self.begin_segment(address)
        self._free[address] = size
        self._begin_of_end[address + size] = address

    def begin_segment(self, address: int) -> None:
        """Prevent merging across the start of a segment."""
        self._walls.add(address)

    def go(self, address: int, size: int) -> None:
        """Remove a segment that was entirely free."""
        if self._free.get(address) != size:
            self.disagreeing += 1
            return
        del self._free[address], self._begin_of_end[address + size]
        self._walls.discard(address)

    def take(self, address: int, size: int) -> int:
        """Size of the block that serves a request of ``size`` rounded bytes here."""
        there = self._free.pop(address, None)
        if there is None:
            there = self._inside(address)
        if there is None or there < size:
            self.disagreeing += 1
            return size
        rest = there - size
        # torch's `should_split` for the large pools
        if rest > LARGEST_SMALL and size < self._limit:
            self._free[address + size] = rest
            self._begin_of_end[address + there] = address + size
            return size
        # The block got all of it, with the rest that could not be split off.
        del self._begin_of_end[address + there]
        return there

    def _inside(self, address: int) -> int | None:
        """Remove a block that begins later than assumed: the block before it had these bytes too."""
        # Not at the start of a free block: the previous one has kept up to 1 MiB that could not be split off.
        for begin, size in self._free.items():
            if begin < address < begin + size and address - begin <= LARGEST_SMALL:
                del self._free[begin]
                self.slack[begin] = address - begin
                self._begin_of_end[begin + size] = address
                return begin + size - address
        return None

    def give_back(self, address: int, size: int) -> int:
        """Free a block, including bytes later found to be its own; returns the number of those."""
        more = self.slack.pop(address + size, 0)
        self.put(address, size + more)
        return more


def _measure(lives: Lives, pieces: list[Piece], settings: AllocatorSettings, count: int) -> tuple[dict[int, int], int]:
    """Correct `Lives.bytes` of large blocks in ordinary segments.

    For blocks from before the trace, bytes beyond the rounded request that only later placements show are not
    included.

    Returns:
        Those bytes by life, and the number of events that contradict the pieces.
    """
    limit = settings.max_split_size
    if limit is None:
        limit = 2**63
    # Only large pools of ordinary segments leave rests: small blocks and expandable segments are always split.
    large = [piece for piece in pieces if not piece.is_small and not piece.is_expandable]
    which = np.flatnonzero((lives.bytes > LARGEST_SMALL) & _within(lives.address, lives.bytes, large))
    if settings.expandable_segments:
        which = which[:0]
    space = _Space(limit)
    _begin(space, lives, which, [piece for piece in large if piece.born == -1], count)
    # As lists: the loop below accesses single items, which is slow for arrays.
    size = lives.bytes[which].tolist()
    address = lives.address[which].tolist()
    hidden: dict[int, int] = {}
    for _event, kind, number in _in_order(lives, which, large, count):
        if kind == _BORN:
            size[number] = space.take(address[number], size[number])
        elif kind == _DONE:
            more = space.give_back(address[number], size[number])
            if more:
                hidden[int(which[number])] = more
        elif kind == _CAME:
            space.come(large[number].address, large[number].size)
        else:
            space.go(large[number].address, large[number].size)
    # The segments contain the exact sizes of blocks alive at the end.
    exact = lives.done[which] == count
    lives.bytes[which] = np.where(exact, lives.bytes[which], np.array(size, np.int64))
    return hidden, space.disagreeing


def _within(address: Ints, size: Ints, pieces: list[Piece]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which blocks are inside one of the pieces at some time, or in several, one after the other."""
    if not pieces:
        return np.zeros(len(address), bool)
    begins = np.array([piece.address for piece in pieces], np.int64)
    # Pieces of different times may overlap: use the furthest end of all that begin before.
    ends = np.maximum.accumulate(np.array([piece.address + piece.size for piece in pieces], np.int64))
    place = np.searchsorted(begins, address, side="right") - 1
    # An untrusted size must not overflow, or the end would wrap around to below the start.
    end = address + np.minimum(size, np.iinfo(np.int64).max - address)
    reached = np.searchsorted(begins, end, side="left") - 1
    return (place >= 0) & (address < ends[np.maximum(place, 0)]) & (end <= ends[np.maximum(reached, 0)])


def _begin(space: _Space, lives: Lives, which: Ints, held: list[Piece], count: int) -> None:
    """Free the gaps between blocks from before the trace, or add those to the blocks if they are too small."""
    before = which[lives.born[which] == -1]
    before = before[np.argsort(lives.address[before], kind="stable")]
    address = lives.address[before].tolist()
    size = lives.bytes[before].tolist()
    is_exact = (lives.done[before] == count).tolist()
    place = 0
    for piece in held:
        # The start of the part that belongs to no block yet.
        free_from = piece.address
        end = piece.address + piece.size
        space.begin_segment(piece.address)
        while place < len(address) and address[place] < end:
            if address[place] > free_from:
                space.put(free_from, address[place] - free_from)
            if place + 1 < len(address) and address[place + 1] < end:
                following = address[place + 1]
            else:
                following = end
            rest = following - address[place] - size[place]
            # Too small to be split off: it must have been part of the block.
            if 0 < rest <= LARGEST_SMALL and not is_exact[place]:
                size[place] += rest
            free_from = address[place] + size[place]
            place += 1
        if free_from < end:
            space.put(free_from, end - free_from)
    lives.bytes[before] = size


def _in_order(lives: Lives, which: Ints, large: list[Piece], count: int) -> list[tuple[int, int, int]]:
    """Event, kind and number of all changes, in order."""
    born = lives.born[which]
    done = lives.done[which]
    numbers = np.arange(len(which))
    came = np.array([(piece.born, number) for number, piece in enumerate(large) if piece.born >= 0], np.int64)
    went = np.array([(piece.freed, number) for number, piece in enumerate(large) if piece.freed < count], np.int64)
    parts = [
        (born[born >= 0], _BORN, numbers[born >= 0]),
        (done[done < count], _DONE, numbers[done < count]),
        (came.reshape(-1, 2)[:, 0], _CAME, came.reshape(-1, 2)[:, 1]),
        (went.reshape(-1, 2)[:, 0], _WENT, went.reshape(-1, 2)[:, 1]),
    ]
    event = np.concatenate([part[0] for part in parts])
    kind = np.concatenate([np.full(len(part[0]), part[1], np.int64) for part in parts])
    number = np.concatenate([part[2] for part in parts])
    # A block that ends because its address is reused ends first.
    order = np.lexsort((-kind, event))
    return list(zip(event[order].tolist(), kind[order].tolist(), number[order].tolist(), strict=True))


ALLOCATED, PENDING, FREE = "active_allocated", "active_pending_free", "inactive"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Segments and used blocks by address; what is between the blocks is free.

    Attributes:
        held: segments; `born` and `freed` of an expandable one are its first piece's.
        life: index of each block's life.
        address, size: address and size of each block, in bytes.
        waits: whether each block is freed, but still used by another stream.
        segment: index of the segment of each block.
    """

    held: Sequence[Piece]
    life: Ints
    address: Ints
    size: Ints
    waits: NDArray[np.bool_]
    segment: Ints
    lives: Lives

    def segments(self) -> list[Segment]:
        """The same in the allocator's form, with free blocks."""
        rows = zip(
            self.address.tolist(),
            self.size.tolist(),
            self.lives.requested[self.life].tolist(),
            self.lives.stack[self.life].tolist(),
            self.waits.tolist(),
            strict=True,
        )
        blocks = []
        for address, size, requested, stack, waits in rows:
            state = ALLOCATED
            if waits:
                state = PENDING
            owner = None
            if stack != NONE:
                owner = stack
            blocks.append(BlockView(address, size, requested, state, owner))
        # Blocks are sorted by address, and so by segment: each segment has a slice of them.
        bounds = np.searchsorted(self.segment, np.arange(len(self.held) + 1)).tolist()
        return [_segment(piece, blocks[bounds[number] : bounds[number + 1]]) for number, piece in enumerate(self.held)]


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Times and addresses of all blocks and segments of a trace, reconstructed from the segments at its end.

    Attributes:
        lives: lives of the blocks.
        pieces: pieces of segments, by address.
        slack: by life, bytes by which a block from before the trace was larger than its rounded request, as only later
            placements show.
        disagreeing: number of events and blocks for which the trace and the segments are inconsistent.
    """

    lives: Lives
    pieces: Sequence[Piece]
    slack: dict[int, int]
    disagreeing: int

    def alive(self, moment: int) -> Ints:
        """Indices of lives that are allocated at a moment."""
        return np.flatnonzero((self.lives.born <= moment) & (self.lives.freed > moment))

    def pending(self, moment: int) -> Ints:
        """Indices of lives that are freed at a moment, but still used by another stream."""
        return np.flatnonzero((self.lives.freed <= moment) & (self.lives.done > moment))

    def layout(self, moment: int) -> Layout:
        """The memory map at a moment; -1 is before the first event."""
        lives = self.lives
        held = _joined([piece for piece in self.pieces if piece.born <= moment < piece.freed])
        life = np.concatenate((self.alive(moment), self.pending(moment)))
        life = life[np.argsort(lives.address[life], kind="stable")]
        address = lives.address[life]
        begins = np.array([piece.address for piece in held], np.int64)
        ends = np.array([piece.address + piece.size for piece in held], np.int64)
        segment = np.searchsorted(begins, address, side="right") - 1
        if len(held):
            inside = (segment >= 0) & (address < ends[segment])
        else:
            inside = np.zeros(len(life), bool)
        # Blocks outside of all segments come from an inconsistent trace, and are on no map.
        life = life[inside]
        address = address[inside]
        segment = segment[inside]
        return Layout(held, life, address, lives.bytes[life], lives.freed[life] <= moment, segment, lives)


def placed(device: DeviceSnapshot, *, with_slack: bool) -> Placed:
    """Follow a device's trace backwards from the segments at its end.

    Args:
        device: device of a snapshot.
        with_slack: whether sizes include `Placed.slack`, as the real blocks did.
    """
    columns = device.trace.columns
    lives, unmatched = matched(device, columns)
    # First what was reserved when, then the blocks in it.
    held, misplaced = pieces(device, columns)
    slack, mismatched = _measure(lives, held, device.settings, len(columns))
    outside = int((~_within(lives.address, lives.bytes, held)).sum())
    if with_slack:
        for life, more in slack.items():
            lives.bytes[life] += more
    return Placed(lives, held, slack, unmatched + misplaced + mismatched + outside)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Adjacent pieces of expandable segments, joined."""
    found: list[Piece] = []
    for piece in pieces:
        last = None
        if found:
            last = found[-1]
        if (
            last is not None
            and last.is_expandable
            and piece.is_expandable
            and last.address + last.size == piece.address
            and (last.stream, last.pool, last.is_small) == (piece.stream, piece.pool, piece.is_small)
        ):
            found[-1] = Piece(
                last.address,
                last.size + piece.size,
                last.stream,
                last.is_small,
                last.pool,
                True,
                last.born,
                last.freed,
            )
        else:
            found.append(piece)
    return found


def _segment(piece: Piece, used: list[BlockView]) -> Segment:
    blocks: list[BlockView] = []
    place = piece.address
    end = piece.address + piece.size
    for block in used:
        if block.address > place:
            blocks.append(BlockView(place, block.address - place, 0, FREE))
        blocks.append(block)
        place = block.address + block.size
    if place < end:
        blocks.append(BlockView(place, end - place, 0, FREE))
    return Segment(
        piece.address, piece.size, piece.stream, piece.is_small, piece.pool, piece.is_expandable, tuple(blocks)
    )
