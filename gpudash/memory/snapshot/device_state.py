"""The content of a device's memory by torch's own memory snapshot."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudash.memory.allocator.layout import BlockView, Segment, allocated_blocks
from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.block_map import block_map
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest
from gpudash.memory.frames import Frame, site_of
from gpudash.memory.snapshot.history.history import python_stack
from gpudash.memory.snapshot.history.model import NONE, Stack
from gpudash.memory.snapshot.history.phases import category_of_role, role_of
from gpudash.memory.snapshot.reading.assembling import segments_of
from gpudash.memory.snapshot.reading.stacks import StackTable
from gpudash.telemetry.explanation import Evidence, site_name


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
    labels = _Labels.of(segments, table.stacks(), born, known)
    blocks = None
    if request is not None:
        blocks = block_map(segments, lambda block: (labels.category(block), labels.line(block)))
    return MemoryState(
        device=f"cuda:{device}",
        product=known.product,
        capacity=known.capacity,
        device_free=known.device_free,
        reserved=sum(segment.total_size for segment in segments),
        groups=_groups(segments, labels, born, known),
        allowed=known.allowed,
        request=request,
        step=known.steps[-1][1] if known.steps else 0,
        time_s=known.time_s,
        recorded=Evidence(len(trace), None, known.began_s),
        blocks=blocks,
    ).with_segments(segments)


@dataclass(frozen=True)
class _Labels:
    """What blocks are for, and which lines allocated them.

    Attributes:
        stacks: of Python, by number; the last one is empty.
        of_stacks: what a block is for by its stack.
        of_addresses: by its address, which comes first.
    """

    stacks: Sequence[tuple[Frame, ...]]
    of_stacks: Sequence[str]
    of_addresses: Mapping[int, str]

    @classmethod
    def of(cls, segments: Sequence[Segment], stacks: Sequence[Stack], born: Mapping[int, int], known: Known) -> _Labels:
        lines = list(map(python_stack, (*stacks, ())))
        categories = [category_of_role(role_of(stack)[0]) for stack in lines]
        unknown = [block for block in allocated_blocks(segments) if block.address not in known.categories]
        nameless = [block for block in unknown if not lines[_stack_of(block)]]
        return cls(lines, categories, {**known.categories, **_workspace(nameless, born, known)})

    def category(self, block: BlockView) -> str:
        return self.of_addresses.get(block.address) or self.of_stacks[_stack_of(block)]

    def line(self, block: BlockView) -> str:
        """The program's line in words; "" where there is none."""
        site = site_of(self.stacks[_stack_of(block)])
        if site is None:
            return ""
        return site_name(site.file, site.line, site.name)


def _groups(
    segments: Sequence[Segment], labels: _Labels, born: Mapping[int, int], known: Known
) -> tuple[AllocationGroup, ...]:
    found: dict[tuple[str, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for block in allocated_blocks(segments):
        step = 0
        if block.address in born:
            step = known.step_at(born[block.address])
        tally = found[labels.category(block), step, _stack_of(block)]
        tally[0] += block.size
        tally[1] += 1
    return tuple(
        AllocationGroup(size, count, category, step, stack=labels.stacks[stack])
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
