"""Whether all ranks ended with the same parameters, bit for bit."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator

import torch
from torch import distributed, nn


def parameters_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Each parameter whole, one at a time: where ranks hold shards, they gather it, and so all have to ask."""
    for parameter in model.parameters():
        found = parameter.detach()
        gather = getattr(found, "full_tensor", None)
        yield found if gather is None else gather()


def digest(model: nn.Module) -> str:
    """SHA-256 of all parameters' bytes, in their order, in hexadecimal."""
    sum_ = hashlib.sha256()
    for parameter in parameters_of(model):
        held = parameter.cpu().contiguous()
        if held.nbytes:
            sum_.update((ctypes.c_char * held.nbytes).from_address(held.data_ptr()))
    return sum_.hexdigest()


def largest_difference(model: nn.Module) -> float:
    """The largest difference of any weight from rank 0's, over all ranks; every rank has to ask."""
    largest = torch.zeros((), dtype=torch.float64)
    for parameter in parameters_of(model):
        first = parameter.clone()
        distributed.broadcast(first, 0)
        here = (parameter.double() - first.double()).abs().max() if parameter.numel() else largest
        largest = torch.maximum(largest, here.cpu())
    shared = largest.to(next(parameters_of(model)).device)
    distributed.all_reduce(shared, op=distributed.ReduceOp.MAX)
    return float(shared)


def agree(model: nn.Module) -> tuple[str, float]:
    """This rank's digest, and the largest difference between any two ranks' weights and rank 0's: 0 when all agree."""
    own = digest(model)
    all_digests: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(all_digests, own)
    return own, 0.0 if len(set(all_digests)) == 1 else largest_difference(model)
