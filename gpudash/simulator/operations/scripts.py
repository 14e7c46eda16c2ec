"""Scripts of what CUDA's kernels request from the allocator, and functions to build them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpudash.memory.predicting.architecture import Architecture

RESULT = 0
"""In a script: the results are allocated here."""

EMPTY_CACHE = -(2**62)
"""In a script: the allocator releases all unused segments to the card."""

Script = tuple[int, ...]
"""What a kernel does, in order: a size in bytes allocates a block, ``-n`` frees the n-th block, and `RESULT` and
`EMPTY_CACHE` have their own meaning. Blocks not freed explicitly are freed at the end, the last one first."""


def after_blocks(count: int, steps: Script) -> Script:
    """Shift ``steps`` of a script to follow ``count`` other blocks: its frees count all blocks from the first."""
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
    """Bytes of the dtype in which partial results of ``dtype`` are kept: half precision accumulates in float32."""
    if dtype in HALVES:
        return 4
    return dtype.itemsize


def copied_bytes(tensors: Sequence[torch.Tensor], layout: torch.memory_format) -> list[int]:
    """Bytes of a copy in ``layout`` for each tensor that has another layout."""
    return [bytes_of(one) for one in tensors if one.numel() and not one.is_contiguous(memory_format=layout)]


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the elements of ``tensor``, as in a dense copy."""
    return tensor.numel() * tensor.dtype.itemsize


def suggested_layout(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format that the strides suggest, like ``suggest_memory_format`` in torch's C++."""
    layout: torch.memory_format = torch._prims_common.suggest_memory_format(tensor)
    return layout
