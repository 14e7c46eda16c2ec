"""Do a trace and the segments at its end agree? Found for all addresses at once, without replaying."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator import Segment
from gpudash.memory.snapshot.model import ALLOC, FREE_COMPLETED, FREE_REQUESTED, Columns

_BEFORE = {ALLOC: FREE_COMPLETED, FREE_REQUESTED: ALLOC, FREE_COMPLETED: FREE_REQUESTED}
"""What has to have happened at an address before; nothing, at the first event, is always right."""

_STATES = {"active_allocated": ALLOC, "active_pending_free": FREE_REQUESTED}


def contradictions(
    device: int, columns: Columns, segments: Sequence[Segment], stated_allocated: int | None = None
) -> list[str]:
    """In one sentence each, in what segments and trace contradict themselves and each other.

    Args:
        device: index in the file, for the sentence.
        columns: the events.
        segments: after the last of them.
        stated_allocated: bytes that the segments themselves say are allocated.
    """
    found = []
    overlap = _overlap(segments)
    if overlap is not None:
        found.append(f"The segments of device {device} cannot all be there: {overlap}")
    allocated = sum(segment.allocated_size for segment in segments)
    if stated_allocated is not None and stated_allocated != allocated:
        found.append(
            f"The segments of device {device} say that {stated_allocated:,} bytes are allocated, their blocks that "
            f"{allocated:,} are."
        )
    disagreement = _disagreement(device, columns, segments)
    return found if disagreement is None else [*found, disagreement]


def _disagreement(device: int, columns: Columns, segments: Sequence[Segment]) -> str | None:
    events = np.flatnonzero(columns.action <= FREE_COMPLETED)
    order = events[np.argsort(columns.address[events], kind="stable")]
    action, address = columns.action[order], columns.address[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = address[1:] != address[:-1]
    expected = np.array([_BEFORE[ALLOC], _BEFORE[FREE_REQUESTED], _BEFORE[FREE_COMPLETED]])[action]
    wrong = ~is_first
    wrong[1:] &= action[:-1] != expected[1:]
    if wrong.any():
        return _sentence(device, columns, int(order[wrong].min()), "does not follow from what was there before it")
    wrong = _differs_at_end(action, address, is_first, segments)
    if wrong.any():
        return _sentence(device, columns, int(order[wrong].max()), "is not what the segments at the end show")
    return None


def _differs_at_end(
    action: NDArray[np.uint8], address: NDArray[np.int64], is_first: NDArray[np.bool_], segments: Sequence[Segment]
) -> NDArray[np.bool_]:
    """Which events, the last ones at their address, leave it in another state than the segments have it."""
    blocks = [block for segment in segments for block in segment.blocks if block.state in _STATES]
    begins = np.array(sorted(block.address for block in blocks), np.int64)
    state_at = {block.address: _STATES[block.state] for block in blocks}
    states = np.array([state_at[begin] for begin in begins.tolist()], np.int64)
    is_last = np.ones(len(action), bool)
    is_last[:-1] = is_first[1:]
    place = np.searchsorted(begins, address)
    there = np.zeros(len(action), bool)
    inside = place < len(begins)
    there[inside] = begins[place[inside]] == address[inside]
    now = np.full(len(action), FREE_COMPLETED)
    now[there] = states[place[there]]
    differs: NDArray[np.bool_] = is_last & (now != action)
    return differs


def _overlap(segments: Sequence[Segment]) -> str | None:
    end = 0
    for segment in sorted(segments, key=lambda segment: segment.address):
        if segment.address < end:
            return f"the one at {segment.address:#x} begins within another."
        place = segment.address
        for block in segment.blocks:
            if block.address != place:
                return f"the blocks of the one at {segment.address:#x} do not lie one after the other."
            place += block.size
        end = segment.address + segment.total_size
        if segment.blocks and place != end:
            return f"the blocks of the one at {segment.address:#x} do not add up to its size."
    return None


def _sentence(device: int, columns: Columns, event: int, words: str) -> str:
    return (
        f"The trace and the segments of device {device} disagree: event {event:,}, "
        f"`{columns.actions[columns.action[event]]}` of {int(columns.size[event]):,} bytes at "
        f"{int(columns.address[event]):#x}, {words}; levels and owners are shown as far as they can be known."
    )
