"""What is predicted of a run before it starts, and what is known of a model that is predicted by its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from gpudash.devices.card_performance import LANE_BYTES_PER_SECOND
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.device_memory import LARGEST_CAPACITY
from gpudash.memory.allocator.trace import ACTIVATIONS, INPUTS, TEMPORARY, WORKSPACE, ConvolutionScratch, Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.fit import (
    Outcome,
    Peaks,
    PhasePeak,
    card_of,
    minimum_room,
    peaks,
    reads_its_share,
    run_on,
)
from gpudash.speed.work import StepWork
from gpudash.telemetry.explanation import RunChange
from gpudash.units import format_bytes

CARDS_BYTES = tuple(gib * 2**30 for gib in (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141, 180, 288))
"""Memory of the cards that are sold, as they are called, for naming the smallest that would do."""

HANDED_OUT_RATIO = 0.9
"""What a card of a nominal size has for programs at least: error correction on GDDR takes 1/16 of it, and the driver
keeps some hundred MiB; a T4 of 16 GB tells of 14.6 GiB, an L4 of 24 GB of 22.0 GiB."""

GROWING = (ACTIVATIONS, INPUTS, TEMPORARY)
"""What grows with a batch or a sequence."""

METHOD = "dry run on sizes alone{steps}, {how}; {overhead}"
REPLAYED = "replayed by a model of torch's caching allocator"
ADDED_UP = "tensors added up"

LANES = 16
"""Of the link of a card that is alone in its slot."""


@dataclass(frozen=True)
class Target:
    """Where a run is to fit, in bytes.

    Attributes:
        device: "cpu", "cuda:0", "sim:0".
        product: what it is; "" where that is not known.
        capacity_bytes: of the device; ``None`` where it is not known.
        free_bytes: what the run can have now, the idle part of this process's own cache included; ``None`` where it
            is not known.
        overhead_bytes: what the process will take outside the allocator and has not taken yet: the context.
        overhead_words: whether that was measured or is assumed, and on what.
        margin_ratio: how far the true peak may lie from the predicted one, as a part of it; 0 on a simulated device,
            whose memory is the model's own.
        settings: of the allocator.
        architecture: of the GPU.
        communication_bytes: how much of `overhead_bytes` is assumed for what connects ranks; 0 for a run on one device.
        pcie: generation and lanes of the link of a card that is there, as its driver has them; ``None`` where it does
            not say, and for all others.
    """

    device: str
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    overhead_bytes: int = 0
    overhead_words: str = ""
    margin_ratio: float = 0.0
    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    architecture: Architecture = field(default_factory=Architecture)
    communication_bytes: int = 0
    product: str = ""
    pcie: tuple[int, int] | None = None

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Target:
        """A target as one process tells it another: the allocator's settings as ``PYTORCH_CUDA_ALLOC_CONF`` has them,
        and of the GPU's design what is known.

        Raises:
            ValueError: one sentence, when torch would refuse the settings.
        """
        fields = dict(given)
        settings = AllocatorSettings.parse(fields.pop("settings", "") or "")
        known = fields.pop("architecture", {})
        usual = Architecture()
        capability = tuple(known.get("capability", usual.capability))
        architecture = Architecture(capability, known.get("multiprocessors", usual.multiprocessors))
        pcie = fields.pop("pcie", None)
        if pcie is not None:
            pcie = (int(pcie[0]), int(pcie[1]))
        return cls(**fields, settings=settings, architecture=architecture, pcie=pcie)

    @property
    def allowed_bytes(self) -> int | None:
        """The share of the card that the allocator's settings let it reserve; ``None`` where they set no limit."""
        fraction = self.settings.per_process_memory_fraction
        if fraction == 1 or self.capacity_bytes is None:
            return None
        return int(fraction * self.capacity_bytes)

    @property
    def room_bytes(self) -> int | None:
        """What the allocator can have: what is free beside the overhead, within its share of the card."""
        if self.free_bytes is None:
            return None
        free = self.free_bytes - self.overhead_bytes
        allowed = self.allowed_bytes
        if allowed is None:
            return free
        return min(free, allowed)


