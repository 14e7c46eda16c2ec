"""Predictions that the fit panel and its bar are shown."""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.predicting.estimate import Alternative, Estimate
from gpudash.units import GIB

SMALLER_BATCH = Alternative(
    "batch 8",
    {"batch": 8},
    peak_reserved_bytes=5 * GIB,
    fits=True,
    needed_bytes=6 * GIB,
    free_bytes=8 * GIB,
    changes_training=True,
)
CHECKPOINTING = Alternative(
    "activation checkpointing",
    {"checkpointing": True},
    peak_reserved_bytes=9 * GIB,
    fits=False,
    needed_bytes=10 * GIB,
    free_bytes=8 * GIB,
    slowdown=1.33,
    slowdown_from="FLOPs of the dry run",
)
ON_THE_CPU = Alternative(
    "on cpu", device="cpu", peak_reserved_bytes=9 * GIB, fits=True, needed_bytes=9 * GIB, free_bytes=20 * GIB
)
EXPANDABLE = Alternative("expandable segments", allocator="expandable_segments:True", peak_reserved_bytes=9 * GIB)
CARD = Alternative(
    "a card with 16 GiB", peak_reserved_bytes=10 * GIB, fits=True, needed_bytes=11 * GIB, free_bytes=round(14.4 * GIB)
)

SHORT = Estimate(
    workload="training",
    device="cuda:0",
    peak_allocated_bytes=9 * GIB,
    peak_reserved_bytes=10 * GIB,
    minimum_capacity_bytes=round(11.1 * GIB),
    overhead_bytes=GIB,
    by_category={"weights": GIB, "activations": 8 * GIB},
    capacity_bytes=8 * GIB,
    free_bytes=8 * GIB,
    fits=False,
    spare_bytes=-round(3.1 * GIB),
    largest_batch_size=8,
    alternatives=(CHECKPOINTING, SMALLER_BATCH, EXPANDABLE, ON_THE_CPU, CARD),
    method="dry run on sizes alone",
)
FITS = replace(
    SHORT,
    peak_allocated_bytes=GIB,
    peak_reserved_bytes=2 * GIB,
    by_category={"weights": GIB},
    fits=True,
    spare_bytes=5 * GIB,
    largest_batch_size=3040,
    alternatives=(),
)
