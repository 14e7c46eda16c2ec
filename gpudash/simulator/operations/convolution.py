"""The backward pass of a convolution, in the order in which torch's CUDA build has cuDNN make its gradients.

``convolution_backward`` (aten/src/ATen/native/Convolution.cpp) makes the gradients one after another. Copies of the
input and of the incoming gradient serve those of the input and of the weight, and are given back before the gradient of
the bias is added up, which may therefore take their room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpudash.simulator.operations.operations import Engine
from gpudash.simulator.operations.temporaries import layout_of_convolution, suggested_layout

_backward = torch.ops.aten.convolution_backward.default
_sum = torch.ops.aten.sum.dim_IntList

Gradients = tuple[torch.Tensor | None, ...]


def kernels(engine: Engine) -> dict[str, Callable[..., Any]]:
    """The gradients of a convolution of one, two or three dimensions."""

    def convolution_backward(
        grad: torch.Tensor,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias_sizes: Sequence[int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        output_mask: Sequence[bool],
    ) -> Gradients:
        is_1d = weight.dim() == 3
        if is_1d:  # taken for images of height 1, whose copy, if it takes one, lasts to the end
            values = engine.copied(values, torch.contiguous_format)
            grad, values, weight = grad.unsqueeze(2), values.unsqueeze(2), weight.unsqueeze(2)
            stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
            output_padding = [0, *output_padding]
        rest = bias_sizes, stride, padding, dilation, transposed, output_padding, groups
        made = _by_cudnn(engine, grad, values, weight, rest, output_mask)
        bias = engine.run(_sum, (grad, [0, *range(2, grad.dim())]), {}) if output_mask[2] else None
        if is_1d:
            made = tuple(None if one is None else one.squeeze(2) for one in made)
        return *made, bias

    return {"convolution_backward": convolution_backward}


def _by_cudnn(
    engine: Engine,
    grad: torch.Tensor,
    values: torch.Tensor,
    weight: torch.Tensor,
    rest: tuple[Any, ...],
    output_mask: Sequence[bool],
) -> Gradients:
    """The gradients of the input and of the weight (``cudnn_convolution_backward`` and
    ``cudnn_convolution_transpose_backward``, aten/src/ATen/native/cudnn/ConvShared.cpp)."""
    transposed = rest[4]
    if output_mask[1]:
        values = engine.copied(values, layout_of_convolution(values, weight))
    layout = suggested_layout(values)
    if transposed or suggested_layout(grad) != layout:
        grad = engine.copied(grad, layout)
    made: list[torch.Tensor | None] = [None, None]
    for place in (0, 1):
        if output_mask[place]:
            only = [place == number for number in range(3)]
            made[place] = engine.run(_backward, (grad, values, weight, *rest, only), {})[place]
    del grad, values  # in torch's order: the last copy first
    return tuple(made)