@dataclass(frozen=True)
class Alternative(RunChange):
    """A change that was predicted beside the run itself.

    Attributes:
        fits: as of `Estimate`.
        card_bytes: nominal memory of another card; ``None`` for the same one.
        memory_cap_bytes: a higher cap on what the allocator may reserve; ``None`` for the same one.
        peak_reserved_bytes: predicted, per GPU, as of `Estimate`; ``None`` when it could not be predicted.
        ranks: devices that the run is spread over instead, with one rank on each; ``None`` for as many as before.
        needed_bytes, free_bytes: of the changed run, where that would take place; as of `Estimate`.
        host_bytes: what the changed run keeps in the host's memory; ``None`` for nothing.
        bus_seconds: the least time that copying it takes in a step; ``None`` for none.
        saved_bytes: how much less it needs than the run as it is; ``None`` where it is no saving (`Estimate.savings`).
    """

    card_bytes: int | None = None
    memory_cap_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    ranks: int | None = None
    needed_bytes: int | None = None
    free_bytes: int | None = None
    host_bytes: int | None = None
    bus_seconds: float | None = None
    saved_bytes: int | None = None


@dataclass(frozen=True)
class DeviceEstimate:
    """What is predicted of one device, in bytes.

    Attributes:
        peak_allocated_bytes, peak_reserved_bytes: on the device as it is, where the run passes there; else, and where
            it is not known what is free, with room to spare. ``None`` when nothing can be said, and reserved on the
            CPU, which has no caching allocator.
        released_bytes: how much more would be reserved with room to spare, where that is more than there is: the run
            passes only because cached segments are released in time.
        minimum_capacity_bytes: smallest capacity found of a card, empty but for this run, on which it passes; a greater
            one that falls short of what is reserved with room to spare may fail all the same, since other segments are
            released there. ``None`` on the CPU, and where the allocator may have nothing of any card.
        overhead_bytes: outside the allocator: the context.
        free_bytes: what the run could have now, before `overhead_bytes`, within the share of the card that the
            allocator's settings leave it.
        fits: true only where `needed_bytes` is at most `free_bytes`, and false only where it is more; ``None`` within
            the margin, or when free memory is not known.
        spare_bytes: memory that the run could have and does not take at the peak; for one that does not pass negative:
            how much more the least is that it passes with. ``None`` where that is not known, and for a run that ends
            with all memory taken, because it is meant to.
        margin_bytes: how far the true peak may be off, either way.
    """

    device: str
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    minimum_capacity_bytes: int | None = None
    overhead_bytes: int = 0
    fits: bool | None = None
    spare_bytes: int | None = None
    margin_bytes: int = 0
    released_bytes: int = 0

    @property
    def fills_memory(self) -> bool:
        """Whether the run is meant to take all there is, and to be refused more."""
        return self.fits is False and self.spare_bytes is None

    @property
    def needed_bytes(self) -> int | None:
        """What the run takes of the device at its peak, the overhead included; the least that would do if it fails.

        Where it is not known what is free, with room to spare. ``None`` when nothing can be said, and for
        `fills_memory`.
        """
        if self.fills_memory:
            return None
        if self.free_bytes is not None and self.spare_bytes is not None:
            return self.free_bytes - self.spare_bytes  # more than all that is free where memory is short
        # the CPU reserves nothing
        peak = self.peak_reserved_bytes
        if peak is None:
            peak = self.peak_allocated_bytes
        if peak is None:
            return None
        return peak + self.overhead_bytes


@dataclass(frozen=True)
class RankEstimate(DeviceEstimate):
    """What is predicted of one of several ranks."""

    rank: int = 0


@dataclass(frozen=True)
class CardRequest:
    """A card about which a run is asked beside the one it is to take place on.

    Attributes:
        key: which answer is its own.
        target: the card.
    """

    key: str
    target: Target


@dataclass(frozen=True)
class CardEstimate(DeviceEstimate):
    """What is predicted of the run on another card.

    Attributes:
        key: as of `CardRequest`.
        largest_batch_size: as of `Estimate`; ``None`` where it is not known.
        largest_batch_capped: as of `Estimate`.
        by_line: whether that follows from a line through two sizes of the run and was not tried.
        borrowed: whether the run was followed on another card of the generation, whose scratch is another, or, where
            what every card has to hold is too much for this one, on one of any: `margin_bytes` has it.
        reason: why there is no prediction; "" when there is one.
        source: what it is known by, where that is no prediction: "by its last run".
    """

    key: str = ""
    largest_batch_size: int | None = None
    largest_batch_capped: bool = False
    by_line: bool = False
    borrowed: bool = False
    reason: str = ""
    source: str = ""

    @classmethod
    def of(cls, estimate: Estimate) -> CardEstimate:
        """What is predicted of the card in question itself."""
        known = {one.name: getattr(estimate, one.name) for one in fields(DeviceEstimate)}
        return cls(
            **known,
            key=estimate.device,
            largest_batch_size=estimate.largest_batch_size,
            largest_batch_capped=estimate.largest_batch_capped,
            reason=estimate.reason,
        )

    def with_largest_of(self, other: CardEstimate) -> CardEstimate:
        """This with the largest batch of another answer for the card."""
        return replace(
            self,
            largest_batch_size=other.largest_batch_size,
            largest_batch_capped=other.largest_batch_capped,
            by_line=other.by_line,
        )


