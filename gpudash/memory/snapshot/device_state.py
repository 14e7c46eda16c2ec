"""What torch's own memory snapshot says that a device holds."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudash.memory.allocator.blocks import LARGEST_SMALL
from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.explaining.memory_state import AllocationGroup, Frame, MemoryState, RefusedRequest
from gpudash.memory.snapshot.history.phases import category_of_role
from gpudash.memory.snapshot.history.roles import role_of
from gpudash.telemetry.explanation import Evidence

Stack = tuple[Frame, ...]

ALLOCATED, INACTIVE = "active_allocated", "inactive"
PENDING = ("active_pending_free", "active_awaiting_free")
"""torch writes the first and documents the second."""


@dataclass(frozen=True)
class Known:
    """What is known beside a snapshot.

    Attributes:
        capacity, device_free, allowed: of the device, bytes.
        categories: address → what the block is for.
        steps: times at which steps began, in microseconds since the epoch, and their numbers.
        time_s: session time.
        began_s: session time at which recording began.
        product: what the device is called.
    """

    capacity: int
    device_free: int
    allowed: int | None = None
    categories: Mapping[int, str] = field(default_factory=dict)
    steps: Sequence[tuple[int, int]] = ()
    time_s: float = 0.0
    began_s: float | None = None
    product: str = ""

    def step_at(self, time_us: int) -> int:
        """Number of the step that was on; 0 before the first."""
        at = bisect_right(self.steps, (time_us, 2**62)) - 1
        return self.steps[at][1] if at >= 0 else 0


def held_in(
    snapshot: Mapping[str, Any], device: int, known: Known, request: RefusedRequest | None = None
) -> MemoryState:
    """The state of one device in a snapshot with or without history, as ``torch.cuda.memory._snapshot`` gives it."""
    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    traces = snapshot.get("device_traces") or []
    trace = traces[device] if device < len(traces) else []
    born = {entry["addr"]: entry["time_us"] for entry in trace if entry["action"] == "alloc" and "time_us" in entry}
    shared = [segment for segment in segments if _pool(segment) == SHARED]
    private = [segment for segment in segments if _pool(segment) != SHARED]
    idle = list(_sizes(shared, INACTIVE))
    usable = idle if request is None else list(_sizes(_asked(shared, request), INACTIVE))
    return MemoryState(
        device=f"cuda:{device}",
        product=known.product,
        capacity=known.capacity,
        device_free=known.device_free,
        reserved=sum(segment["total_size"] for segment in segments),
        groups=_groups(segments, born, known),
        pending=sum(size for state in PENDING for size in _sizes(segments, state)),
        private_reserved=sum(segment["total_size"] for segment in private),
        private_idle=sum(_sizes(private, INACTIVE)),
        idle=sum(idle),
        usable_idle=sum(usable),
        largest_free_block=max(usable, default=0),
        allowed=known.allowed,
        expandable=any(segment.get("is_expandable") for segment in segments),
        request=request,
        step=known.steps[-1][1] if known.steps else 0,
        time_s=known.time_s,
        recorded=Evidence(len(trace), None, known.began_s),
    )


def stack_of(frames: Sequence[Mapping[str, Any]]) -> Stack:
    """Python's lines of a recorded stack, innermost first."""
    return tuple(
        Frame(frame["filename"], frame["line"], frame["name"]) for frame in frames if frame["filename"].endswith(".py")
    )


def category_of(stack: Stack) -> str:
    """What is allocated by this stack, by the innermost line that tells."""
    return category_of_role(role_of(stack)[0])


def _groups(
    segments: Sequence[Mapping[str, Any]], born: Mapping[int, int], known: Known
) -> tuple[AllocationGroup, ...]:
    found: dict[tuple[str, int, Stack], list[int]] = defaultdict(lambda: [0, 0])
    for address, block in _blocks(segments):
        if block["state"] != ALLOCATED:
            continue
        stack = stack_of(block.get("frames") or ())
        category = known.categories.get(address) or category_of(stack)
        tally = found[category, known.step_at(born[address]) if address in born else 0, stack]
        tally[0] += block["size"]
        tally[1] += 1
    return tuple(
        AllocationGroup(size, count, category, step, stack=stack)
        for (category, step, stack), (size, count) in found.items()
    )


def _blocks(segments: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Blocks with their addresses, which old snapshots leave to be added up."""
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            yield block.get("address", address), block
            address += block["size"]


def _sizes(segments: Sequence[Mapping[str, Any]], state: str) -> Iterator[int]:
    return (block["size"] for segment in segments for block in segment["blocks"] if block["state"] == state)


def _asked(shared: Sequence[Mapping[str, Any]], request: RefusedRequest) -> list[Mapping[str, Any]]:
    kind = "small" if request.bytes <= LARGEST_SMALL else "large"
    return [segment for segment in shared if segment["segment_type"] == kind]


def _pool(segment: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(segment.get("segment_pool_id", SHARED))
