"""Operations that CUDA has and the CPU lacks, written in ones that the CPU has; they also serve for sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpudash.simulator.operations import temporaries


def of(operation: Any) -> Callable[..., Any]:
    """What computes ``operation``: itself, unless it has a substitute."""
    compute: Callable[..., Any] = SUBSTITUTES.get(operation._schema.name.replace("aten::", ""), operation._op)
    return compute


def rms_norm_backward(
    grad: torch.Tensor,
    values: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of ``y = x · rstd · weight`` with ``rstd = (mean(x²) + ε)^-1/2`` over the last dimensions."""
    axes = list(range(values.dim() - len(normalized_shape), values.dim()))
    outer = list(range(values.dim() - len(normalized_shape)))
    normal = values.to(rstd.dtype) * rstd
    inner = grad.to(rstd.dtype)
    for_weight = None
    if output_mask[1] and weight is not None:
        product = inner * normal
        for_weight = (product.sum(outer) if outer else product).to(weight.dtype)
    if not output_mask[0]:
        return None, for_weight
    if weight is not None:
        inner = inner * weight.to(rstd.dtype)
    for_values = rstd * (inner - normal * (inner * normal).mean(axes, keepdim=True))
    return for_values.to(values.dtype), for_weight


def softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Softmax; with ``half_to_float`` the float32 one of a float16 tensor."""
    wide = tensor.float() if half_to_float else tensor
    return torch.ops.aten._softmax(wide, dim, False)  # type: ignore[no-any-return]


def log_softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """As `softmax`, its logarithm."""
    wide = tensor.float() if half_to_float else tensor
    return torch.ops.aten._log_softmax(wide, dim, False)  # type: ignore[no-any-return]


def softmax_backward(grad: torch.Tensor, result: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of `softmax` for its argument of ``dtype``."""
    return torch.ops.aten._softmax_backward_data(grad, result, dim, grad.dtype).to(dtype)  # type: ignore[no-any-return]


def log_softmax_backward(grad: torch.Tensor, result: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of `log_softmax` for its argument of ``dtype``."""
    made: torch.Tensor = torch.ops.aten._log_softmax_backward_data(grad.contiguous(), result, dim, grad.dtype)
    return made.to(dtype)


def convolution(values: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    """A convolution; sizes alone lie as cuDNN lays them, while torch's own are always contiguous."""
    made: torch.Tensor = torch.ops.aten.convolution.default(values, weight, *rest)
    if not made.is_meta:
        return made
    return torch.empty_like(made, memory_format=temporaries.layout_of_convolution(values, weight))


def convolution_backward(
    grad: torch.Tensor, values: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of `convolution`, laid as cuDNN lays them (``cudnn_convolution_backward``, ConvShared.cpp)."""
    made: tuple[torch.Tensor | None, ...] = torch.ops.aten.convolution_backward.default(grad, values, weight, *rest)
    if not grad.is_meta:
        return made
    layouts = temporaries.layout_of_convolution(grad, weight), temporaries.layout_of_convolution(values, grad)
    laid = (
        one if one is None else torch.empty_like(one, memory_format=layout)
        for one, layout in zip(made, layouts, strict=False)
    )
    return *laid, made[2]


def fused_sgd(weights: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
    """A step of SGD, which needs no more than it is given."""
    if not weights[0].is_meta:
        torch.ops.aten._fused_sgd_(weights, *args, **kwargs)


def _loss_in_room(loss: Any) -> Callable[..., torch.Tensor]:
    """A loss whose reduced result keeps the room of the losses of each element, as torch makes it (Loss.cpp)."""

    def made(tensor: torch.Tensor, target: torch.Tensor, reduction: int = 1, *rest: Any, **named: Any) -> torch.Tensor:
        result: torch.Tensor = loss(tensor, target, reduction, *rest, **named)
        if not reduction or not tensor.is_meta:
            return result
        sizes = torch.broadcast_shapes(tensor.shape, target.shape)  # type: ignore[no-untyped-call]
        return torch.empty(sizes, dtype=result.dtype, device="meta").as_strided((), ())

    return made


SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "_fused_rms_norm_backward": rms_norm_backward,
    "_fused_sgd_": fused_sgd,
    "_log_softmax": log_softmax,
    "_log_softmax_backward_data": log_softmax_backward,
    "mse_loss": _loss_in_room(torch.ops.aten.mse_loss.default),
    "smooth_l1_loss": _loss_in_room(torch.ops.aten.smooth_l1_loss.default),
    "_softmax": softmax,
    "_softmax_backward_data": softmax_backward,
}
