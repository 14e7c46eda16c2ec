"""The segments and blocks of an allocator as a snapshot tells them, read from it and put back into it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gpudash.memory.allocator.blocks import FREE, STATE_NAMES, Block, ExpandableRange
from gpudash.memory.allocator.heap import SMALL_GRANULE, Heap

SHARED = (0, 0)
"""The identity torch gives the pools that are nobody's."""


def segments(heap: Heap) -> list[Segment]:
    """Everything the heap holds, by address."""
    return [_view(blocks) for blocks in heap.blocks_in_segments()]


def seed(heap: Heap, given: Iterable[Segment]) -> None:
    """Fill an empty heap with segments; its figures begin with them.

    Raises:
        ValueError: the heap is not empty, or the card has not as much.
    """
    if heap.blocks:
        raise ValueError("The allocator holds memory already, so that it cannot be given a recorded layout.")
    by_address = sorted(given, key=lambda segment: segment.address)
    if heap.settings.oldest_first and not any(segment.order for segment in by_address):
        # which came first is not recorded, but the driver's addresses fall
        count = len(by_address)
        by_address = [replace(segment, order=count - place) for place, segment in enumerate(by_address)]
    heap.orders = max((segment.order for segment in by_address), default=0)
    for segment in by_address:
        if not heap.memory.take(segment.address, segment.total_size):
            raise ValueError(
                f"The recorded layout does not fit: the card has {heap.memory.free_bytes} bytes free and its segment "
                f"at {segment.address:#x} has {segment.total_size}."
            )
        _seed_segment(heap, segment)
    heap.statistics.reset_peak()
    heap.statistics.reset_accumulated()


@dataclass(frozen=True)
class BlockView:
    """A block as a snapshot tells it; sizes in bytes.

    Attributes:
        state: ``active_allocated``, ``active_pending_free`` or ``inactive``.
        owner: what the caller gave with the request.
    """

    address: int
    size: int
    requested_size: int
    state: str
    owner: Any = None


@dataclass(frozen=True)
class Segment:
    """A segment as a snapshot tells it: one cudaMalloc, or one mapped range of an expandable segment."""

    address: int
    total_size: int
    stream: int
    is_small: bool
    pool_id: Hashable
    is_expandable: bool
    blocks: tuple[BlockView, ...]
    order: int = 0

    @property
    def allocated_size(self) -> int:
        """Bytes of allocated blocks."""
        return sum(block.size for block in self.blocks if block.state == "active_allocated")

    @property
    def active_size(self) -> int:
        """Bytes of blocks that are not free."""
        return sum(block.size for block in self.blocks if block.state != "inactive")


def _view(blocks: list[Block]) -> Segment:
    home = blocks[0].home
    return Segment(
        address=blocks[0].address,
        total_size=sum(block.size for block in blocks),
        stream=home.stream,
        is_small=home.pool.is_small,
        pool_id=SHARED if home.pool.private is None else home.pool.private.identity,
        is_expandable=blocks[0].expandable is not None,
        blocks=tuple(
            BlockView(block.address, block.size, block.requested, STATE_NAMES[block.state], block.owner)
            for block in blocks
        ),
        order=blocks[0].order,
    )


def _seed_segment(heap: Heap, segment: Segment) -> None:
    pools = heap if segment.pool_id == SHARED else heap.private_pool(segment.pool_id)
    home = (pools.small if segment.is_small else pools.large).of(segment.stream)
    heap.begin_with(home, segment.total_size, segment.is_expandable)
    reserved = None
    if segment.is_expandable:
        if segment.is_small:
            granule = SMALL_GRANULE
        else:
            granule = heap.settings.large_segment_size
        reserved = ExpandableRange(segment.address, segment.total_size, granule)
    before: Block | None = None
    for view in segment.blocks:
        block = heap.blocks[view.address] = Block(view.address, view.size, home, segment.order)
        block.state, block.owner, block.expandable = STATE_NAMES.index(view.state), view.owner, reserved
        block.before, before = before, block
        if block.before is not None:
            block.before.after = block
        if block.state != FREE:
            block.requested = view.requested_size
    for view in segment.blocks:
        heap.count_seeded(heap.blocks[view.address])
