"""Functions of neural networks that torch does in another way on CUDA than on other devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpudash.simulator.device import registration
from gpudash.simulator.device.registration import KEY
from gpudash.simulator.operations.operations import Engine


def kernels(engine: Engine) -> dict[str, Callable[..., Any]]:
    """The functions that are kernels of the device."""
    return {**COMPOSED, "native_dropout": _dropout_of(engine)}


def install() -> list[Any]:
    """Register the functions that are made of others, in whose place torch must not take its own."""
    library = registration.library("aten")
    for name, function in COMPOSED.items():
        library.impl(name, function, f"Autograd{KEY}")
    return [library]


def _softmax_by(kernel: Any) -> Callable[..., torch.Tensor]:
    """Softmax by ``kernel``, which takes float16 and gives float32 in one (aten/src/ATen/native/SoftMax.cpp)."""

    def softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if tensor.dtype == torch.float16 and dtype == torch.float32:
            return kernel(tensor, dim, True)  # type: ignore[no-any-return]
        return kernel(tensor if dtype is None else tensor.to(dtype), dim, False)  # type: ignore[no-any-return]

    return softmax


def _group_norm(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A group norm of a contiguous tensor: on CUDA channels do not stay last (aten/src/ATen/native/group_norm.cpp)."""
    return torch.ops.aten.group_norm.default.decompose(tensor.contiguous(), *args, **kwargs)  # type: ignore[no-any-return]


COMPOSED = {
    "group_norm": _group_norm,
    "softmax.int": _softmax_by(torch.ops.aten._softmax),
    "log_softmax.int": _softmax_by(torch.ops.aten._log_softmax),
}


def _dropout_of(engine: Engine) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Dropout, whose mask is made before its result (aten/src/ATen/native/cuda/Dropout.cu)."""

    def dropout(tensor: torch.Tensor, p: float, train: bool | None = True) -> tuple[torch.Tensor, torch.Tensor]:
        if train is False or not tensor.numel():
            return torch.clone(tensor), torch.ones_like(tensor, dtype=torch.bool)
        mask = torch.empty_like(tensor, dtype=torch.bool)
        result = torch.empty_like(tensor)
        if engine.computes:
            made = torch.native_dropout(engine.like(tensor), p, train)
            engine.like(result).copy_(made[0])
            engine.like(mask).copy_(made[1])
        return result, mask

    return dropout
