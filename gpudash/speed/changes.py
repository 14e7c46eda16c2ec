"""Changes of a program that may make its step faster, as the work that the step would then have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpudash.devices.card_performance import CardPerformance
from gpudash.speed.columns import DTYPES, HALF, WorkColumns, kind_index
from gpudash.speed.work import (
    ATTENTION,
    CONVOLUTION,
    DEPTHWISE,
    GROUPED,
    NORMALISATION,
    OPTIMIZER,
    PRODUCT,
    RECURRENT,
    StepWork,
)

_PRODUCTS = tuple(map(kind_index, (PRODUCT, CONVOLUTION, GROUPED, DEPTHWISE, ATTENTION, RECURRENT)))
_CONVOLUTIONS = tuple(map(kind_index, (CONVOLUTION, GROUPED, DEPTHWISE)))
_FLOAT32 = DTYPES.index("float32")
_TF32 = DTYPES.index("tf32")


@dataclass(frozen=True)
class Change:
    """A changed step.

    Attributes:
        name: the change, in words.
        graph: whether the host starts the whole step at once, as a CUDA graph.
        copies_hidden: whether copies overlap with kernels.
        host_operations: operations that the host no longer has to start.
        fits: as in `gpudash.speed.work.Gain`.
    """

    name: str
    work: StepWork
    columns: WorkColumns
    graph: bool = False
    copies_hidden: bool = False
    host_operations: float = 0.0
    fits: bool | None = True


def changes(
    work: StepWork, columns: WorkColumns, card: CardPerformance, bound: str, more: int, room: float | None
) -> Iterator[Change]:
    """The changes that may help.

    Args:
        bound: what limits the step, one of `gpudash.speed.work.BOUNDS`.
        more: how many times larger a batch to try, if the host is the limit.
        room: how many times larger a batch fits; ``None`` if unknown.
    """
    products = np.isin(columns.kind, _PRODUCTS)
    single = products & (columns.dtype == _FLOAT32)
    if single.any() and not (products & np.isin(columns.dtype, HALF)).any():
        yield from _precision(work, columns, card, products)
    if bound == "launches":
        yield _larger_batch(work, columns, more, room)
        yield Change("CUDA graphs", work, columns, graph=True)
    convolutions = np.isin(columns.kind, _CONVOLUTIONS) & np.isin(columns.dtype, HALF)
    if convolutions.any() and not columns.channels_last[convolutions].all():
        yield Change("channels last", work, replace(columns, channels_last=columns.channels_last | convolutions))
    fused = any(operation.name.startswith("_fused_") for operation in work.operations if operation.kind == OPTIMIZER)
    if columns.optimizer_phase.any() and not fused:
        yield _fused_optimizer(work, columns)
    if work.copied_in_bytes and not work.pinned:
        yield Change("pinned memory, copied ahead", replace(work, pinned=True), columns, copies_hidden=True)


def _precision(
    work: StepWork, columns: WorkColumns, card: CardPerformance, products: NDArray[np.bool_]
) -> Iterator[Change]:
    single = columns.dtype == _FLOAT32
    if card.flops.get("tf32", 0.0) > card.flops["float32"]:
        yield Change("TF32", work, replace(columns, dtype=np.where(single & products, _TF32, columns.dtype)))
    half = "bfloat16" if "bfloat16" in card.flops else "float16"
    # Under autocast, normalisations and the optimizer stay in fp32; everything else moves half of the bytes.
    halved = single & ~columns.optimizer_phase & (columns.kind != kind_index(NORMALISATION))
    halved &= columns.kind != kind_index(OPTIMIZER)
    yield Change(
        "mixed precision (AMP)",
        work,
        replace(
            columns,
            dtype=np.where(single & products, DTYPES.index(half), columns.dtype),
            bytes=np.where(halved, columns.bytes / 2, columns.bytes),
            # A cast before most products: of the input, and of the weight once a step.
            launches=columns.launches + (single & products),
        ),
        host_operations=-float(columns.count[single & products].sum()),
    )


LEAST_LARGER = 1.1
"""Smallest increase of the batch that is worth mentioning."""


def _larger_batch(work: StepWork, columns: WorkColumns, more: int, room: float | None) -> Change:
    """The largest batch that fits, up to ``more`` times the present one; if none is known to fit, ``more`` times.

    Everything but the optimizer grows with the batch.
    """
    times = float(more)
    fits = None if room is None else room >= LEAST_LARGER
    limited = room is not None and fits is True and room < more
    if limited and room is not None:
        times = room
    name, times = _named(work, times)
    if limited:
        name = f"{name}, the most that fits"
    grows = np.where(columns.optimizer_phase | (columns.kind == kind_index(OPTIMIZER)), 1.0, times)
    shape = columns.shape.copy()
    product = columns.kind == kind_index(PRODUCT)
    # For a matrix product, the rows; for a batched one, their number.
    rows = product & (shape[:, 0] == 1)
    shape[:, 1] *= np.where(rows, grows, 1.0)
    # For recurrent layers the third size is the batch: their number and steps are unchanged.
    recurrent = columns.kind == kind_index(RECURRENT)
    shape[:, 0] *= np.where(rows | recurrent, 1.0, grows)
    shape[:, 2] *= np.where(recurrent, grows, 1.0)
    larger = replace(
        work,
        items=round(work.items * times),
        copied_in_bytes=round(work.copied_in_bytes * times),
        copied_out_bytes=round(work.copied_out_bytes * times),
    )
    grown = replace(columns, flops=columns.flops * grows, bytes=columns.bytes * grows, shape=shape)
    return Change(name, larger, grown, fits=fits)


def _named(work: StepWork, times: float) -> tuple[str, float]:
    """A batch ``times`` as large in words, and the factor after rounding it to a whole number."""
    batch = work.batch
    if not batch and work.ranks == 1 and work.unit in ("samples", "images"):
        batch = work.items
    if not batch:
        return f"a batch {times:.3g} times as large", times
    # Within rounding errors, a whole number is meant: 192 / 64 times 64.
    larger = int(batch * times + 1e-6)
    return f"batch {larger}", larger / batch


_FUSED_SHARE = 0.45
"""Bytes moved by a fused optimizer, relative to separate kernels: every tensor once (Adam: 7 of 16)."""


def _fused_optimizer(work: StepWork, columns: WorkColumns) -> Change:
    optimizer = columns.optimizer_phase
    return Change(
        "a fused optimizer",
        work,
        replace(
            columns,
            bytes=np.where(optimizer, columns.bytes * _FUSED_SHARE, columns.bytes),
            launches=np.where(optimizer, columns.launches * 0.1, columns.launches),
        ),
        host_operations=0.9 * float(columns.count[optimizer].sum()),
    )
