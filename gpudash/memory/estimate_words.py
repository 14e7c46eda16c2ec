"""A prediction in words, the same in the window and in the terminal."""

from __future__ import annotations

from typing import Literal

from gpudash.devices import SIMULATED, kind_of
from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.estimate import Alternative, Estimate
from gpudash.memory.explanation import Remedy
from gpudash.units import format_bytes

Verdict = Literal["fits", "short", "uncertain", "unknown"]

CONTEXT = "context"
"""The segment of a bar for what lies outside the allocator."""

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
    if found == "fits":
        return f"fits, {format_bytes(spare)} spare" if spare else "fits, with nothing to spare"
    if spare is None or spare >= -1:
        return "does not fit"
    return f"does not fit, {format_bytes(-spare)} short"


def needed_bytes(estimate: Estimate) -> int:
    """What a run takes of the device at its peak, with room to spare."""
    peak = estimate.peak_reserved_bytes or estimate.peak_allocated_bytes or 0
    return peak + estimate.overhead_bytes


def segments(estimate: Estimate) -> list[tuple[str, int]]:
    """Name and bytes of the parts of a bar: context, the categories, and what the allocator holds beyond them."""
    found = [(CONTEXT, estimate.overhead_bytes)]
    found += [(name, estimate.by_category.get(name, 0)) for name in CATEGORIES]
    beyond = (estimate.peak_reserved_bytes or 0) - (estimate.peak_allocated_bytes or 0)
    return [(name, size) for name, size in [*found, (HELD_BACK, beyond)] if size > 0]


def largest_batch(size: int) -> str:
    """The largest batch that fits, 0 for none."""
    return f"largest batch that fits: {size}" if size else "not even a batch of 1 fits"


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
    if alternative.changes_training:
        words.append("may change convergence")
    return "; ".join(words)


def fit_words(fits: bool | None) -> str:
    """Whether it fits, in a word or two."""
    return "may fit" if fits is None else "fits" if fits else "does not fit"
