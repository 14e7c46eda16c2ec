"""What an allocator holds, for looking at."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


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

    @property
    def allocated_size(self) -> int:
        """Bytes of allocated blocks."""
        return sum(block.size for block in self.blocks if block.state == "active_allocated")

    @property
    def active_size(self) -> int:
        """Bytes of blocks that are not free."""
        return sum(block.size for block in self.blocks if block.state != "inactive")
