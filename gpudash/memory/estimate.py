"""What is predicted of a run before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.device_memory import LARGEST_CAPACITY
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.fit import PhasePeak, card_of, minimum_room, peaks, run_on
from gpudash.memory.workspace import USUAL_BYTES

CARDS_BYTES = tuple(gib * 2**30 for gib in (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141, 180, 288))
"""Memory of the cards that are sold, as they are called, for naming the smallest that would do."""

HANDED_OUT_RATIO = 0.9
"""What a card of a nominal size has for programs at least: error correction on GDDR takes 1/16 of it, and the driver
keeps some hundred MiB; a T4 of 16 GB tells of 14.6 GiB, an L4 of 24 GB of 22.0 GiB."""


@dataclass(frozen=True)
class Target:
    """Where a run is to fit, in bytes.

    Attributes:
        device: "cpu", "cuda:0", "sim:0".
        capacity_bytes: of the device; ``None`` where it is not known.
        free_bytes: what the run can have now, the idle part of this process's own cache included; ``None`` where it
            is not known.
        overhead_bytes: what the process will take outside the allocator and has not taken yet: the context.
        overhead_words: whether that was measured or is assumed, and on what.
        margin_ratio: how far the true peak may lie from the predicted one, as a part of it; 0 on a simulated device,
            whose memory is the model's own.
        settings: of the allocator.
        workspace_bytes: what torch takes for cuBLAS there in place of `gpudash.memory.workspace.USUAL_BYTES`.
        communication_bytes: how much of `overhead_bytes` is assumed for what connects ranks; 0 for a run on one device.
    """

    device: str
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    overhead_bytes: int = 0
    overhead_words: str = ""
    margin_ratio: float = 0.0
    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    workspace_bytes: int = USUAL_BYTES
    communication_bytes: int = 0

    @property
    def allowed_bytes(self) -> int | None:
        """The share of the card that the allocator's settings let it reserve; ``None`` where they set no limit."""
        fraction = self.settings.per_process_memory_fraction
        return None if fraction == 1 or self.capacity_bytes is None else int(fraction * self.capacity_bytes)

    @property
    def room_bytes(self) -> int | None:
        """What the allocator can have: what is free beside the overhead, within its share of the card."""
        if self.free_bytes is None:
            return None
        free, allowed = self.free_bytes - self.overhead_bytes, self.allowed_bytes
        return free if allowed is None else min(free, allowed)


@dataclass(frozen=True)
class Alternative:
    """A change that would let a run take less memory, with its price.

    Attributes:
        change: in words: "batch 24".
        fields: fields of the spec and their new values; empty when the change is none of the spec.
        device: another device, ``None`` for the same one.
        allocator: setting of the allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` takes it; empty for none.
        card_bytes: nominal memory of another card; ``None`` for the same one.
        memory_cap_bytes: a higher cap on what the allocator may reserve; ``None`` for the same one.
        peak_reserved_bytes: predicted, per GPU; ``None`` when it could not be predicted.
        fits: as of `Estimate`.
        slowdown: expected time per item over that of the unchanged run; ``None`` when nothing can be said.
        slowdown_from: what `slowdown` rests on: "FLOPs of the dry run", "the same products in smaller batches", ""
            when there is none.
        changes_training: whether convergence may differ.
        ranks: devices that the run is spread over instead, with one rank on each; ``None`` for as many as before.
    """

    change: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    allocator: str = ""
    card_bytes: int | None = None
    memory_cap_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    fits: bool | None = None
    slowdown: float | None = None
    slowdown_from: str = ""
    changes_training: bool = False
    ranks: int | None = None


@dataclass(frozen=True)
class RankEstimate:
    """What is predicted of one of several ranks, in bytes; the fields are those of `Estimate`."""

    rank: int
    device: str
    capacity_bytes: int | None
    free_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    minimum_capacity_bytes: int | None
    overhead_bytes: int
    fits: bool | None
    spare_bytes: int | None
    margin_bytes: int


