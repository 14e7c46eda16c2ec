"""The operations of a step as numpy columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpudash.speed.work import (
    ATTENTION,
    CONVOLUTION,
    COPY,
    DEPTHWISE,
    EMBEDDING,
    GROUPED,
    KINDS,
    NORMALISATION,
    OPTIMIZER,
    PRODUCT,
    RECURRENT,
    REDUCTION,
    SORT,
    UNKNOWN,
    Operation,
    StepWork,
)

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

DTYPES = ("float32", "float16", "bfloat16", "tf32", "float64")

HALF = (DTYPES.index("float16"), DTYPES.index("bfloat16"))

_BACKWARD_PRODUCTS = frozenset(("convolution_backward", "convolution_backward_overrideable"))


@dataclass(frozen=True)
class WorkColumns:
    """Operations as columns, built once for all cards.

    Attributes:
        count: how often each occurs in a step.
        kind: index into `KINDS`.
        dtype: index into `DTYPES`.
        rate: index into `RATES`, for its share of the bandwidth.
        bytes: bytes of memory read and written.
        shape: array of shape (operations, 6), as in `Operation`, padded with 1.
        backward: whether a convolution or attention is a gradient.
        masked: whether attention has a mask.
        channels_last: whether a convolution has that memory format.
        backward_phase, optimizer_phase: whether it belongs to that phase of the step.
    """

    count: Floats
    kind: Numbers
    dtype: Numbers
    rate: Numbers
    flops: Floats
    bytes: Floats
    launches: Floats
    shape: Floats
    backward: NDArray[np.bool_]
    masked: NDArray[np.bool_]
    channels_last: NDArray[np.bool_]
    backward_phase: NDArray[np.bool_]
    optimizer_phase: NDArray[np.bool_]

    @classmethod
    def of(cls, operations: Iterable[Operation], counts: Iterable[int]) -> WorkColumns:
        """Columns for ``operations``, in their order."""
        table = np.array(list(map(_row, operations)), _ROW)
        # Contiguous columns: all formulas work on whole columns, never on rows.
        columns = {name: np.ascontiguousarray(table[name]) for name in _ROW.names or ()}
        return cls(count=np.array(list(counts), dtype=np.float64), **columns)


SIZES = 6
"""Sizes kept of a shape; shorter shapes are padded with ones."""

_ROW = np.dtype(
    [
        ("kind", np.int64),
        ("dtype", np.int64),
        ("rate", np.int64),
        ("flops", np.float64),
        ("bytes", np.float64),
        ("launches", np.float64),
        ("shape", np.float64, (SIZES,)),
        ("backward", np.bool_),
        ("masked", np.bool_),
        ("channels_last", np.bool_),
        ("backward_phase", np.bool_),
        ("optimizer_phase", np.bool_),
    ]
)
"""The columns of `WorkColumns` except ``count``, in the order of `_row`."""


def _row(operation: Operation) -> tuple[object, ...]:
    sizes = tuple(operation.shape[:SIZES])
    return (
        _KIND_INDEX.get(operation.kind, _KIND_INDEX[UNKNOWN]),
        _DTYPE_INDEX.get(operation.dtype, 0),
        _rate(operation),
        operation.flops,
        operation.read_bytes + operation.written_bytes,
        operation.launches,
        sizes + (1,) * (SIZES - len(sizes)),
        operation.name.endswith("_backward") or operation.name in _BACKWARD_PRODUCTS,
        # Of the fused attention kernels, the memory-efficient one accepts a mask.
        "efficient" in operation.name,
        operation.channels_last,
        operation.phase == "backward",
        operation.phase == "optimizer",
    )


RATES = (
    "product_bandwidth",
    "elementwise",
    "cast",
    "copy",
    "batch_norm",
    "normalisation_training",
    "layer_norm",
    "softmax",
    "reduction",
    "pool",
    "resize",
    "gather",
    "optimizer",
    "sort",
    "unknown",
)
"""Names in `Constants` of shares of the bandwidth."""

_KIND_INDEX = {kind: index for index, kind in enumerate(KINDS)}
_DTYPE_INDEX = {dtype: index for index, dtype in enumerate(DTYPES)}
_RATE_INDEX = {name: index for index, name in enumerate(RATES)}
_RATE_OF_KIND = {
    COPY: "copy",
    EMBEDDING: "gather",
    OPTIMIZER: "optimizer",
    REDUCTION: "reduction",
    SORT: "sort",
    UNKNOWN: "unknown",
    **dict.fromkeys((PRODUCT, CONVOLUTION, DEPTHWISE, GROUPED, ATTENTION, RECURRENT), "product_bandwidth"),
}


def _rate(operation: Operation) -> int:
    name = _RATE_OF_KIND.get(operation.kind, "elementwise")
    if operation.name == "_to_copy":
        name = "cast"
    elif "pool" in operation.name:
        name = "pool"
    elif "upsample" in operation.name or "grid_sampler" in operation.name:
        name = "resize"
    elif operation.kind == NORMALISATION:
        name = _normalisation(operation)
    return _RATE_INDEX[name]


def _normalisation(operation: Operation) -> str:
    if "softmax" in operation.name:
        return "softmax"
    if operation.name.endswith("_backward"):
        return "normalisation_training"
    if "batch_norm" not in operation.name:
        return "layer_norm"
    if operation.launches > 1:
        return "normalisation_training"
    return "batch_norm"


def kind_index(kind: str) -> int:
    """Index into `KINDS`."""
    return _KIND_INDEX[kind]


def columns_of(work: StepWork) -> WorkColumns:
    """The columns of ``work``'s operations, built once for all cards."""
    return _columns(_Same(work))


@dataclass(frozen=True, eq=False)
class _Same:
    """Work compared by identity: its content is too large to compare."""

    work: StepWork

    def __hash__(self) -> int:
        return id(self.work)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.work is self.work


@lru_cache(maxsize=4)
def _columns(same: _Same) -> WorkColumns:
    return WorkColumns.of(same.work.operations, same.work.operations.values())
