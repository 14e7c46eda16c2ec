"""Several devices: what ``nn.DataParallel`` calls in CUDA's C++ side, and ranks that would communicate by NCCL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel, comm
from torch.nn.parallel import _functions as parallel

from gpudash.simulator.as_cuda import sharded
from gpudash.simulator.as_cuda.devices import outward
from gpudash.simulator.as_cuda.notices import emit
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.faults import hands_on
from gpudash.simulator.replacing import Replacements

Tensors = Sequence[torch.Tensor]

_torch: Any = torch._utils
_split: Callable[..., Tensors] = torch.split

NCCL, GLOO = "nccl", "gloo"

BY_GLOO = "NCCL needs real GPUs: between simulated ones gloo does its work, which get_backend() says."


ALL_USED = (
    "On simulated GPUs DistributedDataParallel does not look for unused parameters (find_unused_parameters), which "
    "takes 4 bytes of each GPU a parameter: it needs memory that is pinned for a real GPU."
)


def install(replaced: Replacements) -> None:
    """Add to ``torch._C`` the functions that builds with CUDA have, and let gloo stand in for NCCL."""
    for name, function in (
        ("_broadcast", broadcast),
        ("_broadcast_coalesced", broadcast_coalesced),
        ("_scatter", scatter),
        ("_gather", gather),
    ):
        replaced.add(torch._C, name, function)
    replaced.wrap(comm, "reduce_add", _reduce_by_host)
    # torch makes a device from an index, which then has the simulated device's name
    replaced.wrap(parallel, "_get_stream", lambda get: lambda device: get(outward(device)))
    if not distributed.is_available():
        return
    replaced.wrap(DistributedDataParallel, "__init__", _with_all_used)
    for name, wrap in (("init_process_group", _by_gloo), ("new_group", _by_gloo), ("barrier", _without_devices)):
        made = wrap(getattr(distributed, name))
        for owner in owners_of(name):
            replaced.put(owner, name, made)
    # not in the module that defines it, which would then access what only a build with NCCL has
    replaced.put(distributed, "is_nccl_available", lambda: True)
    sharded.install(replaced)


def owners_of(name: str) -> list[Any]:
    """The torch modules with this function of ``torch.distributed``: some, such as ``device_mesh``, copied the name
    when they were imported."""
    function = getattr(distributed, name)
    loaded = (module for path, module in sorted(sys.modules.items()) if path.startswith("torch.distributed"))
    return [module for module in loaded if vars(module).get(name) is function]


def _by_gloo(make: Callable[..., Any]) -> Callable[..., Any]:
    """Create a gloo group in place of an NCCL one or CUDA's default; NCCL's options and its device are dropped."""

    @hands_on
    def made(*args: Any, **kwargs: Any) -> Any:
        given = signature(make).bind(*args, **kwargs)
        backend = given.arguments.get("backend")
        if backend is None and make.__name__ == "init_process_group":
            given.arguments["backend"] = GLOO
        elif backend is not None and NCCL in str(backend).lower():
            emit(BY_GLOO)
            given.arguments["backend"] = str(backend).lower().replace(NCCL, GLOO)
        for name in ("device_id", "pg_options"):
            given.arguments.pop(name, None)
        return make(*given.args, **given.kwargs)

    return made


def _with_all_used(make: Callable[..., None]) -> Callable[..., None]:
    """Create a replica whose reducer keeps no map of unused parameters, as it copies that through pinned memory
    (torch/csrc/distributed/c10d/reducer.cpp, `all_reduce_local_used_map`)."""

    @hands_on
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("find_unused_parameters") and not kwargs.get("static_graph"):
            emit(ALL_USED)
            kwargs["find_unused_parameters"] = False
        make(self, *args, **kwargs)

    return made


def _without_devices(barrier: Callable[..., Any]) -> Callable[..., Any]:
    """A barrier without device arguments: NCCL's takes them, gloo's does not."""

    @hands_on
    def waited(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return barrier(*args, **kwargs)

    return waited


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """A copy on each device; on its own device the tensor itself (torch/csrc/cuda/comm.cpp)."""
    return [tensor.to(torch.device(DEVICE, index)) for index in devices]


def broadcast_coalesced(tensors: Tensors, devices: Sequence[int], buffer_size: int) -> list[list[torch.Tensor]]:
    """Copies of several tensors on each device, on the first the tensors themselves. Those of a device share one
    allocation for up to ``buffer_size`` bytes (torch/csrc/cuda/comm.cpp)."""
    copies: list[list[torch.Tensor]] = [[] for _ in devices[1:]]
    for chunk in _torch._take_tensors(tensors, buffer_size):
        flat = _torch._flatten_dense_tensors(chunk)
        for copied, index in zip(copies, devices[1:]):
            there = flat.to(torch.device(DEVICE, index))
            copied += [part.data for part in _torch._unflatten_dense_tensors(there, chunk)]
    return [list(tensors), *(list(_torch._reorder_tensors_as(copied, tensors)) for copied in copies)]


def scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, _streams: Any = None
) -> list[torch.Tensor]:
    """Chunks along ``dim``, one for each device."""
    pieces = tensor.chunk(len(devices), dim) if chunk_sizes is None else _split(tensor, list(chunk_sizes), dim)
    return [
        piece.contiguous().to(torch.device(DEVICE, index), non_blocking=True) for piece, index in zip(pieces, devices)
    ]


def gather(tensors: Tensors, dim: int, destination: int | None) -> torch.Tensor:
    """Join the chunks in one tensor: on a device, on the current one, or with -1 on the CPU."""
    if destination == -1:
        place = "cpu"
    elif destination is None:
        place = DEVICE
    else:
        place = f"{DEVICE}:{destination}"
    lengths = [tensor.size(dim) for tensor in tensors]
    size = list(tensors[0].shape)
    size[dim] = sum(lengths)
    made = torch.empty(size, dtype=tensors[0].dtype, device=place, memory_format=_layout(tensors))
    for part, tensor in zip(_split(made, lengths, dim), tensors):
        part.copy_(tensor)
    return made


def _layout(tensors: Tensors) -> torch.memory_format:
    is_last = all(
        tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
        for tensor in tensors
    )
    if is_last:
        return torch.channels_last
    return torch.contiguous_format


def _reduce_by_host(reduce: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The sum over one tensor per device, with no more memory on the cards than NCCL needs: that of the result."""

    @hands_on
    def reduced(inputs: Tensors, destination: Any = None) -> torch.Tensor:
        if destination is None:
            wanted = torch.cuda.current_device()
        else:
            wanted = _torch._get_device_index(destination, optional=True)
        roots = [tensor for tensor in inputs if tensor.get_device() == wanted]
        if len(inputs) == 1 or not roots or any(tensor.shape != roots[0].shape for tensor in inputs):
            return reduce(inputs, destination)
        made = torch.empty_like(roots[0])
        total = roots[0].cpu()
        for tensor in inputs:
            if tensor is not roots[0]:
                total += tensor.cpu()
        return made.copy_(total)

    return reduced