@dataclass(frozen=True)
class Estimate(DeviceEstimate):
    """A prediction.

    A run takes of a device what it does there, with the releasing and retrying of the allocator that the room makes
    necessary.

    Attributes:
        product: what the device is; "" where that is not known.
        alternatives: changes that were predicted where the run does not fit with room to spare.
        retries: how often the allocator has to release its cache before a request can be served, in the steps followed.
        by_category: what is allocated at the peak; adds up to `peak_allocated_bytes`.
        largest_batch_size: of the otherwise same run that fits, on each rank; ``None`` where there is no batch or it is
            not known.
        largest_batch_capped: whether that is the most that can be asked for, so that larger ones may fit too.
        largest_batch_releases: whether that batch fits only because the allocator releases its cache.
        largest_global_batch: the same of all ranks together; ``None`` for a run on one device.
        first_step_bytes, steady_bytes: peak allocated of the first and the last step.
        method: how it was predicted.
        reason: why there is no prediction; "" when there is one.
        seconds: that predicting took.
        ranks: each rank's figures, or each device's over which a model is split; empty for a run on one device.
        deciding_rank: the one that has least room, whose figures all the other fields are.
        strategy: "ddp", "fsdp" or "fsdp1", "split" for a model whose halves lie on two devices; "" for a run on one.
        communication_bytes: how much of `overhead_bytes` is assumed for what connects the ranks; never measured.
        late_bytes: how much more than `peak_allocated_bytes` a rank of DDP may hold: its buckets of gradients go back
            to the allocator only once NCCL's stream is done with them. `peak_reserved_bytes` was the same either way.
        savings: what recipes do and the run does not, by what each was predicted to save, most first; of a training by
            a model's config, whether it fits or not.
        assumptions: what the prediction of a user's code takes for granted where the code asks for numbers that a dry
            run does not have; each after the line that asks.
        model: what is known of a model that is predicted by its config.
        largest_sequence: tokens of the longest sequence that fits, as `largest_batch_size`.
        untried: what has not been looked for, in words: the time was over, where the answer is whole.
        torch: the version of torch that made the prediction; "" where it is not known.
        by_line: what the lines of a program had allocated that is there at the peak with room to spare, most first; for
            a program that is run as it is.
        keeps: bytes that lines of such a program keep of every step, most first: its memory grows as long as it runs.
        remark: what of such a program was not followed, a sentence without a full stop; "" for nothing.
        convolutions: what is known of the memory that cuDNN takes for itself.
        work: what one step does on a device of the kind, from which its time is worked out; ``None`` where that was not
            followed. Of ranks that of one of them.
    """

    workload: str = field(kw_only=True)
    by_category: Mapping[str, int] = field(default_factory=dict)
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
    late_bytes: int = 0
    largest_global_batch: int | None = None
    largest_batch_capped: bool = False
    largest_batch_releases: bool = False
    retries: int = 0
    assumptions: tuple[str, ...] = ()
    product: str = ""
    model: ModelFacts | None = None
    largest_sequence: int | None = None
    untried: tuple[str, ...] = ()
    savings: tuple[Alternative, ...] = ()
    torch: str = ""
    by_line: Mapping[str, int] = field(default_factory=dict)
    keeps: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""
    convolutions: ConvolutionScratch = field(default_factory=ConvolutionScratch)
    work: StepWork | None = None

    @property
    def has_room(self) -> bool:
        """Whether it fits as it is, so that nothing needs to be changed."""
        return self.fits is True and not self.released_bytes

    def batch_rooms(self, cards: Mapping[str, CardEstimate]) -> dict[str, float | None]:
        """How many times as large a batch has memory, on the device by its name and on ``cards`` by their keys;
        ``None`` where that is not known.

        By the largest batch where that was found; else by what is spare, over what grows with the batch here.
        """
        return {**{key: self._batch_room(card) for key, card in cards.items()}, self.device: self._batch_room(self)}

    def _batch_room(self, on: Estimate | CardEstimate) -> float | None:
        if on.largest_batch_size is not None and self.work is not None and self.work.batch:
            return on.largest_batch_size / self.work.batch
        growing = sum(self.by_category.get(category, 0) for category in GROWING)
        if on.spare_bytes is None or not growing:
            return None
        return max(0.0, 1 + (on.spare_bytes - on.margin_bytes) / growing)

    def to_json(self) -> dict[str, Any]:
        """As ``gpudash estimate --json`` prints it: without the work, which is for those who predict times."""
        document = asdict(replace(self, work=None))
        del document["work"]
        return {**document, "needed_bytes": self.needed_bytes}