@dataclass(frozen=True)
class Estimate:
    """A prediction, in bytes.

    Attributes:
        peak_allocated_bytes, peak_reserved_bytes: with room to spare; ``None`` when nothing can be said, and reserved
            on the CPU, which has no caching allocator.
        minimum_capacity_bytes: smallest capacity of a card, empty but for this run, on which it passes; ``None`` on the
            CPU, and where the allocator may have nothing of any card.
        overhead_bytes: outside the allocator: the context.
        by_category: what is allocated at the peak; adds up to `peak_allocated_bytes`.
        free_bytes: what the run could have now, before `overhead_bytes`.
        fits: ``None`` within the margin, or when free memory is not known.
        spare_bytes: memory that the run could have and does not take at the peak, negative when short of it.
        margin_bytes: how far the true peak may be off, either way.
        largest_batch_size: of the otherwise same run that fits, on each rank; ``None`` where there is no batch or it is
            not known.
        largest_global_batch: the same of all ranks together; ``None`` for a run on one device.
        first_step_bytes, steady_bytes: peak allocated of the first and the last step.
        method: how it was predicted.
        reason: why there is no prediction; "" when there is one.
        seconds: that predicting took.
        ranks: each rank's figures; empty for a run on one device.
        deciding_rank: the one that has least room, whose figures all the other fields are.
        strategy: "ddp" or "fsdp"; "" for a run on one device.
        communication_bytes: how much of `overhead_bytes` is assumed for what connects the ranks; never measured.
    """

    workload: str
    device: str
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    minimum_capacity_bytes: int | None = None
    overhead_bytes: int = 0
    by_category: Mapping[str, int] = field(default_factory=dict)
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    fits: bool | None = None
    spare_bytes: int | None = None
    margin_bytes: int = 0
    largest_batch_size: int | None = None
    alternatives: tuple[Alternative, ...] = ()
    first_step_bytes: int | None = None
    steady_bytes: int | None = None
    phases: tuple[PhasePeak, ...] = ()
    method: str = ""
    reason: str = ""
    seconds: float = 0.0
    ranks: tuple[RankEstimate, ...] = ()
    deciding_rank: int | None = None
    strategy: str = ""
    communication_bytes: int = 0
    largest_global_batch: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As ``gpudash estimate --json`` prints it."""
        return asdict(self)


METHOD = "dry run on sizes alone{steps}, replayed by a model of torch's caching allocator; {overhead}"


def judge(trace: Trace, target: Target, workload: str) -> Estimate:
    """Whether a traced run fits ``target``, and what it takes."""
    found = peaks(trace, target.settings)
    margin = int(found.reserved * target.margin_ratio)
    least = minimum_room(trace, found.allocated, found.reserved, target.settings)
    fits = None if target.room_bytes is None else _fits(trace, target, target.room_bytes, margin)
    return Estimate(
        workload=workload,
        device=target.device,
        peak_allocated_bytes=found.allocated,
        peak_reserved_bytes=found.reserved,
        minimum_capacity_bytes=_least_card(least, target),
        overhead_bytes=target.overhead_bytes,
        by_category=found.by_category,
        capacity_bytes=target.capacity_bytes,
        free_bytes=target.free_bytes,
        fits=fits,
        spare_bytes=_spare(target.room_bytes, found.reserved, least, fits),
        margin_bytes=margin,
        first_step_bytes=found.first_step,
        steady_bytes=found.steady,
        phases=found.phases,
        method=METHOD.format(steps=_steps_words(trace.followed), overhead=target.overhead_words or "no overhead"),
        communication_bytes=target.communication_bytes,
    )


def fits(trace: Trace, target: Target) -> bool | None:
    """Whether a traced run fits ``target``; ``None`` within the margin or without knowing what is free."""
    if target.room_bytes is None:
        return None
    margin = int(peaks(trace, target.settings).reserved * target.margin_ratio) if target.margin_ratio else 0
    return _fits(trace, target, target.room_bytes, margin)


def smallest_card(needed_bytes: int) -> int | None:
    """Nominal memory in bytes of the smallest card that has as much for programs; ``None`` when there is none so large.

    See `HANDED_OUT_RATIO`.
    """
    return next((size for size in CARDS_BYTES if int(size * HANDED_OUT_RATIO) >= needed_bytes), None)


def _steps_words(followed: int) -> str:
    if not followed:
        return ""
    return f", {followed} step{'' if followed == 1 else 's'} followed"


def _least_card(room: int, target: Target) -> int | None:
    """Capacity of the smallest card on which the allocator can have ``room`` bytes; ``None`` when there is none."""
    fraction = target.settings.per_process_memory_fraction
    if room > fraction * LARGEST_CAPACITY:
        return None
    beside = room + target.overhead_bytes
    return beside if fraction == 1 or not room else max(beside, card_of(room, fraction))


def _fits(trace: Trace, target: Target, room: int, margin: int) -> bool | None:
    if _passes(trace, target, room, -margin):
        return True
    return None if margin and _passes(trace, target, room, margin) else False


def _passes(trace: Trace, target: Target, room: int, more: int) -> bool:
    """Whether a run would pass if there were ``more`` bytes."""
    allowed = target.allowed_bytes
    return run_on(trace, room + more, target.settings, None if allowed is None else allowed + more).fits


def _spare(room: int | None, peak: int, least: int, fits: bool | None) -> int | None:
    """What is left at the peak; for a run that does not fit, how much more the least it needs is than what it can have.

    A run that fits only because cached segments are released in time leaves nothing.
    """
    if room is None:
        return None
    if fits is None or fits:
        return max(0, room - peak)
    return min(-1, room - least)
