"""FSDP2 in a dry run.

torch's own code makes the shards, gathers a group of parameters before its forward and backward pass, frees them
behind it, and scatters the gradients; all that is missing on the simulated device are storages that let go of their
bytes and take them again, which is how FSDP2 frees and gathers parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpudash.memory.allocator.trace import WEIGHTS
from gpudash.simulator.operations import Engine
from gpudash.simulator.storage import DEVICE

_emulated = False


def emulate_storages(engine: Engine) -> None:
    """Let FSDP2 free and take the bytes of parameters on the simulated device; once in a process."""
    global _emulated
    if _emulated:
        return
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    storages = engine.storages

    def take(original: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.device.type != DEVICE:
            original(tensor)
        elif storages.take_again(storage, engine.card(storage.device.index)):
            _label(engine, tensor)

    def free(original: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.device.type == DEVICE:
            storages.let_go(storage)
        else:
            original(tensor)

    def gathered(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        for tensor in self.all_gather_outputs:
            if tensor.device.type == DEVICE:
                _label(engine, tensor)

    make = _fsdp_param.FSDPParam.init_all_gather_outputs
    replaced = [
        (module, name, _in_place_of(getattr(module, name), instead))
        for module, name, instead in (
            (_fsdp_param, "alloc_storage", take),
            (_fsdp_param_group, "alloc_storage", take),
            (_fsdp_param, "free_storage", free),
        )
    ]
    for module, name, function in replaced:  # all of them, or none where this torch lacks one
        setattr(module, name, function)
    _emulated = True
    _fsdp_param.FSDPParam.init_all_gather_outputs = gathered  # type: ignore[method-assign]


def _in_place_of(original: Any, instead: Callable[[Any, torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    return lambda tensor: instead(original, tensor)


def _label(engine: Engine, tensor: torch.Tensor) -> None:
    block = engine.storages.block(tensor.untyped_storage())
    if block is not None:
        block.card.label(block.address, WEIGHTS)
