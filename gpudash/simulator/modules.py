"""Moving modules to the simulated device: their parameters stay the same objects, as on CUDA.

torch swaps the bytes of a parameter for those on the new device only between the kinds of device it knows as dense,
and makes new parameters otherwise, which an optimizer made before would not know of. Its other way, swapping whole
tensors, keeps them; where that is not possible (a graph still holds the parameter) new ones are made all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpudash.simulator.storage import DEVICE

COULD_NOT_SWAP = "Couldn't swap"


def install() -> None:
    """Keep parameters across ``Module.to``, and let ``tensor.data`` be set to a tensor of the other device."""
    _keep_parameters()
    _set_data_across_devices()


def _keep_parameters() -> None:
    original: Any = nn.Module._apply

    def apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        if before:
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


def _set_data_across_devices() -> None:
    swap: Any = torch.utils.swap_tensors
    plain: Any = torch._C.TensorBase.data

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
    tensor_type.data = property(plain.__get__, set_data, plain.__delete__)