@dataclass(frozen=True)
class Passage:
    """How a traced run gets on with what a device has: the one rule of what fits.

    Attributes:
        spacious: what it takes with room to spare.
        outcome: of the room there is; ``None`` where that is not known, and on the CPU.
        fits: whether it passes, also if the prediction is off by the margin and cuDNN takes what is not known of it;
            ``None`` where that decides, or where it is not known what is free.
        passes: whether it passes if the prediction is right; ``None`` where it is not known what is free.
        reserved: the most that is reserved there; with room to spare where it does not pass. On the CPU what is
            allocated.
        released: as `Estimate.released_bytes`.
        margin: as `Estimate.margin_bytes`.
    """

    spacious: Peaks
    outcome: Outcome | None
    fits: bool | None
    passes: bool | None
    reserved: int
    released: int
    margin: int


def passage(trace: Trace, target: Target, spacious: Peaks | None = None) -> Passage:
    """Whether a traced run passes on ``target``, and how.

    Args:
        spacious: what the trace takes with room to spare, by the target's settings, where that is known already.
    """
    if target.device == "cpu":
        return _on_cpu(peaks(trace.without(WORKSPACE)), target)
    found = spacious or peaks(trace, target.settings)
    room = target.room_bytes
    margin = int(found.reserved * target.margin_ratio)
    if room is None:
        return Passage(found, None, None, None, found.reserved, 0, margin)
    outcome = _outcome(trace, target, room, 0, found)
    fits: bool | None = outcome.fits
    # a prediction that is off by the margin: with less room where it passes, with more where it fails
    more = margin
    if outcome.fits:
        more = -margin - trace.convolutions.unknown_bytes
    if more and _outcome(trace, target, room, more, found).fits is not outcome.fits:
        fits = None
    if outcome.fits:
        reserved = outcome.taken
    else:
        reserved = found.reserved
    released = 0
    if found.reserved > room:
        released = found.reserved - reserved
    return Passage(found, outcome, fits, outcome.fits, reserved, released, margin)


def judge(trace: Trace, target: Target, workload: str) -> Estimate:
    """Whether a traced run fits ``target``, and what it takes."""
    found = passage(trace, target)
    least_card = None
    how = ADDED_UP
    least = found.spacious.allocated
    shown = found.spacious
    if target.device != "cpu":
        how = REPLAYED
        least = _least_room(trace, target, found)
        least_card = _least_card(least, target)
        # the cache is released there: its figures at the peak are others than with room to spare
        if found.passes and found.reserved != found.spacious.reserved:
            shown = peaks(trace, target.settings, target.room_bytes, target.allowed_bytes)
    retries = 0
    if found.outcome is not None and found.passes:
        retries = found.outcome.retries
    device = _of_device(found, target, lambda: least)
    return Estimate(
        **vars(replace(device, peak_allocated_bytes=shown.allocated, minimum_capacity_bytes=least_card)),
        workload=workload,
        by_category=shown.by_category,
        first_step_bytes=shown.first_step,
        steady_bytes=shown.steady,
        phases=shown.phases,
        method=METHOD.format(
            steps=_steps_text(trace.followed),
            how=how,
            overhead=target.overhead_words or "no overhead",
        ),
        communication_bytes=target.communication_bytes,
        product=target.product,
        retries=retries,
        convolutions=trace.convolutions,
    )


def judge_card(
    trace: Trace, card: CardRequest, spacious: Peaks | None = None, least_room: Callable[[], int] | None = None
) -> CardEstimate:
    """Whether a traced run fits ``card``: as `judge`, without what concerns the card in question alone.

    Args:
        spacious: as of `passage`.
        least_room: the fewest bytes with which the trace passes anywhere, as `minimum_room` finds them, where that is
            the same of every card; asked where it does not pass.
    """
    target = card.target
    found = passage(trace, target, spacious)

    def least() -> int:
        known = 0
        if least_room is not None:
            known = least_room()
        # a run that passes with less than this card has, and not on it, is searched for from there on: it is rare
        if target.room_bytes is not None and known <= target.room_bytes:
            known = _least_room(trace, target, found)
        return known

    return CardEstimate(**vars(_of_device(found, target, least)), key=card.key)


