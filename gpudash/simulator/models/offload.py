"""What a training keeps on the host: its activations, or its weights, gradients and optimizer state.

Both ways are torch's own: `torch.autograd.graph.save_on_cpu`, which copies everything saved for the backward pass, and
FSDP2 with `torch.distributed.fsdp.CPUOffloadPolicy`, which copies each block's weights to the device when needed and
runs the optimizer on the CPU. Copies are counted where they happen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils import _python_dispatch

from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.dry_run.host_tensors import HostTensors

NONE, ACTIVATIONS, WEIGHTS = "none", "activations", "weights"
"""What may be kept on the host: `WEIGHTS` includes their gradients and the optimizer's state."""

_Mode: Any = _python_dispatch.TorchDispatchMode

_COPYING = ("_to_copy", "copy_")


class BusTraffic(_Mode):  # type: ignore[misc]  # a base that torch gives no type
    """Counts copies between the simulated device and the host while active.

    Attributes:
        to_host, to_device: bytes.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.to_host = self.to_device = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch would import its compiler

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``operation``, and count its bytes if it copies between device and host."""
        made = operation(*args, **(kwargs or {}))
        if getattr(operation, "_opname", "") in _COPYING:
            if operation._opname == "copy_":
                source = args[1]
            else:
                source = args[0]
            if isinstance(made, torch.Tensor) and isinstance(source, torch.Tensor):
                self._count(source, made)
        return made

    def _count(self, source: torch.Tensor, made: torch.Tensor) -> None:
        size = made.numel() * made.element_size()
        if source.device.type != made.device.type:
            self.to_device += size if made.device.type == DEVICE else 0
            self.to_host += size if source.device.type == DEVICE else 0


class Offload:
    """What a training keeps on the host, and how much memory that takes there.

    Args:
        kind: `NONE`, `ACTIVATIONS` or `WEIGHTS`.
        pins: whether activations go to pinned memory, as on a real GPU; a dry run only counts it.

    Attributes:
        kind: as given.
    """

    def __init__(self, kind: str, *, pins: bool = False) -> None:
        self.kind = kind
        self.pins = pins
        self._now = self._pinned = self._most = 0
        self._traffic = BusTraffic()
        self._model: nn.Module | None = None
        self._twins: list[nn.Parameter] = []
        self._optimizer: Any = None

    @property
    def holds_weights(self) -> bool:
        """Whether the weights are on the host."""
        return self.kind == WEIGHTS

    def learned(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters of ``model`` to give to an optimizer: the trainable ones.

        Parameters with gradients on torch's device ``meta`` stand for those on the host: the CPU's step takes nothing
        of the device, and would take the size of the state on this host.
        """
        self._model = model
        own = [weight for weight in model.parameters() if weight.requires_grad]
        if not self.holds_weights:
            return own
        for weight in map(_shard, own):
            twin = nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype, device="meta"))
            twin.grad = torch.empty_like(twin)
            self._twins.append(twin)
        return self._twins

    def stepped(self, optimizer: Any) -> None:
        """Drop the gradients after a step of ``optimizer``, whose state is recorded."""
        self._optimizer = optimizer
        if self._model is not None and self.holds_weights:
            self._model.zero_grad()
        else:
            optimizer.zero_grad()

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context manager around a step of the training."""
        if self.kind == NONE:
            yield
            return
        self._traffic = BusTraffic()
        self._most = self._now
        if not self.holds_weights:  # activations are counted when saved and read
            yield
            return
        with HostTensors(), self._traffic:
            yield

    def saving(self) -> Any:
        """A context manager around a forward pass."""
        if self.kind == ACTIVATIONS:
            return _Saving(self)
        return nullcontext()

    def took(self, tensor: torch.Tensor) -> None:
        """Count a tensor that was copied to pinned memory, as long as it lives there."""
        size = _pinned_bytes(tensor)
        self._traffic.to_host += tensor.numel() * tensor.element_size()
        self._now += size
        self._most = max(self._most, self._now)
        weakref.finalize(tensor, self._gave, size)

    def brought(self, tensor: torch.Tensor) -> None:
        """Count a tensor that was copied back."""
        self._traffic.to_device += tensor.numel() * tensor.element_size()

    def _gave(self, size: int) -> None:
        self._now -= size

    def facts(self, ranks: int) -> dict[str, int]:
        """Bytes of the last step: transferred in each direction between a GPU and the host, and the peak of pinned and
        other memory that all ranks use on the host; empty if nothing is kept there."""
        if self.kind == NONE:
            return {}
        pinned, pageable = self._most, 0
        if self.holds_weights and self._model is not None:
            for weight in self._model.parameters():
                pinned += _pinned_bytes(_shard(weight)) * (2 if weight.requires_grad else 1)  # including its gradient
            for state in self._optimizer.state.values():
                pageable += sum(one.numel() * one.element_size() for one in _tensors(state))
        return {
            "to_host_bytes": self._traffic.to_host,
            "to_device_bytes": self._traffic.to_device,
            "pinned_bytes": ranks * pinned,
            "pageable_bytes": ranks * pageable,
        }


class _Saving(save_on_cpu):
    """`save_on_cpu` that counts what a simulated device copies to the host."""

    def __init__(self, offload: Offload) -> None:
        super().__init__(pin_memory=offload.pins)
        pack, unpack = self.pack_hook, self.unpack_hook

        def packed(tensor: torch.Tensor) -> Any:
            kept: Any = pack(tensor)
            if tensor.device.type == DEVICE:
                offload.took(kept[1])
            return kept

        def unpacked(kept: Any) -> torch.Tensor:
            tensor: torch.Tensor = unpack(kept)
            if tensor.device.type == DEVICE:
                offload.brought(tensor)
            return tensor

        self.pack_hook, self.unpack_hook = packed, unpacked


def _shard(weight: torch.Tensor) -> torch.Tensor:
    """A rank's part of a weight: all of it, unless FSDP2 shards it."""
    shard: torch.Tensor = getattr(weight, "_local_tensor", weight)
    return shard


def _pinned_bytes(tensor: torch.Tensor) -> int:
    """What torch's allocator of pinned memory takes for ``tensor``: the next power of two (``PowerOf2Ceil`` in
    ATen/core/CachingHostAllocator.h)."""
    size = tensor.numel() * tensor.element_size()
    if size:
        return 1 << (size - 1).bit_length()
    return 0


def _tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, dict):
        return [one for one in state.values() if isinstance(one, torch.Tensor)]
    return []
