"""The segments and blocks of an allocator in the form of a snapshot, read from it and put back into it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpudash.memory.allocator.blocks import FREE, STATE_NAMES, Block, ExpandableRange, PrivatePool
from gpudash.memory.allocator.heap import SMALL_GRANULE, Heap

SHARED = (0, 0)
"""The identity torch gives to pools without an owner."""


def segments(heap: Heap) -> list[Segment]:
    """All segments of the heap, by address."""
    return list(map(_view, heap.blocks_in_segments()))


def seed(heap: Heap, given: Iterable[Segment]) -> None:
    """Fill an empty heap with segments. Its statistics start from them.

    Raises:
        ValueError: the heap is not empty, or the card has too little memory.
    """
    if heap.blocks:
        raise ValueError("The allocator holds memory already, so that it cannot be given a recorded layout.")
    by_address = sorted(given, key=lambda segment: segment.address)
    if heap.settings.oldest_first and not any(segment.order for segment in by_address):
        # the order of creation is not recorded, but the driver's addresses fall
        count = len(by_address)
        by_address = [replace(segment, order=count - place) for place, segment in enumerate(by_address)]
    # segments created later are younger than all of these
    heap.orders = max((segment.order for segment in by_address), default=0)
    for segment in by_address:
        if not heap.memory.take(segment.address, segment.total_size):
            raise ValueError(
                f"The recorded layout does not fit: the card has {heap.memory.free_bytes} bytes free and its segment "
                f"at {segment.address:#x} has {segment.total_size}."
            )
        _seed_segment(heap, segment)
    # in this order: peaks start at the current level, and accumulated figures at zero
    heap.statistics.reset_peak()
    heap.statistics.reset_accumulated()


@dataclass(frozen=True)
class BlockView:
    """A block as a snapshot describes it; sizes in bytes.

    Attributes:
        state: ``active_allocated``, ``active_pending_free`` or ``inactive``.
        owner: what the caller passed with the request.
    """

    address: int
    size: int
    requested_size: int
    state: str
    owner: Any = None


@dataclass(frozen=True)
class Segment:
    """A segment as a snapshot describes it: one cudaMalloc, or one mapped range of an expandable segment."""

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


def allocated_blocks(segments: Iterable[Segment]) -> Iterator[BlockView]:
    """The blocks that are in use, without those that are free or wait for a stream."""
    for segment in segments:
        yield from (block for block in segment.blocks if block.state == "active_allocated")


def _view(blocks: list[Block]) -> Segment:
    home = blocks[0].home
    pool_id: Hashable = SHARED
    if home.pool.private is not None:
        pool_id = home.pool.private.identity
    views = []
    for block in blocks:
        state = STATE_NAMES[block.state]
        views.append(BlockView(block.address, block.size, block.requested, state, block.owner))
    return Segment(
        address=blocks[0].address,
        total_size=sum(block.size for block in blocks),
        stream=home.stream,
        is_small=home.pool.is_small,
        pool_id=pool_id,
        is_expandable=blocks[0].expandable is not None,
        blocks=tuple(views),
        order=blocks[0].order,
    )


def _seed_segment(heap: Heap, segment: Segment) -> None:
    pools: Heap | PrivatePool = heap
    if segment.pool_id != SHARED:
        pools = heap.private_pool(segment.pool_id)
    pool = pools.large
    if segment.is_small:
        pool = pools.small
    home = pool.of(segment.stream)
    heap.begin_with(home, segment.total_size, segment.is_expandable)
    reserved = None
    if segment.is_expandable:
        if segment.is_small:
            granule = SMALL_GRANULE
        else:
            granule = heap.settings.large_segment_size
        # a snapshot lists what is mapped but not the addresses behind it: here the range ends with the last mapping
        reserved = ExpandableRange(segment.address, segment.total_size, granule)
    before: Block | None = None
    for view in segment.blocks:
        block = heap.blocks[view.address] = Block(view.address, view.size, home, segment.order)
        block.state = STATE_NAMES.index(view.state)
        block.owner = view.owner
        block.expandable = reserved
        if before is not None:
            block.before = before
            before.after = block
        before = block
        if block.state != FREE:
            block.requested = view.requested_size
    # only now, because a free block's neighbours show whether it is part of a larger segment
    for view in segment.blocks:
        heap.count_seeded(heap.blocks[view.address])
