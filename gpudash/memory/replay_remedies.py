"""What would have let a recorded run get past the request that failed, found by replaying it."""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.environment import EXPANDABLE, assignment
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.explanation import Explanation, Remedy
from gpudash.memory.fit import peaks, run_on

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
