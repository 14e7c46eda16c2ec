"""The content of a device's memory by torch's own memory snapshot."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudash.memory.allocator.layout import BlockView, Segment
from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest
from gpudash.memory.snapshot.history.history import python_stack
from gpudash.memory.snapshot.history.model import NONE, Stack
from gpudash.memory.snapshot.history.phases import category_of_role, role_of
from gpudash.memory.snapshot.reading.assembling import segments_of
from gpudash.memory.snapshot.reading.stacks import StackTable
from gpudash.telemetry.explanation import Evidence


@dataclass(frozen=True)
class Known:
    """Facts that a snapshot does not contain.

    Attributes:
        capacity, device_free, allowed: of the device, in bytes, as in `MemoryState`.
        categories: address → purpose of the block.
        steps: start times of steps, in microseconds since the epoch, and their numbers.
        time_s: session time.
        began_s: session time at which recording began.
        product: name of the device.
        workspace_bytes: size of cuBLAS's workspace, by which a backward pass's is recognised, whose thread has no
            Python frames; ``None`` to ignore workspaces.
    """

    capacity: int
    device_free: int
    allowed: int | None = None
    categories: Mapping[int, str] = field(default_factory=dict)
    steps: Sequence[tuple[int, int]] = ()
    time_s: float = 0.0
    began_s: float | None = None
    product: str = ""
    workspace_bytes: int | None = None

    def step_at(self, time_us: int) -> int:
        """Number of the step at that time; 0 before the first."""
        at = bisect_right(self.steps, (time_us, 2**62)) - 1
        if at >= 0:
            return self.steps[at][1]
        return 0


def held_in(
    snapshot: Mapping[str, Any], device: int, known: Known, request: RefusedRequest | None = None
) -> MemoryState:
    """The state of a device in a snapshot with or without history, as from ``torch.cuda.memory._snapshot``.

    Raises:
        ValueError: if its structure is different.
    """
    table = StackTable()
    segments = segments_of([found for found in snapshot["segments"] if found["device"] == device], table).get(
        device, []
    )
    traces = snapshot.get("device_traces") or []
    trace = []
    if device < len(traces):
        trace = traces[device]
    born = {entry["addr"]: entry["time_us"] for entry in trace if entry["action"] == "alloc" and "time_us" in entry}
    return MemoryState(
        device=f"cuda:{device}",
        product=known.product,
        capacity=known.capacity,
        device_free=known.device_free,
        reserved=sum(segment.total_size for segment in segments),
        groups=_groups(segments, table.stacks(), born, known),
        allowed=known.allowed,
        request=request,
        step=known.steps[-1][1] if known.steps else 0,
        time_s=known.time_s,
        recorded=Evidence(len(trace), None, known.began_s),
    ).with_segments(segments)


def _groups(
    segments: Sequence[Segment], stacks: Sequence[Stack], born: Mapping[int, int], known: Known
) -> tuple[AllocationGroup, ...]:
    lines = [python_stack(stack) for stack in (*stacks, ())]
    categories = [category_of_role(role_of(stack)[0]) for stack in lines]
    found: dict[tuple[str, int, int], list[int]] = defaultdict(lambda: [0, 0])
    live = [block for segment in segments for block in segment.blocks if block.state == "active_allocated"]
    nameless = [block for block in live if block.address not in known.categories and not lines[_stack_of(block)]]
    of_addresses = {**known.categories, **_workspace(nameless, born, known)}
    for block in live:
        stack = _stack_of(block)
        step = 0
        if block.address in born:
            step = known.step_at(born[block.address])
        tally = found[of_addresses.get(block.address) or categories[stack], step, stack]
        tally[0] += block.size
        tally[1] += 1
    return tuple(
        AllocationGroup(size, count, category, step, stack=lines[stack])
        for (category, step, stack), (size, count) in found.items()
    )


def _stack_of(block: BlockView) -> int:
    if isinstance(block.owner, int):
        return block.owner
    return NONE


def _workspace(nameless: Sequence[BlockView], born: Mapping[int, int], known: Known) -> dict[int, str]:
    """The oldest block of the workspace's size without Python frames: it stays until the end, while later ones of that
    size are temporary gradients."""
    alike = [block.address for block in nameless if block.requested_size == known.workspace_bytes]
    if alike:
        return {min(alike, key=lambda address: born.get(address, 0)): WORKSPACE}
    return {}
