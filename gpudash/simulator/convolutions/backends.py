"""Which library or kernel computes a convolution on CUDA, as torch chooses it.

The rules are those of torch 2.13: ``select_conv_backend`` with ``use_cudnn`` and ``use_cudnn_depthwise``
(aten/src/ATen/native/Convolution.cpp), and ``cudnn_conv_suggest_memory_format`` (ConvUtils.h there).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import torch

from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.operations.scripts import Arguments, suggested_layout

FIRST_WITH_BFLOAT16 = (8, 0)
"""The first compute capability on which cuDNN convolves in bfloat16 (``supportsBFloat16ConvolutionWithCuDNNv8``)."""


class ConvBackend(Enum):
    """Who computes a convolution, as torch names it: cuDNN, or one of torch's own kernels.

    Those are one for images and one for volumes with a kernel per channel, one for other images, one for other volumes
    and images whose kernel is dilated, and one for transposed convolutions.
    """

    CUDNN = auto()
    DEPTHWISE_2D = auto()
    DEPTHWISE_3D = auto()
    SLOW = auto()
    DILATED = auto()
    TRANSPOSED = auto()


PER_AXIS = ("stride", "padding", "dilation", "output_padding")


def as_images(given: Arguments) -> dict[str, Any]:
    """The arguments of a convolution with one number per axis; signals become images of height 1 (``view1d_as_2d``)."""
    axes = given["weight"].dim() - 2
    found = dict(given)
    for name in PER_AXIS:
        numbers = list(given[name])
        found[name] = list(map(int, numbers * axes if len(numbers) == 1 else numbers))
    if axes > 1:
        return found
    for name, before in zip(PER_AXIS, (1, 0, 1, 0), strict=True):
        found[name].insert(0, before)
    for name in ("input", "weight", "grad_output"):
        if name in found:
            found[name] = found[name].unsqueeze(2)
    return found


def backend_of(given: Arguments, architecture: Architecture) -> ConvBackend:
    """Who computes a convolution or its gradients.

    Args:
        given: the arguments of a convolution, or of its backward pass.

    Raises:
        RuntimeError: torch's, if it is left to cuDNN, which cannot compute it on this card.
    """
    values = given["input"]
    # without numbers there is nothing to compute
    if not values.numel():
        return ConvBackend.CUDNN
    if values.dim() == 3:  # torch makes signals contiguous first
        values = torch.empty(values.shape, dtype=values.dtype, device="meta")
    images = as_images({**given, "input": values})
    if _is_depthwise(images):
        return _depthwise_backend(images, architecture)
    if torch.backends.cudnn.enabled and _is_by_cudnn(images, architecture):
        return ConvBackend.CUDNN
    if images["transposed"]:
        return ConvBackend.TRANSPOSED
    if values.dim() == 5 or any(one != 1 for one in images["dilation"]):
        return ConvBackend.DILATED
    return ConvBackend.SLOW


def layout_of_convolution(values: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The memory format of cuDNN's convolution: channels last if either tensor has it, except for float64
    (``cudnn_conv_suggest_memory_format``, aten/src/ATen/native/ConvUtils.h)."""
    if torch.float64 in (values.dtype, weight.dtype):
        return torch.contiguous_format
    found = suggested_layout(values)
    if found == torch.contiguous_format:
        return suggested_layout(weight)
    return found


def _is_by_cudnn(given: Arguments, architecture: Architecture) -> bool:
    """``use_cudnn``, where it is enabled."""
    if not _has_dtype(given, architecture):
        return False
    return all(more < stride for more, stride in zip(given["output_padding"], given["stride"], strict=True))


def _has_dtype(given: Arguments, architecture: Architecture) -> bool:
    """Whether cuDNN convolves in the dtype on this card."""
    is_bfloat16 = torch.bfloat16 in (given["input"].dtype, given["weight"].dtype)
    return not is_bfloat16 or architecture.capability >= FIRST_WITH_BFLOAT16


def _depthwise_backend(given: Arguments, architecture: Architecture) -> ConvBackend:
    """``use_cudnn_depthwise``: with channels last torch does not ask whether cuDNN has the dtype."""
    values = given["input"]
    if torch.backends.cudnn.enabled:
        if layout_of_convolution(values, given["weight"]) != torch.contiguous_format:
            if not _has_dtype(given, architecture):
                raise RuntimeError("GET was unable to find an engine to execute this computation")
            return ConvBackend.CUDNN
        if _is_faster_by_cudnn(given):
            return ConvBackend.CUDNN
    if values.dim() == 5:
        return ConvBackend.DEPTHWISE_3D
    return ConvBackend.DEPTHWISE_2D


def _is_depthwise(given: Arguments) -> bool:
    channels = given["input"].shape[1]
    groups = int(given["groups"])
    return not given["transposed"] and 1 < groups == channels and given["weight"].shape[0] % channels == 0


def _is_faster_by_cudnn(given: Arguments) -> bool:
    """The same for channels first, with ``check_cudnn_depthwise_workload_with_filter``."""
    values = given["input"]
    weight = given["weight"]
    if values.dtype != torch.float16 or values.dim() != 4 or values.shape[1] < 32:
        return False
    stride: Sequence[int] = given["stride"]
    if any(one != 1 for one in given["dilation"]) or (stride[0] != stride[-1] and values.shape[2] != 1):
        return False
    batch, channels, height, width = map(int, values.shape)
    kernel = int(weight.shape[3])
    if height == 1 and stride[-1] == 1:
        return True
    if weight.shape[2] != kernel or kernel not in (1, 3, 5) or width < 7:
        return False
    if stride[-1] != 2:
        return bool(stride[-1] == 1)
    if batch == 1:
        return kernel > 1 or width <= 28
    if kernel == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)
