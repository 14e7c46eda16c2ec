"""An allocator that is told where a real one placed its blocks."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from gpudash.memory.allocator.blocks import (
    FREE,
    LARGEST_SMALL,
    SMALL_SEGMENT,
    Block,
    ExpandableRange,
    FreeList,
    segment_size,
)
from gpudash.memory.allocator.caching import CachingAllocator
from gpudash.memory.allocator.heap import SMALL_GRANULE, is_free, is_whole


class RecordedAllocator(CachingAllocator):
    """Predicts each placement before it is told the real one, and goes on from the real one."""

    def preview(self, size: int, stream: int, pool: Hashable | None = None) -> int | None:
        """Address that `malloc` would give from what is cached; ``None`` when it would ask the card."""
        home = self._home(size, stream, pool)
        place = self._best(home, self._rounding.rounded(size))
        return None if place < 0 else home.entries[place][1]

    def segment_for(self, size: int) -> int:
        """Bytes that `malloc` would ask of the card for a segment."""
        return segment_size(self._rounding.rounded(size), self.settings)

    def growth_for(self, size: int, address: int, stream: int, pool: Hashable | None = None) -> int:
        """Bytes that `malloc` would map for a request that begins, or goes on from a free block, at ``address``."""
        home = self._home(size, stream, pool)
        before = self._ending_at(address, home)
        missing = self._rounding.rounded(size) - (before.size if before is not None and is_free(before) else 0)
        granule = SMALL_GRANULE if home.pool.is_small else self.settings.large_segment_size
        return -(-missing // granule) * granule

    def is_small(self, size: int) -> bool:
        """Whether a request goes to the small pools."""
        return self._rounding.rounded(size) <= LARGEST_SMALL

    def add_segment(self, address: int, size: int, stream: int, pool: Hashable | None = None) -> None:
        """The real allocator got a segment from the card.

        Raises:
            ValueError: the card has not as much, or something is there.
        """
        if address in self._blocks or not self.memory.take(address, size):
            raise ValueError(f"No segment of {size} bytes can be at {address:#x}.")
        home = self._private(pool, stream, size == SMALL_SEGMENT).of(stream)
        self._heap.put_in(self._heap.add_segment(home, address, size))

    def map_range(self, address: int, size: int, stream: int, is_small: bool, pool: Hashable | None = None) -> None:
        """The real allocator mapped memory into an expandable segment.

        Raises:
            ValueError: the card has not as much, or something is there.
        """
        if address in self._blocks or not self.memory.map(size):
            raise ValueError(f"No {size} bytes can be mapped at {address:#x}.")
        heap, home = self._heap, self._private(pool, stream, is_small).of(stream)
        block = heap.blocks[address] = Block(address, size, home)
        block.expandable = ExpandableRange(address, size, size)
        heap.reserve(home, size)
        block.before, block.after = self._ending_at(address, home), self._beginning_at(address + size, home)
        if block.before is not None:
            block.before.after = block
        if block.after is not None:
            block.after.before = block
        if is_free(block.after) and block.after is not None:
            heap.take_out(block.after)
            heap.swallow(block, block.after)
        if is_free(block.before) and block.before is not None:
            heap.take_out(block.before)
            heap.swallow(block.before, block)
            block = block.before
        heap.put_in(block)
        self._plain = False

    def unmap_range(self, address: int, size: int) -> None:
        """The real allocator gave a part of an expandable segment back.

        Raises:
            ValueError: not all of it is free.
        """
        heap = self._heap
        block = next((b for b in heap.blocks.values() if b.address <= address < b.address + b.size), None)
        if block is None or block.state != FREE or address + size > block.address + block.size:
            raise ValueError(f"The {size} bytes at {address:#x} are not free.")
        heap.take_out(block)
        if block.address < address:
            rest = heap.split(block, address - block.address)
            heap.put_in(block)
            block = rest
        if size < block.size:
            heap.put_in(heap.split(block, size))
        if block.before is not None:
            block.before.after = None
        if block.after is not None:
            block.after.before = None
        del heap.blocks[address]
        self.memory.unmap(size)
        heap.unreserve(block.home, size)

    def _ending_at(self, address: int, home: FreeList) -> Block | None:
        blocks = self._blocks.values()
        return next((b for b in blocks if b.address + b.size == address and b.home is home and b.expandable), None)

    def _beginning_at(self, address: int, home: FreeList) -> Block | None:
        block = self._blocks.get(address)
        return block if block is not None and block.home is home and block.expandable else None

    def _can_grow_to(self, block: Block) -> int:
        if block.after is not None:
            return block.size
        # what is reserved behind the last mapped block is not recorded: more than any card has
        end, home = block.address + block.size, block.home
        behind = (b.address for b in self._blocks.values() if b.home is home and b.expandable and b.address >= end)
        return block.size + min(behind, default=end + 2**62) - end

    def release_segment(self, address: int) -> None:
        """The real allocator gave a segment back.

        Raises:
            ValueError: no wholly free segment begins there.
        """
        block = self._blocks.get(address)
        if block is None or block.state != FREE or not is_whole(block):
            raise ValueError(f"No wholly free segment begins at {address:#x}.")
        self._heap.release_segment(block)

    def releasable(self) -> set[tuple[int, int]]:
        """Address and size of what a retry or ``empty_cache`` would give back."""
        found = set()
        for block in self._blocks.values():
            if block.state == FREE and block.expandable is not None:
                granule = SMALL_GRANULE if block.home.pool.is_small else self.settings.large_segment_size
                origin = self._origin(block)
                begin = origin + -(-(block.address - origin) // granule) * granule
                end = origin + (block.address + block.size - origin) // granule * granule
                if begin < end:
                    found.add((begin, end - begin))
            elif block.state == FREE and is_whole(block):
                found.add((block.address, block.size))
        return found

    def _origin(self, block: Block) -> int:
        """Where the mapped range begins: on a granule."""
        while block.before is not None:
            block = block.before
        return block.address

    def place(self, address: int, size: int, stream: int, pool: Hashable | None = None, owner: Any = None) -> None:
        """The real allocator placed a request at ``address``.

        Raises:
            ValueError: there is no free block for it.
        """
        rounded = self._rounding.rounded(size)
        block = self._free_block_around(self._home(size, stream, pool), address, rounded)
        self._heap.take_out(block)
        if block.address < address:
            rest = self._cut(block, address - block.address)
            self._heap.put_in(block)
            block = rest
        self._hand_out(block, rounded, size, owner)

    def _cut(self, block: Block, size: int) -> Block:
        was_split = not is_whole(block)
        rest = self._heap.split(block, size)
        for pools in block.home.pool.counted:
            if was_split:
                pools.add_split(1, 0)
            else:
                pools.add_split(2, block.size + rest.size)
        return rest

    def _home(self, size: int, stream: int, pool: Hashable | None) -> FreeList:
        return self._private(pool, stream, self._rounding.rounded(size) <= LARGEST_SMALL).of(stream)

    def _free_block_around(self, home: FreeList, address: int, size: int) -> Block:
        found = self._blocks.get(address)
        if found is not None and found.state == FREE and found.size >= size:
            return found
        for _size, begin in home.entries:
            block = self._blocks[begin]
            if begin < address and address + size <= begin + block.size:
                return block
        raise ValueError(f"No free block holds the {size} bytes at {address:#x}.")
