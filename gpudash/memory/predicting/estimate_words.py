"""A prediction in words, the same in the window and in the terminal."""

from __future__ import annotations

from typing import Literal

from gpudash.devices.names import SIMULATED, kind_of
from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.predicting.estimate import Alternative, Estimate, RankEstimate
from gpudash.memory.predicting.rank_estimates import unequal
from gpudash.telemetry.explanation import RunChange
from gpudash.units import format_bytes

Verdict = Literal["fits", "short", "uncertain", "unknown"]

CONTEXT = "context"
"""The segment of a bar for what lies outside the allocator."""

COMMUNICATION = "NCCL (assumed)"
"""The segment for what connects the ranks, which is assumed and never measured."""

MOST_RANKS = 4
"""Ranks that are told one by one; of more only the one that decides."""

HELD_BACK = "idle in the allocator"
"""The segment for what is reserved at the peak and not allocated."""


def assumption_lines(estimate: Estimate) -> list[str]:
    """What the prediction of a user's code takes for granted, each in a line."""
    return [f"taken for granted at {assumption}" for assumption in estimate.assumptions]


def verdict(estimate: Estimate) -> Verdict:
    """What a prediction comes to; "unknown" when nothing was predicted, or it is not known what is free."""
    if estimate.peak_allocated_bytes is None or estimate.free_bytes is None:
        return "unknown"
    if estimate.fits is None:
        return "uncertain"
    return "fits" if estimate.fits else "short"


def headline(estimate: Estimate) -> str:
    """One line: "fits, 2.30 GiB spare"."""
    found = verdict(estimate)
    spare = estimate.spare_bytes
    if estimate.peak_allocated_bytes is None:
        return "cannot be predicted"
    if found == "unknown":
        return f"needs {format_bytes(estimate.needed_bytes)}; what is free is not known"
    if found == "uncertain":
        return f"may fit: within the margin of {format_bytes(estimate.margin_bytes)}"
    if estimate.fills_memory:
        return "takes all there is and runs out, as it is meant to"
    where = _where(estimate)
    if found == "fits":
        if estimate.released_bytes:
            return f"{AFTER_RELEASE}{where}"
        return f"fits, {format_bytes(spare)} spare{where}" if spare else f"fits, with nothing to spare{where}"
    assert spare is not None
    return f"does not fit, {format_bytes(-spare)} short{where}"


def need_words(estimate: Estimate) -> str:
    """What is taken of what is free: "needs 2.30 GiB ± 24 MiB of 8.00 GiB free"; "" when nothing is known.

    Two sizes that differ never read alike: where they would, both are written in a smaller unit.
    """
    need, free = estimate.needed_bytes, estimate.free_bytes
    if need is None:
        return ""
    margin = f" ± {format_bytes(estimate.margin_bytes)}" if estimate.margin_bytes else ""
    if free is None:
        return f"needs {format_bytes(need)}{margin}"
    units = (None, "MiB", "KiB", "B")
    needed, there = next(
        texts
        for unit in units
        if (texts := (format_bytes(need, unit=unit), format_bytes(free, unit=unit)))[0] != texts[1] or need == free
    )
    return f"needs {needed}{margin} of {there} free"


def release_words(estimate: Estimate) -> str:
    """What the allocator has to give back on the way; "" when it passes without, or does not."""
    if not estimate.released_bytes or not estimate.peak_reserved_bytes:
        return ""
    times = "" if not estimate.retries else " once" if estimate.retries == 1 else f" {estimate.retries} times"
    more = format_bytes(estimate.peak_reserved_bytes + estimate.released_bytes)
    return (
        f"PyTorch has to release its cache{times} in the steps followed, which takes time; "
        f"with room to spare it would reserve {more}"
    )


AFTER_RELEASE = "fits only after releasing its cache"


def _where(estimate: Estimate) -> str:
    """On which of several ranks; "" for a run on one device."""
    if not estimate.ranks:
        return ""
    return f" on rank {estimate.deciding_rank}" if unequal(estimate) else " per rank"


