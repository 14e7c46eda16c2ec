"""The model as its ranks share it: a whole copy on each (DistributedDataParallel), or a shard (FSDP2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from gpudash.specs import TrainingSpec
from gpudash.workloads.running.run_errors import WorkloadError

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Kind of device → what connects the ranks."""


def shared(model: nn.Module, spec: TrainingSpec, device: torch.device) -> nn.Module:
    """``model``, which lies on ``device``, as one of its ranks; its weights are those of rank 0.

    Raises:
        WorkloadError: when this torch has no FSDP2.
    """
    if spec.parallel == "ddp":
        return DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device])
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        message = f"torch {torch.__version__} has no FSDP2 (torch.distributed.fsdp.fully_shard)."
        raise WorkloadError("fsdp", message, "Install torch 2.6 or newer, or choose --parallel ddp.") from error
    with torch.no_grad():
        for weights in model.parameters():
            distributed.broadcast(weights, 0)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def reduce_gradients(model: nn.Module, reduce: bool) -> None:
    """Whether the next forward and backward pass shares its gradients with the other ranks, or only adds them up.

    What `DistributedDataParallel.no_sync` does, for both wrappers: to be set before the forward pass.
    """
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = reduce
        return
    sharded: Any = model
    sharded.set_requires_gradient_sync(reduce)


def _layers(model: nn.Module) -> list[nn.Module]:
    """What is gathered at a time: each block of a transformer or CNN, each layer with weights of an MLP."""
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.ModuleList):
        return list(blocks)
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
