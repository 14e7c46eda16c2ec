"""What ``nn.DataParallel`` asks of CUDA's C++ side: pieces of tensors to several devices, and back together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import _functions as parallel

from gpudash.simulator.as_cuda.devices import outward
from gpudash.simulator.as_cuda.replacing import Replacements
from gpudash.simulator.device.naming import DEVICE

Tensors = Sequence[torch.Tensor]

_split: Callable[..., Tensors] = torch.split


def install(replaced: Replacements) -> None:
    """Give ``torch._C`` these functions, which it has in builds with CUDA."""
    for name, function in (
        ("_broadcast", broadcast),
        ("_broadcast_coalesced", broadcast_coalesced),
        ("_scatter", scatter),
        ("_gather", gather),
    ):
        replaced.add(torch._C, name, function)
    # torch makes a device of a number, which is then called by its own name
    replaced.wrap(parallel, "_get_stream", lambda get: lambda device: get(outward(device)))


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
