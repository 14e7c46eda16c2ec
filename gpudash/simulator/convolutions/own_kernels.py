"""Convolutions by torch's own kernels for CUDA instead of cuDNN's: what they request, in the order of their sources.

Most of them unfold one image of the input after another into columns, which they multiply by the weight. They have no
groups: torch calls them once per group, with copies of its parts, and joins the results. The sources are those of
torch 2.13: aten/src/ATen/native/Convolution.cpp (``_convolution``, ``convolution_backward``), and in its folder cuda
ConvolutionMM2d.cu, NaiveDilatedConvolution.cu, NaiveConvolutionTranspose2d.cu, NaiveConvolutionTranspose3d.cu,
DepthwiseConv2d.cu and DepthwiseConv3d.cu. Blocks are freed in reverse order, as C++ destroys local variables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gpudash.simulator.convolutions.backends import ConvBackend, as_images
from gpudash.simulator.faults import hands_on
from gpudash.simulator.operations.operations import Engine
from gpudash.simulator.operations.scripts import Arguments, suggested_layout

Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]

_convolution = torch.ops.aten.convolution.default
_convolution_backward = torch.ops.aten.convolution_backward.default
_sum = torch.ops.aten.sum.dim_IntList
_sum_into = torch.ops.aten.sum.IntList_out


def forward(engine: Engine, backend: ConvBackend, given: Arguments) -> torch.Tensor:
    """The result of ``aten::convolution``, whose arguments are ``given``.

    Raises:
        RuntimeError: torch's, for sizes that do not fit.
    """
    computed = _computed(engine, _convolution, given)
    values = given["input"]
    is_signal = values.dim() == 3
    if is_signal:
        values = engine.copied(values, torch.contiguous_format)
    kernels = _KERNELS[backend](engine, as_images({**given, "input": values}))
    if is_signal:
        made = kernels.forward(computed.unsqueeze(2).shape).squeeze(2)
    else:
        made = kernels.forward(computed.shape)
    if engine.computes:
        engine.like(made).copy_(computed)
    engine.count(_convolution, list(given.values()), {}, made)
    return made


def backward(engine: Engine, backend: ConvBackend, given: Arguments) -> Gradients:
    """The gradients of ``aten::convolution_backward`` for images or volumes, whose arguments are ``given``."""
    made = _KERNELS[backend](engine, given).backward(given["output_mask"])
    if engine.computes:
        for target, source in zip(made, _computed(engine, _convolution_backward, given), strict=True):
            if target is not None:
                engine.like(target).copy_(source)
    engine.count(_convolution_backward, list(given.values()), {}, made)
    return made


@hands_on
def _computed(engine: Engine, operation: Any, given: Arguments) -> Any:
    """What the CPU computes; in a dry run, the sizes alone."""
    return operation(*(engine.like(one) if isinstance(one, torch.Tensor) else one for one in given.values()))


class _Kernels:
    """The kernels of one kind, for one call.

    Args:
        engine: allocates what they request.
        given: the arguments of a convolution or of its backward pass, as of `as_images`.
    """

    def __init__(self, engine: Engine, given: Arguments) -> None:
        self.engine = engine
        self.given = given
        self.groups = int(given["groups"])
        values: torch.Tensor = given["input"]
        self.dtype = values.dtype
        self.index = int(values.device.index)

    def forward(self, size: Sequence[int]) -> torch.Tensor:
        """The result of ``size``, without its numbers."""
        raise NotImplementedError

    def backward(self, mask: Sequence[bool]) -> Gradients:
        """The gradients of input, weight and bias that ``mask`` names, without their numbers."""
        raise NotImplementedError

    def contiguous(self, name: str) -> torch.Tensor:
        """An argument, or a copy of it with channels first."""
        return self.engine.copied(self.given[name], torch.contiguous_format)

    def empty(self, size: Sequence[int]) -> torch.Tensor:
        """A tensor with channels first."""
        return self.engine.empty(size, self.dtype, self.index, None)

    def wanted(self, mask: Sequence[bool], groups: int = 1) -> Gradients:
        """Room for the gradients that ``mask`` names: whole, or of one of several groups."""
        of_input: list[int] = list(self.given["input"].shape)
        of_weight: list[int] = list(self.given["weight"].shape)
        of_input[1] //= groups
        of_weight[0] //= groups
        biases = of_weight[0]
        if self.given["transposed"]:
            biases = of_weight[1] * self.groups // groups
        made: list[torch.Tensor | None] = []
        for size, is_wanted in zip((of_input, of_weight, [biases]), mask, strict=True):
            made.append(self.empty(size) if is_wanted else None)
        return made[0], made[1], made[2]

    def summed(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of the bias."""
        made: torch.Tensor = self.engine.run(_sum, (grad, _all_but_channels(grad)), {})
        return made


