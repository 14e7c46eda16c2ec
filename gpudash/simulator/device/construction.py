"""What torch makes by other ways than its operations: storages, pinned memory and generators.

For these torch asks the device's C++ side, which a device registered from Python has not, and crashes or fails; here
they are made for the simulated device as CUDA would.
"""

from __future__ import annotations

from typing import Any

import torch

from gpudash.simulator.device import registration
from gpudash.simulator.device.storage import DEVICE
from gpudash.simulator.operations.operations import Engine

PINNED = "_sim_pinned"
"""Attribute of the storages of the host that were pinned."""

NOT_SHARED = "A tensor of a simulated GPU cannot be shared with another process; share tensor.cpu()."

_CpuGenerator = torch._C.Generator
_CpuStorage: Any = torch._C.StorageBase


def install(engine: Engine) -> list[Any]:
    """Make storages, generators and pinned memory of the simulated device."""
    _make_storages(engine)
    torch.Generator = Generator  # type: ignore[misc]
    library = registration.library("aten")
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("is_pinned", _is_pinned, "CPU")
    return [library]


def _is_simulated(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE


def _make_storages(engine: Engine) -> None:
    """Let ``torch.UntypedStorage(..., device="sim")`` take memory of the card, and its methods say what they cannot."""
    storage_type: Any = torch.UntypedStorage

    def make(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _is_simulated(device):
            return _CpuStorage.__new__(cls, *args, device=device, **kwargs)
        card = engine.card(engine.index_of(torch.device(device)))
        if not args or isinstance(args[0], int):
            return engine.storages.new(card, args[0] if args else 0)
        return storage_type(args[0]).to(device=torch.device(DEVICE, card.index))

    storage_type.__new__ = make
    for name, sentence in (
        ("resize_", "The storage of a simulated GPU keeps its size; resize the tensor instead."),
        ("_share_fd_cpu_", NOT_SHARED),
        ("_share_filename_cpu_", NOT_SHARED),
    ):
        setattr(storage_type, name, _unless_simulated(getattr(storage_type, name), sentence))
    if not hasattr(storage_type, DEVICE):
        setattr(storage_type, DEVICE, _to_device)


def _to_device(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """``storage.sim()``, after ``storage.cuda()``."""
    return self.to(device=DEVICE if device is None else torch.device(DEVICE, device), non_blocking=non_blocking)


def _unless_simulated(original: Any, sentence: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == DEVICE:
            raise RuntimeError(sentence)
        return original(self, *args, **kwargs)

    return method


def _pin_memory(tensor: torch.Tensor, _device: torch.device | None = None) -> torch.Tensor:
    """A copy that counts as pinned; the host's memory is no faster for a simulated GPU when it is."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
    setattr(made.untyped_storage(), PINNED, True)
    return made


def _is_pinned(tensor: torch.Tensor, _device: torch.device | None = None) -> bool:
    return getattr(tensor.untyped_storage(), PINNED, False)


class _AnyGenerator(type(_CpuGenerator)):  # type: ignore[misc]
    """Every generator of torch's is an instance of ``torch.Generator``, as before."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _CpuGenerator)


class Generator(_CpuGenerator, metaclass=_AnyGenerator):
    """``torch.Generator``, also for the simulated device, whose numbers the CPU's generator makes."""

    _simulated: torch.device

    def __new__(cls, device: Any = "cpu") -> Any:
        if not _is_simulated(device):
            return _CpuGenerator(device)
        made = _CpuGenerator.__new__(cls)
        made._simulated = torch.device(DEVICE, torch.device(device).index or 0)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        """Everything is done by then."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device it was made for."""
        return self._simulated
