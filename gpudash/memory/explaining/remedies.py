"""What would have let a recorded run get past the request that failed, found by replaying it.

The way out of a shortage that a cap on the allocator makes: a higher cap.
"""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import EXPANDABLE, assignment
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.estimate import Alternative, Estimate
from gpudash.memory.predicting.fit import peaks, run_on
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.units import MIB, format_bytes

REPLAY = "replay"

MOST_EVENTS = 300_000
"""Events that are replayed at most: about a second."""


def replay_remedies(trace: Trace, found: Explanation, settings: AllocatorSettings | None = None) -> tuple[Remedy, ...]:
    """Changes outside of the program with which ``trace``, which ends with the refused request, passes.

    What comes after that request is not in the trace, so that it is not known whether the run would have fitted. A run
    that leaks, or that is too large for what the device has, would only fail later: nothing is said of those.

    Args:
        trace: what the run had asked for.
        found: why it failed.
        settings: of the allocator it ran with.
    """
    if len(trace.events) > MOST_EVENTS:
        return ()
    settings = settings or AllocatorSettings()
    settings = replace(settings, per_process_memory_fraction=1.0)  # the limit is in `found`
    room = found.capacity_bytes - found.part_bytes("process", "context", "unattributed")
    if found.allowed_bytes is not None:
        room = min(room, found.allowed_bytes)
    if found.verdict == "fragmentation" and not settings.expandable_segments:
        expandable = replace(settings, expandable_segments=True)
        if run_on(trace, room, expandable).fits:
            peak = peaks(trace, expandable).reserved
            flags, words = assignment(EXPANDABLE), "expandable segments"
            return (Remedy(words, allocator=EXPANDABLE, flags=flags, predicted_peak_bytes=peak, verified_by=REPLAY),)
    return ()


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
