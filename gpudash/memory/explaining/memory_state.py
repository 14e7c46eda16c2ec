"""The content of a device's memory at one moment, as plain data: the input of an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpudash.memory.allocator.blocks import LARGEST_SMALL
from gpudash.memory.allocator.layout import SHARED, Segment
from gpudash.memory.frames import Frame
from gpudash.telemetry.explanation import BlockMap, Evidence, Part

OTHER_TENSORS = "other tensors"
"""Category of memory allocated outside of modules, backward passes and optimizers, or of unknown origin."""

KV_CACHE = "KV cache"
"""Category of a language model's cached keys and values."""


@dataclass(frozen=True, slots=True)
class AllocationGroup:
    """Similar live blocks: allocated in the same step by the same stack for the same purpose.

    Attributes:
        bytes: total size, as rounded by the allocator.
        count: number of blocks.
        category: purpose of the blocks.
        step: step in which they were allocated, from 1; 0 before the first or if unknown.
        phase: "forward", "backward", "optimizer" or "".
        stage: name that the program gave to its activity; "" for none.
        module: dotted class names of the running modules; "" outside of modules.
        stack: innermost line first; empty if not recorded.
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
    """Another process that holds ``size`` bytes of the device; ``pid`` is ``None`` if unknown."""
    return Part("process", name, size, pid, user, command)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Memory on the device besides this process's allocator.

    Attributes:
        processes: other processes.
        context_bytes: this process's memory outside of the allocator; ``None`` if unknown.
    """

    processes: tuple[Part, ...] = ()
    context_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """The request that failed.

    Attributes:
        bytes: size requested from the allocator.
        segment_bytes: size that the allocator requested from the device: at least `bytes`.
        is_context: whether it was for the context, which precedes any tensor.
        step, phase, stage, module, stack: as in `AllocationGroup`.
        is_workspace: whether it was for a cuBLAS workspace.
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
        device: torch's name for it.
        capacity: total memory of the device.
        device_free: free memory by the device's driver.
        reserved: memory reserved by this process's allocator, including private pools.
        context_bytes: this process's memory outside of the allocator; ``None`` if unknown.
        processes: other processes with memory on the device, each a part of kind "process".
        groups: live blocks, including those in private pools.
        pending: freed blocks that another stream still uses.
        private_reserved, private_idle: private pools: their total and their free memory.
        idle: free memory in the shared pools, without `private_idle`.
        usable_idle: part of `idle` in the request's pool and stream.
        largest_free_block: largest free block in `usable_idle`, or in `idle` without a request.
        allowed: limit on what the process may reserve; ``None`` without a limit.
        expandable: whether segments are expandable.
        request: the failed request; ``None`` if none failed.
        step: the current step.
        time_s: session time.
        product: name of the device.
        simulated: whether the device is a simulated one.
        recorded: how much was recorded; recorded live blocks are counted in `groups`.
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
        """Whether this process's cap caused the failure, although the device had room."""
        return self.allowed is not None and self.request is not None and self.request.segment_bytes <= self.device_free

    @property
    def limit(self) -> int:
        """Reference size for the groups: the most that the process may reserve, else the whole device."""
        if self.allowed is None:
            return self.capacity
        return min(self.allowed, self.capacity)

    @property
    def missing(self) -> int:
        """How much more device memory the request needed than was available; 0 without a request."""
        if self.request is None:
            return 0
        left = self.device_free
        if self.allowed is not None:
            left = min(left, self.allowed - self.reserved)
        # Negative if others, or this process under an earlier cap, hold more than they should.
        return max(0, self.request.segment_bytes - max(0, left))

    def with_segments(self, segments: Sequence[Segment], stream: int | None = None) -> MemoryState:
        """A copy with the facts that the allocator's segments add to the live blocks.

        Args:
            segments: segments with their blocks.
            stream: stream of the request; ``None`` if unknown.
        """
        shared = [segment for segment in segments if segment.pool_id == SHARED]
        private = [segment for segment in segments if segment.pool_id != SHARED]
        eligible = shared
        if self.request is not None:
            small = self.request.bytes <= LARGEST_SMALL
            # torch only searches one pool for blocks of one stream: other idle memory is useless for the request.
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
    """Sizes of their blocks in a given state."""
    return [block.size for segment in segments for block in segment.blocks if block.state == state]