def _of_device(found: Passage, target: Target, least_room: Callable[[], int]) -> DeviceEstimate:
    """What a run takes of a device.

    Args:
        found: how it gets on there.
        target: the device.
        least_room: the fewest bytes with which it passes; asked of a GPU on which it does not.
    """
    room = target.room_bytes
    reserved = None
    if target.device != "cpu":
        reserved = found.reserved
    free = None
    spare = None
    if room is not None:
        free = room + target.overhead_bytes
        taken = found.reserved
        if target.device != "cpu" and not found.passes:
            taken = least_room()
        spare = room - taken
    return DeviceEstimate(
        device=target.device,
        capacity_bytes=target.capacity_bytes,
        free_bytes=free,
        peak_allocated_bytes=found.spacious.allocated,
        peak_reserved_bytes=reserved,
        overhead_bytes=target.overhead_bytes,
        fits=found.fits,
        spare_bytes=spare,
        margin_bytes=found.margin,
        released_bytes=found.released,
    )


def fits(trace: Trace, target: Target) -> bool | None:
    """Whether a traced run fits ``target``; ``None`` within the margin or without knowing what is free."""
    room = target.room_bytes
    may_differ = target.margin_ratio or trace.convolutions.unknown_bytes
    if target.device != "cpu" and room is not None and not may_differ:
        return run_on(trace, room, target.settings, target.allowed_bytes).fits  # without a margin nothing else decides
    return passage(trace, target).fits


def smallest_card(needed_bytes: int) -> int | None:
    """Nominal memory in bytes of the smallest card that has as much for programs; ``None`` when there is none so large.

    See `HANDED_OUT_RATIO`.
    """
    return next((size for size in CARDS_BYTES if int(size * HANDED_OUT_RATIO) >= needed_bytes), None)


def needed_room(trace: Trace, target: Target, found: Passage) -> int:
    """The fewest bytes with which a traced run fits, the margin and what is not known of convolutions included.

    What passes with some room need not pass with every greater one, because what is cached then lies elsewhere: the
    answer is at most the room there is where the run passes there, and else more than that.
    """
    if target.device == "cpu":
        return found.reserved + found.margin
    return _least_room(trace, target, found) + found.margin + trace.convolutions.unknown_bytes


def _steps_text(followed: int) -> str:
    if not followed:
        return ""
    if followed == 1:
        return ", 1 step followed"
    return f", {followed} steps followed"


def _least_card(room: int, target: Target) -> int | None:
    """Capacity of the smallest card on which the allocator can have ``room`` bytes; ``None`` when there is none."""
    fraction = target.settings.per_process_memory_fraction
    if room > fraction * LARGEST_CAPACITY:
        return None
    needed = room + target.overhead_bytes
    if fraction == 1 or not room:
        return needed
    return max(needed, card_of(room, fraction))


def _on_cpu(found: Peaks, target: Target) -> Passage:
    """The CPU has no caching allocator: what is allocated is all that can be said."""
    room = target.room_bytes
    peak = found.allocated
    margin = int(peak * target.margin_ratio)
    passes = None
    if room is not None:
        passes = peak <= room
    fits = None
    if room is not None and abs(room - peak) >= margin:
        fits = passes
    return Passage(found, None, fits, passes, peak, 0, margin)


def _outcome(trace: Trace, target: Target, room: int, more: int, spacious: Peaks) -> Outcome:
    """How a run would end if there were ``more`` bytes."""
    # with room for all that is reserved with room to spare the allocator is never refused anything, so that it does
    # the same; only one that looks at its share of the card does something else there
    if room + more >= spacious.reserved and not reads_its_share(target.settings):
        return Outcome(fits=True, failed_at=None, retries=0, taken=spacious.reserved)
    allowed = target.allowed_bytes
    if allowed is not None:
        allowed += more
    return run_on(trace, room + more, target.settings, allowed)


