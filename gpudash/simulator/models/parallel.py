"""A model as one of several ranks trains it: a whole copy with DistributedDataParallel, or a shard with FSDP2 or 1."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpudash.simulator.device.backend import registered
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.dry_run.ranks import (
    NoRanksError,
    emulate_flat_storages,
    emulate_storages,
    first_rank_of,
    replicated,
)
from gpudash.simulator.models.offload import WEIGHTS
from gpudash.simulator.models.packed_layers import PackedLinear
from gpudash.simulator.refusal import CannotPredictError

ONE_DEVICE = "Predict it on one device, or choose --parallel ddp."
FSDP1 = "fsdp1"
ON_HOST = "Leave --offload out, or choose --offload activations."


class ModelRanks:
    """Distributes a model over ranks as copies or shards.

    Args:
        options: ``devices``, ``parallel`` and ``offload`` as in `gpudash.specs.model.ModelSpec.options`. Weights on
            the host are handled by FSDP2, on one device with a single rank.

    Attributes:
        count: number of ranks; 0 for a training on one device.
        shards: whether each rank has a shard of the weights rather than all of them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        devices = str(options["devices"])
        if devices:
            self.count = len(devices.split(","))
        else:
            self.count = 0
        self._on_host = options["offload"] == WEIGHTS
        self._flattens = bool(self.count) and options["parallel"] == FSDP1
        self.shards = self._on_host or self._flattens or (bool(self.count) and options["parallel"] == "fsdp")

    @contextmanager
    def first(self) -> Iterator[None]:
        """Run this process as the first of the ranks, if there are any.

        Raises:
            CannotPredictError: this torch has no ranks that can be followed.
        """
        if not (self.count or self.shards):
            yield
            return
        try:
            with first_rank_of(self.count or 1):
                yield
        except NoRanksError as error:
            raise self._refused(str(error)) from error

    def spread(self, model: nn.Module, device: torch.device) -> nn.Module:
        """``model`` as a rank trains it on ``device``; until then, sharded parts are on torch's device ``meta``.

        Raises:
            CannotPredictError: in one sentence, if FSDP2 cannot shard it.
        """
        if self._flattens:
            return self._flattened(model, device)
        if self.shards:
            return self._sharded(model, device)
        if self.count:
            return _replicated(model, device)
        return model

    def reduce_gradients(self, model: nn.Module, reduce: bool) -> None:
        """Set whether the next forward and backward pass reduces gradients over the ranks or only accumulates them;
        call it before the forward pass."""
        if not self.count:
            return
        spread: Any = model
        if self._flattens:
            # `no_sync` of FSDP1 is a context manager that sets just this.
            for module in spread.fsdp_modules(spread):
                module._sync_gradients = reduce
        elif self.shards:
            spread.set_requires_gradient_sync(reduce)
        else:
            spread.require_backward_grad_sync = reduce

    def _sharded(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Shard each block, and the rest together; no rank ever has all weights on its device."""
        if any(isinstance(module, PackedLinear) for module in model.modules()):
            raise self._refused("Packed weights cannot be sharded by FSDP2.")
        try:
            from torch.distributed import get_world_size
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

            backend = registered()
            if device.type == DEVICE and backend is not None:
                emulate_storages(backend.engine)
        except (ImportError, AttributeError) as error:
            raise self._refused(f"PyTorch {torch.__version__} has no FSDP2 that can be followed.") from error
        mesh = init_device_mesh(device.type, (get_world_size(),))
        policy: dict[str, Any] = {}
        if self._on_host:
            policy = {"offload_policy": CPUOffloadPolicy()}
        try:
            for block in _blocks(model):
                fully_shard(block, mesh=mesh, **policy)
            fully_shard(model, mesh=mesh, **policy)
        except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
            raise self._refused(f"FSDP2 cannot shard {type(model).__name__} ({first}).") from error
        model.to_empty(device="cpu" if self._on_host else device)
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.device != device:
                    module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
        return model

    def _flattened(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Like `_sharded` with FSDP1: a flat parameter for each block, for the rest, and for each trainable weight.

        Trainable weights are separate, as in Answer.AI's fsdp_qlora and in peft's ``fsdp_auto_wrap_policy``, because a
        flat parameter is trained as a whole or not at all. Tensors that are not parameters are whole on every rank,
        such as the scales of packed weights.
        """
        try:
            from torch.distributed.fsdp import FullyShardedDataParallel
            from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

            backend = registered()
            if device.type == DEVICE and backend is not None:
                emulate_flat_storages(backend.engine)
        except (ImportError, AttributeError) as error:
            raise self._refused(f"PyTorch {torch.__version__} has no FSDP1 that can be followed.") from error
        blocks = set(map(id, _blocks(model)))
        learns_all = all(weight.requires_grad for weight in model.parameters())

        def is_unit(module: nn.Module) -> bool:
            return id(module) in blocks or (not learns_all and _is_learned_leaf(module))

        wrapper: Any = FullyShardedDataParallel
        try:
            wrapped: nn.Module = wrapper(
                model,
                auto_wrap_policy=functools.partial(lambda_auto_wrap_policy, lambda_fn=is_unit),
                device_id=device,
                param_init_fn=lambda module: module.to_empty(device=device, recurse=False),
            )
        except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
            raise self._refused(f"FSDP1 cannot shard {type(model).__name__} ({first}).") from error
        return wrapped

    def _refused(self, message: str) -> CannotPredictError:
        if self._on_host:
            kind, remedy = ("offload", ON_HOST)
        else:
            kind, remedy = ("ranks", ONE_DEVICE)
        return CannotPredictError(kind, message, remedy)


def _replicated(model: nn.Module, device: torch.device) -> nn.Module:
    """``model`` in DistributedDataParallel. With packed weights, bitsandbytes keeps tensors that DDP ignores."""
    from torch.nn.parallel import DistributedDataParallel

    unseen = [
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, PackedLinear)
        for name in module._buffers
    ]
    wrapper: Any = DistributedDataParallel
    wrapper._set_params_and_buffers_to_ignore_for_model(model, unseen)
    backend = registered()
    if device.type == DEVICE and backend is not None:
        return replicated(model, backend.engine)
    return DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device])


def _is_learned_leaf(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return not any(True for _ in module.children()) and any(weight.requires_grad for weight in own)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost repeated blocks of a model: the units that are brought onto the device."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outermost = [module for name, module in lists.items() if not any(name.startswith(f"{other}.") for other in lists)]
    return [block for module in outermost for block in module if any(True for _ in block.parameters())]
