"""Workspace of memory-efficient attention's backward pass, by the kernel that torch selects for it."""

from __future__ import annotations

from typing import NamedTuple

KEYS_OF_A_PART = 64
MOST_PARTS = 200
"""The most parts of all heads together, each with buffers for its gradients (``num_splits_key`` of
attention_backward.cu)."""

LOCK_BYTES = 16
"""A lock and a counter per tile (``GradQTempStorage`` of kernel_backward.h)."""

LARGE_SHARED_MEMORY = ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
"""Compute capabilities with more than 100 KB of shared memory per block, which use larger tiles."""


class _Tile(NamedTuple):
    """What a kernel processes at once.

    Attributes:
        rows, columns: of the queries' gradient.
        holds_keys: whether gradients of keys and values do not fit into registers.
    """

    rows: int
    columns: int
    holds_keys: bool = False


def backward_room_bytes(
    heads: int, length: int, keys: int, width: int, *, is_half: bool, capability: tuple[int, int]
) -> int:
    """Buffer for accumulating float32 gradients, in bytes.

    Args:
        heads: over the whole batch.
        length, keys: how many queries and keys a head has.
        width: of a head.
        is_half: whether the inputs are float16 or bfloat16.
        capability: compute capability of the card.
    """
    tile = _backward_tile(width, is_half, capability)
    # each tile of the queries' gradient has its numbers, a lock and a counter
    size = -(-length // tile.rows) * -(-width // tile.columns) * (tile.rows * tile.columns * 4 + LOCK_BYTES)
    if tile.holds_keys:
        # each part of the keys has buffers for its gradients and those of the values
        parts = max(1, min(-(-keys // KEYS_OF_A_PART), MOST_PARTS // heads))
        size += parts * 2 * KEYS_OF_A_PART * -(-width // tile.rows) * tile.rows * 4
    return heads * size


def _backward_tile(width: int, is_half: bool, capability: tuple[int, int]) -> _Tile:
    """The tile of the first kernel in cutlassB.h for this head width whose shared memory the card has."""
    if width <= 64:
        return _Tile(64, 64)
    is_large = capability in LARGE_SHARED_MEMORY
    if not is_half and is_large:
        return _Tile(128, 64)
    if not is_half:
        return _Tile(64, 64)
    if width > 128:
        return _Tile(128, 64, holds_keys=True)
    if is_large:
        return _Tile(128, 128)
    if capability < (8, 0) or (width <= 96 and capability < (12, 0)):
        return _Tile(128, 64)
    return _Tile(64, 64, holds_keys=True)
