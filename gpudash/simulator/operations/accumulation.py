"""Adding up the gradients that come to a tensor from several uses, in place where torch's engine would on CUDA.

``InputBuffer::accumulate`` (torch/csrc/autograd/input_buffer.cpp) adds to what nobody else holds. It asks how often
the storage is held; that of a simulated tensor is held once more, by its Python object, so that the engine asks for a
new tensor instead. Here that request is known again, and served by the tensor it would have added to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpudash.simulator.device import autograd
from gpudash.simulator.device.storage import DEVICE
from gpudash.simulator.operations.operations import Engine

TENSOR_HOLDERS, STORAGE_HOLDERS = 3, 2
"""How often torch says, while a kernel looks, that a tensor and its storage are held of which only the engine's buffer
holds one; what Python or another operation asks to be added is held otherwise."""

_add = torch.ops.aten.add.Tensor
_add_in_place = torch.ops.aten.add_.Tensor


def kernels(engine: Engine) -> dict[str, Callable[..., Any]]:
    """The sum of two tensors."""

    def add(one: torch.Tensor, other: Any, *, alpha: Any = 1) -> Any:
        if alpha == 1 and autograd.goes_backward() and not torch.is_grad_enabled() and _takes(one, other):
            return engine.run(_add_in_place, (one, other), {})
        return engine.run(_add, (one, other), {} if alpha == 1 else {"alpha": alpha})

    return {"add.Tensor": add}


def _takes(one: torch.Tensor, other: Any) -> bool:
    """Whether ``one`` is held by the engine's buffer only, is dense, and ``other`` can be added to it as it is."""
    if one.device.type != DEVICE or not isinstance(other, torch.Tensor):
        return False
    if one.shape != other.shape or one.dtype != other.dtype or one._use_count() != TENSOR_HOLDERS:  # type: ignore[attr-defined]
        return False
    storage = one.untyped_storage()
    if torch._C._storage_Use_Count(storage._cdata) != STORAGE_HOLDERS:
        return False
    return bool(torch.ops.aten.is_non_overlapping_and_dense(one))
