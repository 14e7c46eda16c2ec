"""Tensor types by name, such as ``torch.cuda.FloatTensor``, and the default type of new tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpudash.simulator.as_cuda.devices import CUDA, inward
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.faults import hands_on
from gpudash.simulator.replacing import Replacements

TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


def install(replaced: Replacements) -> None:
    """Add CUDA's tensor types to ``torch.cuda``; one of them may be the default."""
    replaced.put_all(torch.cuda, {name: _tensor_type(name, dtype) for name, dtype in TENSOR_TYPES.items()})
    replaced.put(torch, "set_default_tensor_type", _default_tensor_type(torch.set_default_tensor_type))
    replaced.undo_by(_make_on_cpu)


def _default_tensor_type(plain: Callable[[Any], None]) -> Callable[[Any], None]:
    """``torch.set_default_tensor_type``, also for CUDA's types, which set the default device too."""

    @hands_on
    def put(kind: Any) -> None:
        name = getattr(kind, "cuda_name", kind)
        there = isinstance(name, str) and name.startswith(f"torch.{CUDA}.")
        if not there and torch.get_default_device().type == CUDA:
            torch.set_default_device(None)
        plain(name.replace(f".{CUDA}.", ".") if there else kind)
        _make_on_cpu()
        if there:
            torch.set_default_device(CUDA)
            _make_on_card()

    return put


def _make_on_card() -> None:
    """Create ``torch.Tensor(3)`` on the card if the default type is one of CUDA's.

    ``torch.set_default_device`` alone leaves it on the CPU, also on a real GPU.
    """

    @hands_on
    def made(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        there = torch.device(inward(CUDA if device is None else device)).type == DEVICE
        tensor = _plain_new(cls, *args, **kwargs, **({} if there or device is None else {"device": device}))
        # created from values or from sizes; a subclass is moved in its own way
        if there:
            return tensor.to(DEVICE if device is None else inward(device))
        return tensor

    # on the class itself: `Tensor(3)` calls no mode and no function of torch's first
    _tensor_class.__new__ = made


def _make_on_cpu() -> None:
    if "__new__" in vars(_tensor_class):
        del _tensor_class.__new__


_tensor_class: Any = torch.Tensor
_plain_new = _tensor_class.__new__


class _TensorType(type):
    """Metaclass of ``torch.cuda.FloatTensor`` and similar types."""

    dtype: torch.dtype
    cuda_name: str

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """A tensor of these sizes, or with these values."""
        if device is None:
            target = torch.device(DEVICE)
        else:
            target = inward(device)
        if all(isinstance(size, int) for size in args):
            return torch.empty(args or (0,), dtype=cls.dtype, device=target)
        if isinstance(args[0], torch.Tensor) and not args[0].is_cuda:
            raise TypeError(f"{cls.cuda_name} takes no tensor of the CPU; use .cuda() or .to().")
        if len(args) == 1 and isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=cls.dtype, device=target)
        return torch.as_tensor(*args).to(target, cls.dtype)


def _tensor_type(name: str, dtype: torch.dtype) -> Any:
    return _TensorType(name, (), {"dtype": dtype, "cuda_name": f"torch.{CUDA}.{name}"})
