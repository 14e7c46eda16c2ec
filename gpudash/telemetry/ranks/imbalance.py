"""A rank whose memory is well above that of the others: the one that will run out first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from gpudash.units import format_bytes

LEAST_SHARE = 0.10
"""By how much the peak has to exceed the median of the others'."""

LEAST_BYTES = 64 * 2**20
"""And by how much at least: processes that do the same differ by some MiB of buffers and libraries."""

KINDS = (("allocated_bytes", "allocated"), ("used_bytes", "used"))
"""Which memory is compared, the exact one first."""


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The rank with the most memory.

    Attributes:
        rank: its number.
        bytes: its peak.
        others_bytes: median of the other ranks' peaks.
        text: both in a sentence.
    """

    rank: int
    bytes: int
    others_bytes: int
    text: str


def imbalance(peaks: Mapping[int, Mapping[str, int]]) -> Imbalance | None:
    """The rank whose peak is well above the others', of ``peaks`` by rank and metric."""
    for metric, word in KINDS:
        known = {rank: of[metric] for rank, of in peaks.items() if metric in of}
        if len(known) == len(peaks) >= 2 and any(known.values()):
            return _of(known, word)
    return None


def _of(sizes: Mapping[int, int], word: str) -> Imbalance | None:
    rank = max(sizes, key=sizes.__getitem__)
    others = [other for other in sizes if other != rank]
    size, typical = sizes[rank], int(statistics.median(sizes[other] for other in others))
    if size - typical <= LEAST_BYTES or size <= typical * (1 + LEAST_SHARE):
        return None
    rest = f"rank {others[0]}" if len(others) == 1 else "the other ranks (median)"
    text = (
        f"Memory is unequal: rank {rank} {word} {format_bytes(size)} at its peak, {rest} {format_bytes(typical)}; "
        "the fullest device limits the batch of all."
    )
    return Imbalance(rank, size, typical, text)