def _all_but_channels(grad: torch.Tensor) -> list[int]:
    return [0, *range(2, grad.dim())]


class _Unfolding(_Kernels):
    """Kernels without groups, which multiply columns by the weight."""

    def forward(self, size: Sequence[int]) -> torch.Tensor:
        values = self.contiguous("input")
        weight = self.contiguous("weight")
        if self.groups == 1:
            made = self.convolved(values, size)
        else:
            size_of_one = [size[0], size[1] // self.groups, *size[2:]]
            ones = []
            for group in range(self.groups):
                of_values = self.part(values, 1, group)
                of_weight = self.part(weight, 0, group)
                ones.append(self.convolved(of_values, size_of_one))
                del of_weight, of_values
            made = self.empty(size)
            while ones:
                ones.pop(0)
        del weight, values
        return made

    def backward(self, mask: Sequence[bool]) -> Gradients:
        values = self.contiguous("input")
        weight = self.contiguous("weight")
        grad: torch.Tensor = self.given["grad_output"]
        if self.groups == 1:
            made = self.gradients(grad, values, mask)
        else:
            ones = []
            for group in range(self.groups):
                of_grad = self.part(grad, 1, group)
                of_values = self.part(values, 1, group)
                of_weight = self.part(weight, 0, group)
                ones.append(list(self.gradients(of_grad, of_values, mask)))
                del of_weight, of_values, of_grad
            made = self.wanted(mask)
            for place in (2, 1, 0):
                for one in ones:
                    one[place] = None
        del weight, values
        return made

    def convolved(self, values: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
        """The result of ``size`` for a contiguous input, of one group."""
        made = self.empty(size)
        columns = None
        if self.unfolds():
            columns = self.columns(values.shape[1], size[2:])
        self.multiply()
        del columns
        return made

    def gradients(self, grad: torch.Tensor, values: torch.Tensor, mask: Sequence[bool]) -> Gradients:
        """The gradients for a contiguous input, of one group."""
        raise NotImplementedError

    def part(self, tensor: torch.Tensor, dim: int, group: int) -> torch.Tensor:
        """What belongs to a group, dense in the layout of the whole (``subtensor``)."""
        size = tensor.shape[dim] // self.groups
        return self.engine.copied(tensor.narrow(dim, size * group, size), suggested_layout(tensor))

    def room(self, count: int) -> torch.UntypedStorage | None:
        """Room for so many numbers."""
        return self.engine.room(count * self.dtype.itemsize, self.index)

    def columns(self, channels: int, pixels: Sequence[int]) -> torch.UntypedStorage | None:
        """Room for the columns of one image: for each pixel, what the kernel meets there."""
        return self.room(channels * math.prod(self.given["weight"].shape[2:]) * math.prod(pixels))

    def unfolds(self) -> bool:
        """Whether the columns of an image differ from it."""
        given = self.given
        if any(given["padding"]):
            return True
        return any(size != 1 for size in (*given["weight"].shape[2:], *given["stride"], *given["dilation"]))

    def multiply(self) -> None:
        """Multiply matrices, by cuBLAS."""
        self.engine.take_product_workspaces(self.engine.card(self.index))


class _Slow(_Unfolding):
    """Images (ConvolutionMM2d.cu)."""

    def gradients(self, grad: torch.Tensor, values: torch.Tensor, mask: Sequence[bool]) -> Gradients:
        grad = self.engine.copied(grad, torch.contiguous_format)
        of_input = of_bias = columns = None
        if mask[0]:
            of_input = self.empty(values.shape)
            columns = self.columns(values.shape[1], grad.shape[2:])
            self.multiply()
        if mask[2]:
            of_bias = self.summed(grad)
        _, of_weight, _ = self.wanted((False, mask[1], False), self.groups)
        if mask[1]:
            if columns is None:
                columns = self.columns(values.shape[1], grad.shape[2:])
            self.multiply()
        del columns, grad
        return of_input, of_weight, of_bias


class _Dilated(_Unfolding):
    """Volumes, and images whose kernel is dilated (NaiveDilatedConvolution.cu)."""

    def unfolds(self) -> bool:
        """Always, also where the columns equal the image."""
        return True

    def gradients(self, grad: torch.Tensor, values: torch.Tensor, mask: Sequence[bool]) -> Gradients:
        """The bias's gradient is summed image by image."""
        grad = self.engine.copied(grad, torch.contiguous_format)
        made = self.wanted(mask, self.groups)
        columns = None
        if mask[0] or mask[1]:
            columns = self.columns(values.shape[1], grad.shape[2:])
            self.multiply()
        if mask[2]:
            for image in grad.unbind():
                self.engine.run(_sum, (image, list(range(1, image.dim()))), {})
        del columns, grad
        return made


class _Transposed(_Unfolding):
    """Transposed convolutions (NaiveConvolutionTranspose2d.cu, NaiveConvolutionTranspose3d.cu)."""

    def convolved(self, values: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
        """The bias is added as a product with as many ones as the result has pixels."""
        if values.dim() == 4:
            made = self.empty(size)
        else:
            # torch makes it as large as the input first
            made = self.engine.resize(self.empty(values.shape), size)
        columns = self.columns(size[1], values.shape[2:])
        ones = None
        if self.given["bias"] is not None:
            ones = self.room(math.prod(size[2:]))
        self.multiply()
        del ones, columns
        return made

    def gradients(self, grad: torch.Tensor, values: torch.Tensor, mask: Sequence[bool]) -> Gradients:
        """The gradient of the input, then those of weight and bias with a copy and columns of their own."""
        of_input = None
        if mask[0]:
            copy = self.engine.copied(grad, torch.contiguous_format)
            of_input = self.empty(values.shape)
            columns = self.columns_of(grad, values)
            self.multiply()
            del columns, copy
        _, of_weight, of_bias = self.wanted((False, *mask[1:]), self.groups)
        if mask[1] or mask[2]:
            copy = self.engine.copied(grad, torch.contiguous_format)
            columns = self.columns_of(grad, values)
            if mask[1]:
                self.multiply()
            if of_bias is not None:
                self.engine.run(_sum_into, (copy, _all_but_channels(grad)), {"out": of_bias})
            del columns, copy
        return of_input, of_weight, of_bias

    def columns_of(self, grad: torch.Tensor, values: torch.Tensor) -> torch.UntypedStorage | None:
        """The columns of an image of the incoming gradient."""
        if not self.unfolds():
            return None
        return self.columns(grad.shape[1], values.shape[2:])


class _DepthwiseImages(_Kernels):
    """A kernel per channel of images (DepthwiseConv2d.cu)."""

    def forward(self, size: Sequence[int]) -> torch.Tensor:
        values = self.contiguous("input")
        weight = self.contiguous("weight")
        made = self.empty(size)
        del weight, values
        return made

    def backward(self, mask: Sequence[bool]) -> Gradients:
        """The gradient of the weight comes first; that of the bias is summed in the end."""
        of_input = of_weight = None
        grad = self.contiguous("grad_output")
        if mask[1]:
            values = self.contiguous("input")
            of_weight = self.empty(self.given["weight"].shape)
            del values
        if mask[0]:
            weight = self.contiguous("weight")
            of_input = self.empty(self.given["input"].shape)
            del weight
        del grad
        of_bias = None
        if mask[2]:
            of_bias = self.summed(self.given["grad_output"])
        return of_input, of_weight, of_bias


class _DepthwiseVolumes(_Kernels):
    """A kernel per channel of volumes (DepthwiseConv3d.cu)."""

    def forward(self, size: Sequence[int]) -> torch.Tensor:
        values = self.contiguous("input")
        made = self.empty(size)
        weight = self.contiguous("weight")
        del weight, values
        return made

    def backward(self, mask: Sequence[bool]) -> Gradients:
        of_input, of_weight, of_bias = self.wanted((*mask[:2], False))
        grad = self.contiguous("grad_output")
        for name, is_wanted in (("weight", mask[0]), ("input", mask[1])):
            if is_wanted:
                self.contiguous(name)
        if mask[2]:
            of_bias = self.summed(self.given["grad_output"])
        del grad
        return of_input, of_weight, of_bias


_KERNELS: dict[ConvBackend, type[_Kernels]] = {
    ConvBackend.DEPTHWISE_2D: _DepthwiseImages,
    ConvBackend.DEPTHWISE_3D: _DepthwiseVolumes,
    ConvBackend.SLOW: _Slow,
    ConvBackend.DILATED: _Dilated,
    ConvBackend.TRANSPOSED: _Transposed,
}
