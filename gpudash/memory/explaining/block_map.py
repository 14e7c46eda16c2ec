"""How blocks lay in an allocator's segments, as columns that an explanation carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpudash.memory.allocator.layout import SHARED, BlockView, Segment
from gpudash.telemetry.explanation import BlockMap

MOST_BLOCKS = 8192
"""Blocks of a map, which is in recordings and in JSON: of more there is none."""

_HELD = ("active_allocated", "active_pending_free")


def block_map(segments: Sequence[Segment], label_of: Callable[[BlockView], tuple[str, str]]) -> BlockMap | None:
    """The map of a device.

    Args:
        segments: with their blocks.
        label_of: what a block is for, and the line that allocated it.

    Returns:
        ``None`` where nothing is held, or too much to be told apart.
    """
    ordered = sorted(segments, key=lambda one: (one.is_small, one.pool_id != SHARED, str(one.pool_id), one.address))
    labels: dict[tuple[str, str], int] = {}
    begins: list[int] = []
    sizes: list[int] = []
    waits: list[bool] = []
    numbers: list[int] = []
    offset = 0
    for segment in ordered:
        for block in segment.blocks:
            if block.state not in _HELD:
                continue
            begins.append(offset + block.address - segment.address)
            sizes.append(block.size)
            waits.append(block.state != "active_allocated")
            numbers.append(labels.setdefault(label_of(block), len(labels)))
        offset += segment.total_size
    if not begins or len(begins) > MOST_BLOCKS:
        return None
    return BlockMap(
        segments=tuple(segment.total_size for segment in ordered),
        begin=tuple(begins),
        bytes=tuple(sizes),
        waits=tuple(waits),
        label=tuple(numbers),
        categories=tuple(category for category, _line in labels),
        lines=tuple(line for _category, line in labels),
    )
