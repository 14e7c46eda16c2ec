"""The memory map at one moment: segments, and the blocks in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import BlockView, Segment
from gpudash.memory.snapshot.history.lives import Lives
from gpudash.memory.snapshot.history.model import NONE
from gpudash.memory.snapshot.history.segment_lives import Piece

Ints = NDArray[np.int64]

ALLOCATED, PENDING, FREE = "active_allocated", "active_pending_free", "inactive"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Segments by address, and the blocks in use by address; what is between them is free.

    Attributes:
        held: the segments; `born` and `freed` of an expandable one are those of its first piece.
        life: index of each block's life.
        address, size: of each block, bytes.
        waits: whether a block is freed, but still in use by another stream.
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
        """The same as the allocator tells it, free blocks included."""
        rows = zip(
            self.address.tolist(),
            self.size.tolist(),
            self.lives.requested[self.life].tolist(),
            self.lives.stack[self.life].tolist(),
            self.waits.tolist(),
            strict=True,
        )
        blocks = [
            BlockView(address, size, requested, PENDING if waits else ALLOCATED, None if stack == NONE else stack)
            for address, size, requested, stack, waits in rows
        ]
        bounds = np.searchsorted(self.segment, np.arange(len(self.held) + 1)).tolist()
        return [_segment(piece, blocks[bounds[number] : bounds[number + 1]]) for number, piece in enumerate(self.held)]


def layout(pieces: Sequence[Piece], lives: Lives, alive: Ints, pending: Ints, moment: int) -> Layout:
    """The map at a moment.

    Args:
        pieces: of segments, by address.
        lives: of blocks.
        alive, pending: indices of those that are in use.
        moment: of the history.
    """
    held = _joined([piece for piece in pieces if piece.born <= moment < piece.freed])
    life = np.concatenate((alive, pending))
    life = life[np.argsort(lives.address[life], kind="stable")]
    address = lives.address[life]
    begins = np.array([piece.address for piece in held], np.int64)
    ends = np.array([piece.address + piece.size for piece in held], np.int64)
    segment = np.searchsorted(begins, address, side="right") - 1
    inside = (segment >= 0) & (address < ends[segment]) if len(held) else np.zeros(len(life), bool)
    life, address, segment = life[inside], address[inside], segment[inside]
    return Layout(held, life, address, lives.bytes[life], lives.freed[life] <= moment, segment, lives)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces of expandable segments that touch as one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
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
    place, end = piece.address, piece.address + piece.size
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
