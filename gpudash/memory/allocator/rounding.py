"""How sizes are rounded: of blocks, and of segments."""

from __future__ import annotations

from gpudash.memory.allocator.settings import AllocatorSettings

MIB = 2**20
SMALLEST_BLOCK = 512
LARGEST_SMALL = 1 * MIB
SMALL_SEGMENT = 2 * MIB
SMALLEST_DIRECT = 10 * MIB
ROUND_DIRECT = 2 * MIB
# torch's c10/core/AllocatorConfig.h: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kRoundLarge


class Rounding:
    """Sizes of blocks under some settings."""

    __slots__ = ("_divisions", "is_plain")

    def __init__(self, settings: AllocatorSettings) -> None:
        self._divisions = settings.divisions()
        self.is_plain = max(self._divisions) <= 1

    def rounded(self, size: int) -> int:
        """Bytes of a block for ``size`` bytes: the next part of its interval between powers of two, or 512 bytes."""
        # interval 0 holds everything below 2 MiB
        divisions = self._divisions[min(max(size.bit_length() - 21, 0), 15)]
        if divisions <= 1 or size <= SMALLEST_BLOCK * divisions:
            return (size + SMALLEST_BLOCK - 1) & -SMALLEST_BLOCK
        if size & (size - 1) == 0:
            return size
        part = (1 << (size.bit_length() - 1)) // divisions
        return -(-size // part) * part


def segment_size(rounded: int, settings: AllocatorSettings) -> int:
    """Bytes asked of the card for a block of ``rounded`` bytes."""
    if rounded <= LARGEST_SMALL:
        return SMALL_SEGMENT
    if rounded < SMALLEST_DIRECT:
        return settings.large_segment_size
    return (rounded + ROUND_DIRECT - 1) // ROUND_DIRECT * ROUND_DIRECT
