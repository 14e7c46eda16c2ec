"""A prediction in words, the same in the window and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gpudash.devices.names import SIMULATED, kind_of
from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.predicting.estimate import Alternative, Estimate, RankEstimate
from gpudash.memory.predicting.rank_estimates import SPLIT, unequal
from gpudash.memory.predicting.torch_versions import unmeasured_torch
from gpudash.telemetry.explanation import Remedy, RunChange
from gpudash.units import MIB, SizeScale, format_bytes, format_like

Verdict = Literal["fits", "short", "uncertain", "unknown"]

CONTEXT = "context"
"""The segment of a bar for what lies outside the allocator."""

COMMUNICATION = "NCCL (assumed)"
"""The segment for what connects the ranks, which is assumed and never measured."""

HELD_BACK = "idle in the allocator"
"""The segment for what is reserved at the peak and not allocated."""

MOST_RANKS = 4
"""Most ranks that are listed; of more only the deciding one."""

AFTER_RELEASE = "fits only after releasing its cache"


@dataclass(frozen=True)
class AlternativeText:
    """A change of the run in words.

    Attributes:
        alternative: the change.
        change: in words; a simulated device is marked.
        needs: what the changed run takes, "7.65 GiB"; with what is free there, "9.56 GiB of 14.40 GiB", where that is
            elsewhere or the two would read alike. "" when nothing was predicted.
        fit: whether it fits, in a word or two.
        spare: what is left, or lacks: "2.03 GiB spare", "1.20 GiB short"; "" where that is not known.
        price: what it costs; "" when nothing is known of it.
    """

    alternative: Alternative
    change: str
    needs: str
    fit: str
    spare: str
    price: str


@dataclass(frozen=True)
class Prediction:
    """What an estimate comes to: every text about it is made here, of the same figures.

    What is said to fit needs no more than is free as both are shown, and what is said not to fit needs more; what is
    spare or short is the difference of the two.

    Attributes:
        estimate: what was predicted.
        at_peak: what each category has, and `HELD_BACK`, at the moment that is drawn as the peak; ``None`` where none
            is. The allocator may hold most at another moment than tensors do, and one screen speaks of one.
    """

    estimate: Estimate
    at_peak: Mapping[str, float] | None = None

    @cached_property
    def scale(self) -> SizeScale:
        """How what is needed and what is free are written."""
        need, free = self.estimate.needed_bytes, self.estimate.free_bytes
        if need is None or free is None:
            return SizeScale()
        return SizeScale.of(need, free)

    @property
    def verdict(self) -> Verdict:
        """What it comes to; "unknown" when nothing was predicted, or it is not known what is free."""
        estimate = self.estimate
        if estimate.peak_allocated_bytes is None or estimate.free_bytes is None:
            return "unknown"
        if estimate.fits is None:
            return "uncertain"
        if estimate.fits:
            return "fits"
        return "short"

    @property
    def headline(self) -> str:
        """One line: "fits, 2.30 GiB spare"."""
        estimate, found = self.estimate, self.verdict
        need, free = estimate.needed_bytes, estimate.free_bytes
        if estimate.peak_allocated_bytes is None:
            return "cannot be predicted"
        if found == "unknown":
            return f"needs {format_bytes(need)}; what is free is not known"
        if found == "uncertain":
            return self._uncertain
        if need is None or free is None:
            return "runs out of memory, as it is meant to"
        where = self._where
        if found == "short":
            return f"does not fit, {self.scale.apart(need, free)} short{where}"
        if estimate.released_bytes:
            return f"{AFTER_RELEASE}{where}"
        if need == free:
            spare = "with nothing to spare"
        else:
            spare = f"{self.scale.apart(need, free)} spare"
        return f"fits, {spare}{where}"

    @property
    def _uncertain(self) -> str:
        """Why it is not certain whether it fits; more likely than not where only convolutions may take more, and less
        where more is needed than is free."""
        estimate = self.estimate
        unknown = estimate.convolutions.unknown_bytes
        spare = estimate.spare_bytes
        need, free = estimate.needed_bytes, estimate.free_bytes
        if need is not None and free is not None and need > free:
            return f"may not fit, {self.scale.apart(need, free)} short ± {self.scale.label(estimate.margin_bytes)}"
        if not unknown or spare is None or spare < estimate.margin_bytes:
            return f"may fit: within the margin of {format_bytes(estimate.margin_bytes)}"
        return f"probably fits: convolutions may take up to {format_bytes(unknown)} more"

    @property
    def convolutions(self) -> str:
        """Who said what cuDNN takes for convolutions, and what is not known of it; "" for a run without any."""
        found = self.estimate.convolutions
        unknown = format_bytes(found.unknown_bytes)
        if found.cudnn and found.unknown_bytes:
            return f"convolutions: at least as asked of cuDNN {found.cudnn}, which may take up to {unknown} more"
        if found.cudnn:
            return f"convolutions: asked of cuDNN {found.cudnn}"
        if not found.unknown_bytes:
            return ""
        text = f"convolutions may take up to {unknown} more on this card, and PyTorch may reserve more for them"
        if found.problem:
            return f"{text}; cuDNN could not be asked: {found.problem}"
        return text

    @property
    def peak(self) -> str:
        """What is written at the highest point: "peak 2,036 MiB · 5.90 GiB spare"."""
        estimate, found = self.estimate, self.verdict
        need, free = estimate.needed_bytes, estimate.free_bytes
        if need is None:
            return "runs out of memory, as it is meant to"
        if found == "short":
            return f"does not fit: {self.scale.apart(need, free or 0)} too much"
        text = f"peak {self.scale.label(need)}"
        if found == "unknown" or free is None:
            return text
        if found == "uncertain":
            likely = "may not fit"
            if need <= free:
                likely = "probably fits"
            margin = ""
            if estimate.margin_bytes:
                margin = f" ± {self.scale.label(estimate.margin_bytes)}"
            return f"≈ {text}{margin}, {likely}"
        if need == free:
            return f"{text} · nothing to spare"
        return f"{text} · {self.scale.apart(need, free)} spare"

    @property
    def _where(self) -> str:
        """Of a run on several devices, where that is what the headline says."""
        estimate = self.estimate
        if not estimate.ranks:
            return ""
        if estimate.strategy == SPLIT:
            return f" on {estimate.device}"
        if unequal(estimate):
            return f" on rank {estimate.deciding_rank}"
        return " per rank"

    @property
    def need(self) -> str:
        """What is taken of what is free: "needs 2.30 GiB ± 24 MiB of 8.00 GiB free"; "" when nothing is known."""
        need, free = self.estimate.needed_bytes, self.estimate.free_bytes
        if need is None:
            return ""
        size = self.estimate.margin_bytes
        counts = size >= MIB or (size and self.verdict == "uncertain")  # less decides nothing
        margin = ""
        if counts:
            margin = f" ± {self.scale.label(self.estimate.margin_bytes)}"
        if free is None:
            there = ""
        else:
            there = f" of {self.scale.label(free)} free"
        return f"needs {self.scale.label(need)}{margin}{there}"

    @property
    def margin_remark(self) -> str:
        """What the margin is of; "" without one."""
        size = self.estimate.margin_bytes
        if not size:
            return ""
        return (
            f"± {self.scale.label(size)}: the run was followed on another card, and the kernels of this one may take "
            "so much more or less. The card that it was followed on has no ±."
        )

    @property
    def alone(self) -> str:
        """Of what the prediction is, where what is measured of a run is of more; "" where both are of the run."""
        if self.estimate.peak_allocated_bytes is None or self.estimate.device != "cpu":
            return ""
        return "Tensors only: Python and PyTorch add their own memory to the process, whose peak a run reports."

    def reached(self, size: int) -> str:
        """What a run has taken until now beside what was predicted of it: "reached 1.90 GiB of 2.30 GiB predicted".

        Args:
            size: bytes that PyTorch has reserved at most.
        """
        need = self.estimate.needed_bytes
        text = f"reached {self.scale.label(size + self.estimate.overhead_bytes)}"
        if need is None:
            return text
        return f"{text} of {self.scale.label(need)} predicted"

    def reached_text(self, size: int | None) -> str:
        """The prediction and what its run has come to: "predicted 2.30 GiB, reached 2.30 GiB with context".

        The context is named because a run's own peak, as in a list of runs, is without it.

        Args:
            size: bytes that PyTorch has reserved at most; ``None`` where that is not known.
        """
        need = self.estimate.needed_bytes
        if need is None:
            return ""
        text = f"predicted {self.scale.label(need)}"
        if not size:
            return text
        context = ""
        if self.estimate.overhead_bytes:
            context = " with context"
        return f"{text}, reached {self.scale.label(size + self.estimate.overhead_bytes)}{context}"

    @property
    def release(self) -> str:
        """What the allocator has to give back on the way; "" when it passes without, or does not."""
        estimate = self.estimate
        if not estimate.released_bytes or not estimate.peak_reserved_bytes:
            return ""
        if not estimate.retries:
            times = ""
        elif estimate.retries == 1:
            times = " once"
        else:
            times = f" {estimate.retries} times"
        more = format_bytes(estimate.peak_reserved_bytes + estimate.released_bytes)
        return (
            f"PyTorch has to release its cache{times} in the steps followed, which takes time; "
            f"with room to spare it would reserve {more}"
        )

    @property
    def largest_batch(self) -> str:
        """The largest batch that fits; "" when it is not known."""
        size, together = self.estimate.largest_batch_size, self.estimate.largest_global_batch
        if size is None:
            return ""
        if not size:
            return "even a batch of 1 does not fit"
        if together is None:
            return f"largest batch that fits: {self._or_more(size)}"
        return f"largest batch: {self._or_more(size)} per rank, {self._or_more(together)} in all"

    def _or_more(self, size: int) -> str:
        """The largest batch, with whether larger ones may fit that cannot be asked for."""
        if self.estimate.largest_batch_capped:
            return f"{size} or more"
        return str(size)

    @property
    def largest_batch_remark(self) -> str:
        """What the largest batch rests on: the margin, and a cache that is released; "" for neither."""
        if not self.estimate.largest_batch_size:
            return ""
        remarks = []
        if self.estimate.margin_bytes:
            remarks.append("also if the prediction is off by its margin")
        if self.estimate.largest_batch_releases:
            remarks.append("only after releasing its cache")
        if remarks:
            return f"the largest batch fits {', and '.join(remarks)}"
        return ""

    @property
    def remedies(self) -> tuple[AlternativeText, ...]:
        """The changes that were predicted beside it, in their order."""
        return tuple(map(self._alternative, self.estimate.alternatives))

    @property
    def savings(self) -> tuple[AlternativeText, ...]:
        """What recipes do and the run does not, what saves most first."""
        return tuple(map(self._alternative, self.estimate.savings))

    @property
    def rank_lines(self) -> list[str]:
        """The ranks beside the one that decides, each in a line, and why that does; none for a run on one device."""
        estimate = self.estimate
        if not estimate.ranks:
            return []
        if estimate.strategy == SPLIT:
            return [*map(_half_text, estimate.ranks), f"{estimate.device} has least to spare and decides"]
        count, deciding = len(estimate.ranks), estimate.deciding_rank
        if unequal(estimate):
            lines = [f"{count} ranks, memory unequal: rank {deciding} on {estimate.device} has least and decides"]
        else:
            shown = "the fullest shown"
            if count <= MOST_RANKS:
                shown = "all alike"
            lines = [f"{count} ranks, {shown}: rank {deciding} above"]
        if count <= MOST_RANKS:
            lines += [_rank_text(rank) for rank in estimate.ranks if rank.rank != deciding]
        return lines

    @property
    def assumed(self) -> str:
        """What of the overhead is assumed for what connects the ranks; "" for nothing."""
        size = self.estimate.communication_bytes
        if size:
            return f"assumed: NCCL about {format_bytes(size)} per rank"
        return ""

    @property
    def lower_bound(self) -> str:
        """That more may be allocated than predicted by when NCCL's stream is done; "" where it may not."""
        size = self.estimate.late_bytes
        if not size:
            return ""
        return f"up to {format_bytes(size)} more allocated while gradients wait for NCCL"

    @property
    def assumption_lines(self) -> list[str]:
        """What the prediction of a user's code or model takes for granted, each in a line, and whether it was made by a
        torch that it has not been measured with."""
        model = self.estimate.model
        of_model = () if model is None else model.assumptions
        lines = [f"taken for granted at {assumption}" for assumption in self.estimate.assumptions]
        lines += [f"taken for granted: {assumption}" for assumption in of_model]
        of_torch = unmeasured_torch(self.estimate.torch)
        if of_torch:
            return [*lines, of_torch]
        return lines

    @property
    def model_lines(self) -> list[str]:
        """What is known of a model, each in a line; none for other runs."""
        if self.estimate.model is None:
            return []
        return self.estimate.model.lines()

    @property
    def largest_sequence(self) -> str:
        """The longest sequence that fits; "" when it is not known."""
        size = self.estimate.largest_sequence
        if not size:
            return ""
        return f"longest sequence that fits: {size} tokens"

    @property
    def largest(self) -> str:
        """The largest batch and, where sequences have a length, the longest one that fits, in a short line."""
        batch, tokens = self.estimate.largest_batch_size, self.estimate.largest_sequence
        if not tokens:
            return self.largest_batch
        if batch is None:
            return self.largest_sequence
        whole = f"largest batch {self._or_more(batch)}, longest sequence {tokens}"
        if batch:
            return whole
        return f"a batch of 1 fits with up to {tokens} tokens"

    @property
    def untried(self) -> str:
        """What was not looked for, where the answer is whole; "" for nothing."""
        left = self.estimate.untried
        if left:
            return f"not tried, since the time was over: {', '.join(left)}"
        return ""

    @cached_property
    def segments(self) -> list[tuple[str, int]]:
        """Name and bytes of the parts of a bar: context, NCCL, the categories, and what is held beyond them.

        They add up to what is needed.
        """
        estimate = self.estimate
        connecting = estimate.communication_bytes
        found = [(CONTEXT, estimate.overhead_bytes - connecting), (COMMUNICATION, connecting)]
        found += [(name, estimate.by_category.get(name, 0)) for name in CATEGORIES]
        reserved = estimate.peak_reserved_bytes or 0
        if reserved and estimate.needed_bytes is not None:
            reserved = estimate.needed_bytes - estimate.overhead_bytes
        beyond = reserved - (estimate.peak_allocated_bytes or 0)
        drawn = [(name, round((self.at_peak or {}).get(name, 0.0))) for name in (*CATEGORIES, HELD_BACK)]
        if self.at_peak is not None and sum(size for _name, size in drawn) == reserved:
            *categories, (_held_back, beyond) = drawn
            found[2:] = categories
        return [(name, size) for name, size in [*found, (HELD_BACK, beyond)] if size > 0]

    @property
    def bar_bytes(self) -> int:
        """All parts of a bar together: what is needed, as far as it is known."""
        return sum(size for _name, size in self.segments)

    def _alternative(self, way: Alternative) -> AlternativeText:
        return AlternativeText(
            way, change_text(way), self._needs_of(way), fit_text(way.fits), _spare_text(way), price(way)
        )

    def _needs_of(self, way: Alternative) -> str:
        need, free = way.needed_bytes, way.free_bytes
        if need is None:
            return ""
        exceeds = self.scale.shown(need) > self.scale.shown(free or 0)
        if free is None or (free == self.estimate.free_bytes and exceeds is (need > free)):
            return self.scale.label(need)
        scale = SizeScale.of(need, free)
        return f"{scale.label(need)} of {scale.label(free)}"


