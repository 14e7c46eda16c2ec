"""A prediction in words, the same in the window and in the terminal."""

from __future__ import annotations

from typing import Literal

from gpudash.devices import SIMULATED, kind_of
from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.estimate import Alternative, Estimate, RankEstimate
from gpudash.memory.explanation import Remedy
from gpudash.memory.rank_estimates import unequal
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
        return f"needs {format_bytes(needed_bytes(estimate))}; what is free is not known"
    if found == "uncertain":
        return f"may fit: within the margin of {format_bytes(estimate.margin_bytes)}"
    where = _where(estimate)
    if found == "fits":
        return f"fits, {format_bytes(spare)} spare{where}" if spare else f"fits, with nothing to spare{where}"
    if spare is None or spare >= -1:
        return f"does not fit{where}"
    return f"does not fit, {format_bytes(-spare)} short{where}"


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
    need = (rank.peak_reserved_bytes or rank.peak_allocated_bytes or 0) + rank.overhead_bytes
    free = "" if rank.free_bytes is None else f" of {format_bytes(rank.free_bytes)} free"
    verdict_words = "" if rank.free_bytes is None else f", {fit_words(rank.fits)}"
    return f"rank {rank.rank} on {rank.device}: {format_bytes(need)}{free}{verdict_words}"


def assumed_words(estimate: Estimate) -> str:
    """What of the overhead is assumed for what connects the ranks; "" for nothing."""
    if not estimate.communication_bytes:
        return ""
    return f"assumed: NCCL about {format_bytes(estimate.communication_bytes)} per rank"


def needed_bytes(estimate: Estimate) -> int:
    """What a run takes of the device at its peak, with room to spare."""
    peak = estimate.peak_reserved_bytes or estimate.peak_allocated_bytes or 0
    return peak + estimate.overhead_bytes


def segments(estimate: Estimate) -> list[tuple[str, int]]:
    """Name and bytes of the parts of a bar: context, NCCL, the categories, and what the allocator holds beyond them."""
    connecting = estimate.communication_bytes
    found = [(CONTEXT, estimate.overhead_bytes - connecting), (COMMUNICATION, connecting)]
    found += [(name, estimate.by_category.get(name, 0)) for name in CATEGORIES]
    beyond = (estimate.peak_reserved_bytes or 0) - (estimate.peak_allocated_bytes or 0)
    return [(name, size) for name, size in [*found, (HELD_BACK, beyond)] if size > 0]


def largest_batch(size: int, together: int | None = None) -> str:
    """The largest batch that fits, 0 for none.

    Args:
        size: of the device, or of each rank.
        together: of all ranks; ``None`` for a run on one device.
    """
    if not size:
        return "not even a batch of 1 fits"
    return (
        f"largest batch that fits: {size}" if together is None else f"largest batch: {size} per rank, {together} in all"
    )


def change_words(alternative: Alternative) -> str:
    """What an alternative changes; a simulated device is marked."""
    words, device = alternative.change, alternative.device
    simulated = device is not None and kind_of(device) == "sim"
    return f"{words} ({SIMULATED})" if simulated and SIMULATED not in words else words


def price(alternative: Alternative | Remedy) -> str:
    """What a change costs: "+33 % time, from FLOPs of the dry run"; "" when nothing is known of it."""
    words = []
    if alternative.slowdown is not None:
        percent = round((alternative.slowdown - 1) * 100)
        told = "same time" if percent == 0 else f"{percent:+d} % time".replace("-", "−")
        words.append(f"{told}, from {alternative.slowdown_from}" if alternative.slowdown_from else told)
    if isinstance(alternative, Alternative) and alternative.ranks is not None:
        words.append(f"takes {alternative.ranks} GPUs, time not predicted; same global batch")
    if alternative.changes_training:
        words.append("may change convergence")
    return "; ".join(words)


def fit_words(fits: bool | None) -> str:
    """Whether it fits, in a word or two."""
    return "may fit" if fits is None else "fits" if fits else "does not fit"
