"""Predictions of runs on several devices."""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.predicting.estimate import Alternative, Estimate, RankEstimate
from gpudash.memory.predicting.rank_estimates import NCCL_BYTES
from gpudash.units import GIB
from tests.ui.estimates import FITS, SHORT

OVER_TWO = Alternative(
    "FSDP2 over cuda:0, cuda:1",
    {"devices": "cuda:0,cuda:1", "parallel": "fsdp", "global_batch": 16},
    peak_reserved_bytes=6 * GIB,
    fits=True,
    ranks=2,
)
TWO_CARDS = Alternative("2 × 24 GiB with FSDP2", card_bytes=24 * GIB, peak_reserved_bytes=13 * GIB, fits=True, ranks=2)


def of_ranks(whole: Estimate, free: list[int], deciding: int) -> Estimate:
    """``whole`` as the deciding rank's of several on ``cuda:0``, ``cuda:1`` and so on."""
    overhead = whole.overhead_bytes + NCCL_BYTES
    ranks = tuple(
        RankEstimate(
            rank=rank,
            device=f"cuda:{rank}",
            capacity_bytes=8 * GIB,
            free_bytes=size,
            peak_allocated_bytes=whole.peak_allocated_bytes,
            peak_reserved_bytes=whole.peak_reserved_bytes,
            minimum_capacity_bytes=whole.minimum_capacity_bytes,
            overhead_bytes=overhead,
            fits=(whole.peak_reserved_bytes or 0) + overhead <= size,
            spare_bytes=size - overhead - (whole.peak_reserved_bytes or 0),
            margin_bytes=whole.margin_bytes,
        )
        for rank, size in enumerate(free)
    )
    chosen = ranks[deciding]
    return replace(
        whole,
        device=chosen.device,
        free_bytes=chosen.free_bytes,
        fits=chosen.fits,
        spare_bytes=chosen.spare_bytes,
        overhead_bytes=overhead,
        ranks=ranks,
        deciding_rank=deciding,
        strategy="fsdp",
        communication_bytes=NCCL_BYTES,
        largest_global_batch=(whole.largest_batch_size or 0) * len(ranks),
    )


TWO_RANKS = of_ranks(FITS, [8 * GIB, 8 * GIB], 0)
UNEQUAL_RANKS = of_ranks(SHORT, [16 * GIB, 8 * GIB], 1)
EIGHT_RANKS = of_ranks(FITS, [8 * GIB] * 8, 0)