def _least_room(trace: Trace, target: Target, found: Passage) -> int:
    """The fewest bytes with which the run passes, as `needed_room` has them without the margin."""
    # between these lies the answer: what is alive at once, and what is reserved with room to spare
    least = found.spacious.allocated
    most = found.spacious.reserved
    room = target.room_bytes
    if found.outcome is None or room is None:
        return minimum_room(trace, least, most, target.settings)
    if not found.passes:
        # it failed here, and does so up to what would have served the request that was refused
        least = max(least, room + 1, found.outcome.lacking or 0)
        return minimum_room(trace, least, max(least, most), target.settings)
    # it passed here with what it took, so that it passes with just that
    if not reads_its_share(target.settings):
        most = min(most, found.reserved)
    return min(room, minimum_room(trace, min(least, most), most, target.settings))


@dataclass(frozen=True)
class ModelFacts:
    """A model as its own code builds it, and as its files say it is.

    Attributes:
        architecture: the class that was built.
        parameters: how many numbers its weights have, shared ones counted once.
        weight_bytes: what they take.
        dtype: of most of them that are not packed, as torch calls it.
        packed_bits: of a weight of the linear layers that are packed; 0 where none is.
        sequence: tokens that were followed; ``None`` where it takes none.
        longest: the most tokens that it takes; ``None`` where it does not say.
        stored_parameters: numbers in the files with the weights; ``None`` where no file is there.
        stored_bytes: what they take there; ``None`` where neither files nor their index are there.
        flops: floating-point operations of a step, as torch's own counter knows them.
        to_host_bytes, to_device_bytes: copied each way over a GPU's bus in a step, of what is kept on the host.
        pinned_bytes, pageable_bytes: what that takes of the host's memory at most, in pages that stay and in others; of
            all ranks, where there are several.
        link, bus_seconds: see `on_link`.
        assumptions: what is taken for granted; sentences without a full stop.
    """

    architecture: str
    parameters: int
    weight_bytes: int
    dtype: str
    sequence: int | None = None
    longest: int | None = None
    stored_parameters: int | None = None
    stored_bytes: int | None = None
    flops: int = 0
    packed_bits: int = 0
    to_host_bytes: int = 0
    to_device_bytes: int = 0
    pinned_bytes: int = 0
    pageable_bytes: int = 0
    link: str = ""
    bus_seconds: float = 0.0
    assumptions: tuple[str, ...] = ()

    @property
    def host_bytes(self) -> int:
        """All that it takes of the host's memory."""
        return self.pinned_bytes + self.pageable_bytes

    def on_link(self, capability: tuple[int, int]) -> ModelFacts:
        """The same with the least time that a step's copies take, both ways at once, on the link that GPUs of a compute
        capability come with, by NVIDIA's data sheets: PCIe 3.0 of Volta and Turing (V100, T4), 4.0 of Ampere and Ada
        (A100, L4), 5.0 of Hopper and Blackwell.

        Args:
            capability: compute capability of the GPU, (major, minor).
        """
        if capability < (8, 0):
            generation = 3
        elif capability < (9, 0):
            generation = 4
        else:
            generation = 5
        seconds = max(self.to_host_bytes, self.to_device_bytes) / (LANES * LANE_BYTES_PER_SECOND[generation])
        return replace(self, link=f"PCIe {generation}.0 x{LANES}", bus_seconds=seconds)

    def lines(self) -> list[str]:
        """What it is, and how its files compare, each in a line."""
        if self.sequence is None:
            long = ""
        else:
            long = f"; sequences of {self.sequence} tokens"
        if self.packed_bits:
            kind = f"in {self.packed_bits} bits, the rest {self.dtype}"
        else:
            kind = f"as {self.dtype}"
        weights = f"{self.parameters:,} parameters, {format_bytes(self.weight_bytes)} {kind}"
        found = [f"{self.architecture}: {weights}{long}"]
        if self.stored_parameters is not None and self.stored_bytes is not None:
            how = f"{self.stored_parameters:,}"
            if self.stored_parameters == self.parameters:
                how = "as many"
            found.append(f"its files hold {how} parameters, {format_bytes(self.stored_bytes)}")
        elif self.stored_bytes is not None:
            found.append(f"the index of its files says {format_bytes(self.stored_bytes)}")
        if self.host_bytes:
            paged = ""
            if self.pageable_bytes:
                paged = f" and {format_bytes(self.pageable_bytes)}"
            copied = f"{format_bytes(self.to_device_bytes)} to the GPU, {format_bytes(self.to_host_bytes)} from it"
            found.append(f"on the host: {format_bytes(self.pinned_bytes)} of pinned memory{paged}")
            found.append(f"over the bus each step: {copied}; {self.bus_seconds:.2g} s or more on {self.link}")
        return found
