"""The way out of a shortage that a cap on the allocator makes: a higher cap."""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.estimate import Alternative, Estimate
from gpudash.units import MIB, format_bytes


def raised_cap(found: Estimate, allowed: int, room: int | None) -> Alternative | None:
    """The cap under which a run passes; ``None`` where the cap is not what is short, or the device is short too.

    A run that may reserve as much as it takes with room to spare passes, so that no further replay is needed.

    Args:
        found: what was predicted under the present cap.
        allowed: the present cap, bytes.
        room: bytes the allocator could have without it; ``None`` where that is not known.
    """
    peak = _spacious(found)
    if peak is None or room is None or allowed >= peak + found.margin_bytes:
        return None
    cap = -(-(peak + found.margin_bytes) // MIB) * MIB
    if cap > room:
        return None
    words = f"a memory cap of {format_bytes(cap)}"
    return Alternative(words, memory_cap_bytes=cap, peak_reserved_bytes=peak, fits=True)


def with_raised_cap(found: Estimate, allowed: int | None, room: int | None) -> Estimate:
    """``found`` with a higher cap in place of a larger card, which mends nothing where the cap is what is short.

    Args:
        found, allowed, room: as of `raised_cap`; ``allowed`` is ``None`` without a cap.
    """
    peak = _spacious(found)
    if found.fits is True or allowed is None or peak is None or allowed >= peak + found.margin_bytes:
        return found
    raised = raised_cap(found, allowed, room)
    ways = tuple(way for way in found.alternatives if way.card_bytes is None)
    return replace(found, alternatives=ways if raised is None else (raised, *ways))


def _spacious(found: Estimate) -> int | None:
    """What is reserved with room to spare."""
    return None if found.peak_reserved_bytes is None else found.peak_reserved_bytes + found.released_bytes
