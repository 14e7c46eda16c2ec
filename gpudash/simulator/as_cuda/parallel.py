"""Several devices: what ``nn.DataParallel`` asks of CUDA's C++ side, and ranks that would talk through NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import _functions as parallel

from gpudash.simulator.as_cuda.devices import outward
from gpudash.simulator.as_cuda.replacing import Replacements
from gpudash.simulator.as_cuda.telling import tell
from gpudash.simulator.device.naming import DEVICE

Tensors = Sequence[torch.Tensor]

_split: Callable[..., Tensors] = torch.split

NCCL, GLOO = "nccl", "gloo"

BY_GLOO = "NCCL needs real GPUs: between simulated ones gloo does its work, which get_backend() says."


def install(replaced: Replacements) -> None:
    """Give ``torch._C`` these functions, which it has in builds with CUDA, and let gloo stand in for NCCL."""
    for name, function in (
        ("_broadcast", broadcast),
        ("_broadcast_coalesced", broadcast_coalesced),
        ("_scatter", scatter),
        ("_gather", gather),
    ):
        replaced.add(torch._C, name, function)
    # torch makes a device of a number, which is then called by its own name
    replaced.wrap(parallel, "_get_stream", lambda get: lambda device: get(outward(device)))
    if not distributed.is_available():
        return
    for owner in (distributed, distributed.distributed_c10d):
        replaced.wrap(owner, "init_process_group", _by_gloo)
        replaced.wrap(owner, "new_group", _by_gloo)
        replaced.wrap(owner, "barrier", _without_devices)
    # not in the module that defines it, which would go on to what only a build with NCCL has
    replaced.put(distributed, "is_nccl_available", lambda: True)


def _by_gloo(make: Callable[..., Any]) -> Callable[..., Any]:
    """A group by gloo in place of one by NCCL, or by what is usual for CUDA; without NCCL's options and its device."""

    def made(*args: Any, **kwargs: Any) -> Any:
        given = signature(make).bind(*args, **kwargs)
        asked = given.arguments.get("backend")
        if asked is None and make.__name__ == "init_process_group":
            given.arguments["backend"] = GLOO
        elif asked is not None and NCCL in str(asked).lower():
            tell(BY_GLOO)
            given.arguments["backend"] = str(asked).lower().replace(NCCL, GLOO)
        for name in ("device_id", "pg_options"):
            given.arguments.pop(name, None)
        return make(*given.args, **given.kwargs)

    return made


def _without_devices(barrier: Callable[..., Any]) -> Callable[..., Any]:
    """The barrier of gloo takes no devices, which that of NCCL does."""

    def waited(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return barrier(*args, **kwargs)

    return waited


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """A copy on each device; the tensor itself on its own (torch/csrc/cuda/comm.cpp)."""
    return [tensor.to(torch.device(DEVICE, index)) for index in devices]


def broadcast_coalesced(tensors: Tensors, devices: Sequence[int], _buffer_size: int) -> list[list[torch.Tensor]]:
    """Copies of several on each device."""
    return [[tensor.to(torch.device(DEVICE, index)) for tensor in tensors] for index in devices]


def scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, _streams: Any = None
) -> list[torch.Tensor]:
    """Pieces along ``dim``, one to each device."""
    pieces = tensor.chunk(len(devices), dim) if chunk_sizes is None else _split(tensor, list(chunk_sizes), dim)
    return [
        piece.contiguous().to(torch.device(DEVICE, index), non_blocking=True) for piece, index in zip(pieces, devices)
    ]


def gather(tensors: Tensors, dim: int, destination: int | None) -> torch.Tensor:
    """The pieces in one tensor: on a device, on the current one, or with -1 on the CPU."""
    place = "cpu" if destination == -1 else DEVICE if destination is None else f"{DEVICE}:{destination}"
    return torch.cat([tensor.to(place) for tensor in tensors], dim)
