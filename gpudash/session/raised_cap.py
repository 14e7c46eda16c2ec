"""What a cap on the allocator does to the ways out of a shortage that it makes."""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.estimate import Alternative, Estimate, Target
from gpudash.session.remedies import LARGER_CARD
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import MIB, format_bytes


def with_raised_cap(found: Estimate, uncapped: Target, cap: MemoryCap) -> Estimate:
    """``found`` with a higher cap in place of a larger card, which mends nothing where the cap is what is short.

    A run that may reserve as much as it takes with room to spare passes, so that no further replay is needed.

    Args:
        found: what was predicted under ``cap``.
        uncapped: what the device has room for without it.
        cap: the most that torch may reserve.
    """
    allowed, peak = cap.allowed_bytes(uncapped.capacity_bytes), found.peak_reserved_bytes
    if found.fits is True or allowed is None or peak is None or allowed >= peak + found.margin_bytes:
        return found
    ways = [way for way in found.alternatives if not way.change.startswith(LARGER_CARD)]
    needed = -(-(peak + found.margin_bytes) // MIB) * MIB
    if uncapped.room_bytes is not None and needed <= uncapped.room_bytes:
        ways.insert(0, Alternative(f"a memory cap of {format_bytes(needed)}", peak_reserved_bytes=peak, fits=True))
    return replace(found, alternatives=tuple(ways))