def change_text(alternative: RunChange) -> str:
    """What an alternative changes; a simulated device is marked."""
    text, device = alternative.change, alternative.device
    simulated = device is not None and kind_of(device) == "sim"
    if simulated and SIMULATED not in text:
        return f"{text} ({SIMULATED})"
    return text


def price(alternative: RunChange) -> str:
    """What a change costs: "+33 % time, from FLOPs of the dry run"; "" when nothing is known of it."""
    parts = []
    if alternative.slowdown is not None:
        cost = time_text(alternative)
        parts.append(f"{cost}, from {alternative.slowdown_from}" if alternative.slowdown_from else cost)
    if isinstance(alternative, Alternative) and alternative.ranks is not None:
        same = "; same global batch"
        if alternative.changes_training:
            same = ""
        parts.append(f"takes {alternative.ranks} GPUs, time not predicted{same}")
    if isinstance(alternative, Alternative) and alternative.host_bytes is not None:
        held, seconds = format_bytes(alternative.host_bytes), alternative.bus_seconds or 0
        parts.append(f"{held} of the host's memory, {seconds:.2g} s or more of each step on the bus")
    if alternative.releases_cache:
        parts.append("only after releasing its cache")
    if alternative.note:
        parts.append(alternative.note)
    if isinstance(alternative, Remedy) and alternative.puts_off:
        parts.append(alternative.puts_off)
    if alternative.changes_training:
        parts.append("may change convergence")
    return "; ".join(parts)


