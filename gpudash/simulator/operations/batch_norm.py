"""Batch normalisation as on CUDA: by cuDNN, or by torch's kernels for channels first or last.

The sources are aten/src/ATen/native/Normalization.cpp (`_select_batch_norm_backend`), cudnn/BatchNorm.cpp and
cuda/Normalization.cu and .cuh of torch 2.13. torch selects cuDNN by device type, so on a simulated device both arrive
as ``native_batch_norm``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.operations.reductions import Kernel, launch_script
from gpudash.simulator.operations.scripts import (
    HALVES,
    PLAIN,
    RESULT,
    Arguments,
    Script,
    accumulating_bytes,
    bytes_of,
    copied_bytes,
    suggested_layout,
)

THREADS = 512
"""Threads in a block (`MAX_BLOCK_SIZE`)."""

ROWS_PER_THREAD, WIDEST_TILE, MOST_BLOCKS, FEWEST_BLOCKS = 16, 32, 128, 8
"""`ELEMENTS_PER_THREAD`, `OPTIMAL_TILE_W`, `MAX_H_BLOCK`, and the fewest blocks worth combining."""

MOST_BY_CUDNN = {True: 880_801, False: 65_535}
"""The most images in a batch that cuDNN supports, in training and at inference."""


def forward(given: Arguments, architecture: Architecture) -> Script:
    """Partial means and variances for channels last, which several blocks combine; a reduction for other layouts."""
    values = given["input"]
    if _is_by_cudnn(given, training=bool(given["training"])):
        return (*copied_bytes([values], suggested_layout(values)), RESULT)
    if not given["training"] or not values.numel():
        return PLAIN
    if values.dim() < 5 and _has_channels_last(values):
        return (RESULT, *_partial_sums(values, 4))
    if values.is_contiguous():
        return PLAIN
    return (RESULT, *_reduced_statistics(values, architecture))


def _reduced_statistics(values: torch.Tensor, architecture: Architecture) -> Script:
    """Mean and variance by torch's reduction of both: the forward pass has no kernel for volumes with channels last
    (`batch_norm_choose_impl`).

    The reduction reads float16 directly and converts bfloat16 first (`make_reduction`, ReduceOpsUtils.h).
    """
    read = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device="meta")
    copies: Script = ()
    if values.dtype == torch.bfloat16:
        read = read.to(torch.float32)
        copies = (bytes_of(read),)
    each = read.dtype.itemsize
    # two partial results and two counts (`WelfordData`)
    partial = 4 * accumulating_bytes(read.dtype)
    kernel = Kernel(each, partial, accumulating_bytes(read.dtype), vector=2)
    dims = [axis for axis in range(values.dim()) if axis != 1]
    offset = int(values.storage_offset())
    if copies:
        offset = 0
    launches = launch_script(read.shape, read.stride(), offset, dims, kernel, architecture, behind=len(copies))
    return (*copies, *launches)


def backward(given: Arguments, _architecture: Architecture) -> Script:
    """cuDNN needs the gradient in the input's layout; torch's kernels for channels last have two sums per channel."""
    grad, values, (_, of_weight, of_bias) = given["grad_out"], given["input"], given["output_mask"]
    if given["train"] and _is_by_cudnn(given, training=True):
        return (*copied_bytes([grad], suggested_layout(values)), RESULT)
    if not _has_channels_last(values) or not (given["train"] or of_weight or of_bias):
        return PLAIN
    sums = values.shape[1] * accumulating_bytes(values.dtype)
    partial: Script = ()
    if _has_channels_last(grad):
        partial = _partial_sums(values, 2)
    # the blocks' semaphores and partial sums are freed in reverse order before the results are made; the two sums stay
    given_back = tuple(-place for place in range(2 + len(partial), 2, -1))
    return (sums, sums, *partial, *given_back, RESULT)


def without_unused_statistics(forward: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., Any]:
    """The forward pass without the statistics that cuDNN keeps only in training."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "training")

    def compute(*args: Any, **named: Any) -> Any:
        made, *statistics = forward(*args, **named)
        given = {**dict(zip(names, args)), **named}
        if made.is_meta and not given["training"] and _is_by_cudnn(given, training=False):
            statistics = [one.new_empty(0) for one in statistics]
        return (made, *statistics)

    return compute


def laid_as_on_cuda(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The backward pass with the input's gradient in the input's layout rather than its own."""

    def compute(grad: torch.Tensor, values: torch.Tensor, *rest: Any) -> Any:
        made, *others = backward(grad, values, *rest)
        if made is not None and values.is_meta:
            made = torch.empty_like(made, memory_format=suggested_layout(values))
        return (made, *others)

    return compute


def _is_by_cudnn(given: Arguments, *, training: bool) -> bool:
    """As far as the arguments of the native operation show; without a bias the choice is the same as with one."""
    values, weight, mean, spread = (given[name] for name in ("input", "weight", "running_mean", "running_var"))
    if not torch.backends.cudnn.enabled or weight is None or values.dim() < 3:
        return False
    # cuDNN supports half precision only with float32 weights
    if torch.bfloat16 in (values.dtype, weight.dtype) or (values.dtype in HALVES and weight.dtype != torch.float32):
        return False
    has_statistics = mean is not None and spread is not None
    if not has_statistics and not (training and mean is None and spread is None):
        return False
    return int(values.shape[0]) <= MOST_BY_CUDNN[training]


def _has_channels_last(values: torch.Tensor) -> bool:
    """Whether torch uses its kernels for channels last (`batch_norm_use_channels_last_kernels`)."""
    if values.is_contiguous():
        return values.stride(1) == 1
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return values.dim() in layouts and values.is_contiguous(memory_format=layouts[values.dim()])


def _partial_sums(values: torch.Tensor, numbers: int) -> Script:
    """Partial results of several blocks for the last of them (`flexible_launch_configs`), and their semaphores.

    Args:
        numbers: per channel in each block.
    """
    channels = int(values.shape[1])
    rows = values.numel() // max(1, channels)
    if not rows:
        return ()
    wide = min(_power_below(channels), WIDEST_TILE)
    # first as wide as the channels allow, then as high as the rows do, and wider again if threads are left
    high = min(_power_below(-(-rows // ROWS_PER_THREAD)), THREADS // wide)
    if wide * high != THREADS:
        wide = min(_power_below(channels), THREADS // high)
    blocks = min(-(-rows // (high * ROWS_PER_THREAD)), MOST_BLOCKS)
    if blocks < FEWEST_BLOCKS:
        return ()
    return (numbers * channels * blocks * accumulating_bytes(values.dtype), -(-channels // wide) * 4)


def _power_below(number: int) -> int:
    """The largest power of 2 that does not exceed ``number`` (`lastPow2`)."""
    return 1 << (number.bit_length() - 1)
