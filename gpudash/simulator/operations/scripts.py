"""Scripts of what CUDA's kernels ask of the allocator, and the parts that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpudash.memory.predicting.architecture import Architecture

RESULT = 0
"""In a script: where the results are allocated."""

EMPTY_CACHE = -(2**62)
"""In a script: the allocator gives back to the card what is wholly free."""

Script = tuple[int, ...]
"""What a kernel does, in order: a size in bytes is taken, ``-n`` gives the n-th block taken back, `RESULT` and
`EMPTY_CACHE`. What has not been given back at the end is then, the last one first."""


def after_blocks(count: int, steps: Script) -> Script:
    """``steps`` of a script before which ``count`` blocks are taken: its frees count from the first of all."""
    moved = []
    for step in steps:
        if EMPTY_CACHE < step < 0:
            step -= count
        moved.append(step)
    return tuple(moved)


Arguments = Mapping[str, Any]
Writer = Callable[[Arguments, Architecture], Script]

PLAIN: Script = (RESULT,)

HALVES = (torch.float16, torch.bfloat16)


def accumulating_bytes(dtype: torch.dtype) -> int:
    """Bytes of what partial results of ``dtype`` are kept in: halves are added up in float32."""
    if dtype in HALVES:
        return 4
    return dtype.itemsize


def copied_bytes(tensors: Sequence[torch.Tensor], layout: torch.memory_format) -> list[int]:
    """Bytes of a copy in ``layout`` of each tensor that lies otherwise."""
    return [bytes_of(one) for one in tensors if one.numel() and not one.is_contiguous(memory_format=layout)]


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the elements of ``tensor``, as a dense copy has them."""
    return tensor.numel() * tensor.dtype.itemsize


def suggested_layout(tensor: torch.Tensor) -> torch.memory_format:
    """The layout that the strides are like, as ``suggest_memory_format`` of torch's C++ tells it."""
    layout: torch.memory_format = torch._prims_common.suggest_memory_format(tensor)
    return layout
