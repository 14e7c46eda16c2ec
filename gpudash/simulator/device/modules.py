"""Moving modules to the simulated device: their parameters stay the same objects, as on CUDA.

torch swaps the bytes of a parameter for those on the new device only between the kinds of device it knows as dense,
and makes new parameters otherwise, which an optimizer made before would not know of. Its other way, swapping whole
tensors, keeps them; where that is not possible (a graph still holds the parameter) new ones are made all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gpudash.simulator.device.storage import DEVICE

COULD_NOT_SWAP = "Couldn't swap"


def install() -> None:
    """Keep parameters across ``Module.to``, and let ``tensor.data`` be set to a tensor of the other device."""
    _keep_parameters()
    _set_data_across_devices()


def _keep_parameters() -> None:
    original: Any = nn.Module._apply

    def apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        with _without_sizes_moved(self, fn):
            return apply_to_sized(self, fn, recurse)

    def apply_to_sized(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        if before or _stays(self, fn):
            return original(self, fn, recurse)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return original(self, fn, recurse)
        except RuntimeError as error:
            if COULD_NOT_SWAP not in str(error):
                raise
            if isinstance(error.__cause__, torch.OutOfMemoryError):
                raise error.__cause__ from None
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
        return original(self, fn, recurse)

    nn.Module._apply = apply  # type: ignore[method-assign]


@contextmanager
def _without_sizes_moved(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Move what a lazy module will only know the size of at its first call, and hide it meanwhile.

    It stays the same object of its own class, which says what it is to become.
    """
    every: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    lazy: list[tuple[dict[str, Any], str, Any]] = [
        (owned, name, tensor) for owned in every for name, tensor in owned.items() if is_lazy(tensor)
    ]
    swap: Any = torch.utils.swap_tensors
    for owned, name, tensor in lazy:
        moved = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        made = type(tensor)(tensor.requires_grad, device=moved.device, dtype=moved.dtype)
        made.__dict__.update(tensor.__dict__)
        swap(tensor, made)
        owned[name] = None
    try:
        yield
    finally:
        for owned, name, tensor in lazy:
            owned[name] = tensor


def _stays(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether ``fn`` leaves the module's own parameters on the device, as a change of their dtype does.

    torch then puts their new bytes in place of the old ones, which are free before the next parameter's turn.
    """
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    if any(parameter.device.type != DEVICE or type(parameter) is not nn.Parameter for parameter in own):
        return False
    with torch.no_grad():
        return all(fn(torch.empty(0, dtype=one.dtype, device=one.device)).device == one.device for one in own)


def _set_data_across_devices() -> None:
    swap: Any = torch.utils.swap_tensors
    plain: Any = torch._C.TensorBase.data

    def data(self: torch.Tensor) -> torch.Tensor:
        if not is_lazy(self):
            return plain.__get__(self)  # type: ignore[no-any-return]
        with torch._C.DisableTorchFunctionSubclass():  # else torch makes a lazy one of it, which it cannot from Python
            return plain.__get__(self)  # type: ignore[no-any-return]

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        kinds = {self.device.type, value.device.type}
        if len(kinds) == 1 or DEVICE not in kinds or "meta" in kinds:
            plain.__set__(self, value)
            return
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        plain.__set__(made, value)
        if isinstance(self, nn.Parameter):
            made = nn.Parameter(made, requires_grad=self.requires_grad)
        else:
            made.requires_grad_(self.requires_grad)
        swap(self, made)

    tensor_type: Any = torch.Tensor
    tensor_type.data = property(data, set_data, plain.__delete__)
