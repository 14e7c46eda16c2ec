"""Traces that more than one test replays."""

from __future__ import annotations

from gpudash.memory.allocator.trace import ACTIVATIONS, Trace
from gpudash.units import MIB


def holes() -> Trace:
    """Three segments of 30, 32 and 34 MiB, of each of which the last 2 MiB are kept, and then 40 MiB."""
    trace = Trace()
    for size in (30 * MIB, 32 * MIB, 34 * MIB):
        first = len(trace.sizes) + 1
        trace.sizes.extend((size, size - 2 * MIB, 2 * MIB))
        trace.events.extend((first, -first, first + 1, first + 2, -first - 1))
    trace.sizes.append(40 * MIB)
    trace.events.append(10)
    trace.categories.extend([ACTIVATIONS] * 10)
    return trace