def rank_lines(estimate: Estimate) -> list[str]:
    """The ranks beside the one that decides, each in a line, and why that one decides; none for a run on one device."""
    if not estimate.ranks:
        return []
    count, deciding = len(estimate.ranks), estimate.deciding_rank
    if unequal(estimate):
        lines = [f"{count} ranks, memory unequal: rank {deciding} on {estimate.device} has least and decides"]
    else:
        lines = [f"{count} ranks, {'all alike' if count <= MOST_RANKS else 'the fullest shown'}: rank {deciding} above"]
    if count <= MOST_RANKS:
        lines += [rank_words(rank) for rank in estimate.ranks if rank.rank != deciding]
    return lines


def rank_words(rank: RankEstimate) -> str:
    """What one rank needs of its device."""
    need = rank.needed_bytes
    free = "" if rank.free_bytes is None else f" of {format_bytes(rank.free_bytes)} free"
    fit = AFTER_RELEASE if rank.fits and rank.released_bytes else fit_words(rank.fits)
    verdict_words = "" if rank.free_bytes is None else f", {fit}"
    return f"rank {rank.rank} on {rank.device}: {format_bytes(need)}{free}{verdict_words}"


def assumed_words(estimate: Estimate) -> str:
    """What of the overhead is assumed for what connects the ranks; "" for nothing."""
    if not estimate.communication_bytes:
        return ""
    return f"assumed: NCCL about {format_bytes(estimate.communication_bytes)} per rank"


def segments(estimate: Estimate) -> list[tuple[str, int]]:
    """Name and bytes of the parts of a bar: context, NCCL, the categories, and what the allocator holds beyond them.

    They add up to what is needed.
    """
    connecting = estimate.communication_bytes
    found = [(CONTEXT, estimate.overhead_bytes - connecting), (COMMUNICATION, connecting)]
    found += [(name, estimate.by_category.get(name, 0)) for name in CATEGORIES]
    reserved = estimate.peak_reserved_bytes or 0
    if reserved and estimate.needed_bytes is not None:
        reserved = estimate.needed_bytes - estimate.overhead_bytes
    beyond = reserved - (estimate.peak_allocated_bytes or 0)
    return [(name, size) for name, size in [*found, (HELD_BACK, beyond)] if size > 0]


def bar_bytes(estimate: Estimate) -> int:
    """All parts of a bar together: what is needed, as far as it is known."""
    return sum(size for _name, size in segments(estimate))


def largest_batch(estimate: Estimate) -> str:
    """The largest batch that fits; "" when it is not known."""
    size, together = estimate.largest_batch_size, estimate.largest_global_batch
    if size is None:
        return ""
    if not size:
        return "not even a batch of 1 fits"
    return (
        f"largest batch that fits: {size}" if together is None else f"largest batch: {size} per rank, {together} in all"
    )


def largest_batch_remark(estimate: Estimate) -> str:
    """What the largest batch rests on: the margin, and a cache that is released; "" for neither."""
    if not estimate.largest_batch_size:
        return ""
    remarks = []
    if estimate.margin_bytes:
        remarks.append("also if the prediction is off by its margin")
    if estimate.largest_batch_releases:
        remarks.append("only after releasing its cache")
    return f"the largest batch fits {', and '.join(remarks)}" if remarks else ""


def change_words(alternative: RunChange) -> str:
    """What an alternative changes; a simulated device is marked."""
    words, device = alternative.change, alternative.device
    simulated = device is not None and kind_of(device) == "sim"
    return f"{words} ({SIMULATED})" if simulated and SIMULATED not in words else words


def price(alternative: RunChange) -> str:
    """What a change costs: "+33 % time, from FLOPs of the dry run"; "" when nothing is known of it."""
    words = []
    if alternative.slowdown is not None:
        percent = round((alternative.slowdown - 1) * 100)
        told = "same time" if percent == 0 else f"{percent:+d} % time".replace("-", "−")
        words.append(f"{told}, from {alternative.slowdown_from}" if alternative.slowdown_from else told)
    if isinstance(alternative, Alternative) and alternative.ranks is not None:
        words.append(f"takes {alternative.ranks} GPUs, time not predicted; same global batch")
    if alternative.releases_cache:
        words.append("only after releasing its cache")
    if alternative.changes_training:
        words.append("may change convergence")
    return "; ".join(words)


def fit_words(fits: bool | None) -> str:
    """Whether it fits, in a word or two."""
    return "may fit" if fits is None else "fits" if fits else "does not fit"
