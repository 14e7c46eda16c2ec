"""What a device's memory held at one moment, as plain data: what an explanation is worked out from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpudash.memory.allocator.blocks import LARGEST_SMALL
from gpudash.memory.allocator.layout import SHARED, Segment
from gpudash.memory.frames import Frame
from gpudash.telemetry.explanation import BlockMap, Evidence, Part

OTHER_TENSORS = "other tensors"
"""Category of what is allocated outside of modules, backward passes and optimizers, or of unknown origin."""

KV_CACHE = "KV cache"
"""Category of the keys and values that a language model keeps of the tokens it has seen."""


@dataclass(frozen=True, slots=True)
class AllocationGroup:
    """Live blocks that are alike: allocated in the same step by the same stack, for the same purpose.

    Attributes:
        bytes: of the blocks, rounded as the allocator rounds them.
        count: of blocks.
        category: what they are for.
        step: number of the step they were allocated in, from 1; 0 before the first or when it is not known.
        phase: "forward", "backward", "optimizer" or "".
        stage: name the program gave to what it was doing; "" when it gave none.
        module: dotted class names of the modules that were running; "" outside of them.
        stack: innermost line first; empty when it was not recorded.
    """

    bytes: int
    count: int
    category: str = OTHER_TENSORS
    step: int = 0
    phase: str = ""
    stage: str = ""
    module: str = ""
    stack: tuple[Frame, ...] = ()


def other_process(size: int, pid: int | None = None, name: str = "", user: str = "", command: str = "") -> Part:
    """Another process that holds ``size`` bytes of the device; ``pid`` is ``None`` when it is not known which."""
    return Part("process", name, size, pid, user, command)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What holds memory of the device beside this process's allocator.

    Attributes:
        processes: the other processes.
        context_bytes: of this process, outside of the allocator; ``None`` when it is not known.
    """

    processes: tuple[Part, ...] = ()
    context_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """The request that could not be served.

    Attributes:
        bytes: asked of the allocator.
        segment_bytes: asked of the device for it: at least `bytes`.
        is_context: whether it was the context's, which comes before any tensor.
        step, phase, stage, module, stack: as of `AllocationGroup`.
        is_workspace: whether it was for what cuBLAS works in.
    """

    bytes: int
    segment_bytes: int
    step: int = 0
    phase: str = ""
    stage: str = ""
    module: str = ""
    stack: tuple[Frame, ...] = ()
    is_context: bool = False
    is_workspace: bool = False


@dataclass(frozen=True)
class MemoryState:
    """One device's memory at one moment; sizes in bytes.

    Attributes:
        device: torch's name of it.
        capacity: of the device.
        device_free: what the device's driver calls free.
        reserved: by this process's allocator, private pools included.
        context_bytes: that this process takes outside of the allocator; ``None`` when it is not known.
        processes: the others that hold memory there, each a part of kind "process".
        groups: live blocks; those of private pools included.
        pending: freed, but in use by another stream.
        private_reserved, private_idle: of private pools: all they hold, and what is free of it.
        idle: free in the shared pools, `private_idle` not included.
        usable_idle: the part of it that the request could have come from: the pool and the stream it asked.
        largest_free_block: of `usable_idle`; of `idle` without a request.
        allowed: what the process may reserve, ``None`` without a limit.
        expandable: whether segments can grow.
        request: what was refused, ``None`` when nothing was.
        step: the present one.
        time_s: session time.
        product: what the device is called.
        simulated: whether the device is a simulated one.
        recorded: how much of what happened was seen; what is live of it is counted in `groups`.
        blocks: how they lay when the request was refused; ``None`` where that was not kept.
    """

    device: str
    capacity: int
    device_free: int
    reserved: int
    context_bytes: int | None = None
    processes: Sequence[Part] = ()
    groups: Sequence[AllocationGroup] = ()
    pending: int = 0
    private_reserved: int = 0
    private_idle: int = 0
    idle: int = 0
    usable_idle: int = 0
    largest_free_block: int = 0
    allowed: int | None = None
    expandable: bool = False
    request: RefusedRequest | None = None
    step: int = 0
    time_s: float = 0.0
    product: str = ""
    simulated: bool = False
    recorded: Evidence = field(default_factory=Evidence)
    blocks: BlockMap | None = None

    @property
    def allocated(self) -> int:
        """Bytes of live blocks."""
        return sum(group.bytes for group in self.groups)

    @property
    def capped(self) -> bool:
        """Whether the limit of this process refused the request, which the device had room for."""
        return self.allowed is not None and self.request is not None and self.request.segment_bytes <= self.device_free

    @property
    def limit(self) -> int:
        """What groups are held against: the most that the process may reserve, else the whole device."""
        if self.allowed is None:
            return self.capacity
        return min(self.allowed, self.capacity)

    @property
    def missing(self) -> int:
        """How much more the request needed of the device than could be had; 0 without one."""
        if self.request is None:
            return 0
        left = self.device_free
        if self.allowed is not None:
            left = min(left, self.allowed - self.reserved)
        # below 0 where others, or this process under a former cap, hold more than there should be
        return max(0, self.request.segment_bytes - max(0, left))

    def with_segments(self, segments: Sequence[Segment], stream: int | None = None) -> MemoryState:
        """The same with what the allocator's segments tell beside the live blocks.

        Args:
            segments: with their blocks.
            stream: that the request was for; ``None`` where that is not known.
        """
        shared = [segment for segment in segments if segment.pool_id == SHARED]
        private = [segment for segment in segments if segment.pool_id != SHARED]
        eligible = shared
        if self.request is not None:
            small = self.request.bytes <= LARGEST_SMALL
            # torch looks for a free block in one pool and of one stream only: idle memory elsewhere is of no
            # use to the request
            eligible = [s for s in shared if s.is_small == small and stream in (None, s.stream)]
        usable = _of_state("inactive", eligible)
        return replace(
            self,
            pending=sum(_of_state("active_pending_free", segments)),
            private_reserved=sum(segment.total_size for segment in private),
            private_idle=sum(_of_state("inactive", private)),
            idle=sum(_of_state("inactive", shared)),
            usable_idle=sum(usable),
            largest_free_block=max(usable, default=0),
            expandable=any(segment.is_expandable for segment in segments),
        )


def _of_state(state: str, segments: Sequence[Segment]) -> list[int]:
    """Bytes of each of their blocks that is in a state."""
    return [block.size for segment in segments for block in segment.blocks if block.state == state]
