"""What a predicted run holds after each of its requests, and for what: the curve whose highest point is its estimate.

It crosses from the process that predicts as columns: see `MemoryTimeline.to_json`.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator.trace import CATEGORIES, WORKSPACE, Trace
from gpudash.memory.predicting.estimate import Estimate, Target
from gpudash.memory.predicting.fit import allocator_for, reads_its_share

Integers = NDArray[np.int64]

PHASES = ("", "forward", "backward", "optimizer")

_COLUMNS = ("changes", "kinds", "reserved", "marks", "copies")


@dataclass(frozen=True, eq=False)
class MemoryTimeline:
    """The requests of a run in order, as an allocator that has just enough room serves them. Sizes are bytes.

    Attributes:
        changes: by how much each changes what is allocated, shape (n,); below 0 for a free.
        kinds: what each is for, as places in `CATEGORIES`, shape (n,).
        reserved: what the allocator holds after each, shape (n,); what is allocated where it has no cache, on the CPU.
        marks: where phases begin, shape (m, 3): the first request of each, its step (0 before the first), and its place
            in `PHASES`.
        copies: between the host and the card, shape (k, 4): how many requests come before each, its step, bytes, and
            whether it leaves the card.
        in_use: what others hold of the device, and this process by now.
        overhead: what comes to lie outside the allocator.
    """

    changes: Integers
    kinds: Integers
    reserved: Integers
    marks: Integers
    copies: Integers
    in_use: int
    overhead: int

    def allocated(self) -> dict[str, Integers]:
        """What is allocated for each category after each request, in the order of `CATEGORIES`; none that never is."""
        found = {}
        for place, name in enumerate(CATEGORIES):
            of_it = self.kinds == place
            if of_it.any():
                found[name] = np.cumsum(np.where(of_it, self.changes, 0))
        return found

    def to_json(self) -> dict[str, Any]:
        """As another process can read it, see `from_json`: columns of 8 bytes a value, packed."""
        columns = {name: _packed(getattr(self, name)) for name in _COLUMNS}
        return {**columns, "in_use": self.in_use, "overhead": self.overhead}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> MemoryTimeline:
        """The timeline that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: when it did not.
        """
        columns = {name: _unpacked(written[name]) for name in _COLUMNS}
        columns["marks"] = columns["marks"].reshape(-1, 3)
        columns["copies"] = columns["copies"].reshape(-1, 4)
        if len({len(columns[name]) for name in _COLUMNS[:3]}) > 1:
            raise ValueError("The columns of a timeline differ in length.")
        return cls(**columns, in_use=int(written["in_use"]), overhead=int(written["overhead"]))


def timeline_of(trace: Trace, target: Target, found: Estimate) -> MemoryTimeline:
    """What a traced run holds on ``target``, of which ``found`` was predicted.

    Its highest point is `Estimate.needed_bytes`: a run that passes is replayed in the room there is, with the releasing
    that this makes necessary; one that does not in the least with which it would, so that what lies above the room is
    what is short.
    """
    cpu = target.device == "cpu"
    if cpu:
        trace = trace.without(WORKSPACE)
    room: int | None = None
    allowed: int | None = None
    if not cpu:
        room, allowed = _room(target, found)
    allocator = allocator_for(trace, target.settings, room, allowed)
    held: dict[int, tuple[int, int]] = {}
    changes, reserved = array("q"), array("q")
    allocated = 0
    emptied = set(trace.emptied)
    for index, event in enumerate(trace.events):
        if index in emptied:
            allocator.empty_cache()
        if event > 0:
            address = allocator.malloc(trace.sizes[event - 1], trace.streams.get(event, 0))
            size = allocator.allocated_bytes - allocated
            held[event] = address, size
        else:
            address, size = held.pop(-event)
            allocator.free(address)
            size = -size
        allocated += size
        changes.append(size)
        reserved.append(allocated if cpu else allocator.reserved_bytes)
    places = {name: place for place, name in enumerate(CATEGORIES)}
    kinds = [places[trace.categories[abs(event) - 1]] for event in trace.events]
    marks = [(mark.at, mark.step, PHASES.index(mark.phase) if mark.phase in PHASES else 0) for mark in trace.marks]
    return MemoryTimeline(
        np.array(changes, np.int64),
        np.array(kinds, np.int64),
        np.array(reserved, np.int64),
        np.array(marks, np.int64).reshape(-1, 3),
        # On the CPU there is nothing to be copied to.
        np.array([] if cpu else trace.copies, np.int64).reshape(-1, 4),
        in_use=_in_use(target),
        overhead=target.overhead_bytes,
    )


def _room(target: Target, found: Estimate) -> tuple[int | None, int | None]:
    """The room in which a run is replayed, and what its share of the card allows it, as of `run_on`; ``None`` for a
    card without end."""
    room, need = target.room_bytes, found.needed_bytes
    if room is None or need is None:
        return None, None
    least = need - found.overhead_bytes
    if least <= room:
        return room, target.allowed_bytes
    if reads_its_share(target.settings):
        return least, least
    return least, None


def _in_use(target: Target) -> int:
    """On the CPU a run's tensors stand for themselves: the system gives its memory away and takes it back."""
    if target.device == "cpu" or target.capacity_bytes is None or target.free_bytes is None:
        return 0
    return max(0, target.capacity_bytes - target.free_bytes)


def _packed(column: Integers) -> str:
    return base64.b85encode(zlib.compress(column.astype("<i8").tobytes(), 1)).decode("ascii")


def _unpacked(written: str) -> Integers:
    try:
        found = np.frombuffer(zlib.decompress(base64.b85decode(written)), "<i8")
    except zlib.error as error:
        raise ValueError(f"A column of a timeline cannot be read: {error}.") from error
    return found.astype(np.int64)
