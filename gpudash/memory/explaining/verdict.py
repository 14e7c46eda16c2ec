"""The one cause of an out-of-memory: rules by the numbers, in the order in which they exclude each other.

What is idle at a failure is fragmentation in the true sense: before an allocator gives up it has released every segment
that is wholly free (c10/cuda/CUDACachingAllocator.cpp, `release_cached_blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gpudash.memory.explaining.memory_state import MemoryState
from gpudash.telemetry.explanation import Growth, Verdict

SHARE_OF_FRAGMENTS = 0.1
"""Part of what is reserved that must be idle for fragments to be the cause: a few MiB in pieces always are."""

SHARE_OF_OTHERS = 0.25
"""Part of the capacity that other processes must hold to be the cause, where this process would have had it."""

SHARE_OF_LEAK = 0.25
"""Part of the live bytes that growing lines must hold to be the cause."""


def verdict(state: MemoryState, growing: Sequence[Growth]) -> Verdict:
    """Why the request of ``state`` was refused; "headroom" when nothing was.

    In this order: no device of this size could serve it; it would fit in what lies in pieces, and more does so than
    grows; lines of the program keep something of every step; other processes hold what is missing, and more than a
    trifle; freed memory waits for a stream; private pools hold it idle; else it is the cap on this process, or the
    capacity.
    """
    request = state.request
    if request is None:
        return "headroom"
    if request.segment_bytes > attainable(state):
        return "impossible request"
    missing = max(1, state.missing)
    grown = sum(growth.bytes for growth in growing)
    if _in_pieces(state, request.bytes) and state.usable_idle > grown:
        return "fragmentation"
    if grown >= SHARE_OF_LEAK * max(1, state.allocated):
        return "leak"
    others = sum(process.bytes for process in state.processes)
    if others >= missing and others >= SHARE_OF_OTHERS * state.capacity and not state.capped:
        return "other process"
    if state.pending >= missing:
        return "pending frees"
    if state.private_idle >= missing:
        return "private pools"
    return "memory cap" if state.capped else "real capacity"


def attainable(state: MemoryState) -> int:
    """The most that the allocator could ever reserve, in bytes: the limit is its own, the context lies beside it."""
    beside = state.capacity - (state.context_bytes or 0)
    return beside if state.allowed is None else min(beside, state.allowed)


def _in_pieces(state: MemoryState, requested: int) -> bool:
    enough = state.usable_idle >= requested > state.largest_free_block
    return enough and state.usable_idle >= SHARE_OF_FRAGMENTS * state.reserved