def fit_text(fits: bool | None) -> str:
    """Whether it fits, in a word or two."""
    if fits is None:
        return "may fit"
    if fits:
        return "fits"
    return "does not fit"


def _spare_text(way: Alternative) -> str:
    """What a changed run leaves, or lacks."""
    need = way.needed_bytes
    free = way.free_bytes
    if need is None or free is None:
        return ""
    if need == free:
        return "nothing to spare"
    if need > free:
        return f"{SizeScale.of(need, free).apart(need, free)} short"
    return f"{SizeScale.of(need, free).apart(need, free)} spare"


def time_text(way: RunChange) -> str:
    """How much longer the same work takes: "+33 % time"; "" where nothing is known of it."""
    if way.slowdown is None:
        return ""
    percent = round((way.slowdown - 1) * 100)
    if percent == 0:
        return "same time"
    return f"{percent:+d} % time".replace("-", "−")


def _half_text(half: RankEstimate) -> str:
    """What a model that is split takes of one device."""
    allocated, reserved = half.peak_allocated_bytes, half.peak_reserved_bytes
    text = f"peak allocated {format_like(allocated, reserved)}, reserved {format_like(reserved, allocated)}"
    return f"{_rank_text(half, half.device)}, {text}"


def _rank_text(rank: RankEstimate, name: str = "") -> str:
    """What one rank needs of its device.

    Args:
        name: in place of the rank's number and device.
    """
    name = name or f"rank {rank.rank} on {rank.device}"
    need, free = rank.needed_bytes, rank.free_bytes
    if need is None or free is None:
        return f"{name}: {format_bytes(need)}"
    scale = SizeScale.of(need, free)
    if rank.fits and rank.released_bytes:
        fit = AFTER_RELEASE
    else:
        fit = fit_text(rank.fits)
    return f"{name}: {scale.label(need)} of {scale.label(free)} free, {fit}"
