"""On which device everything of a training lies, and moving it together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from gpudash.units import format_bytes

GROUPS = ("parameters", "buffers", "optimizer state", "batches")


def audit(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, batch: Iterable[torch.Tensor], device: torch.device
) -> tuple[str, dict[str, Any]]:
    """Where parameters, buffers, optimizer state and the newest batch are.

    Single numbers of the optimizer's state, such as Adam's step count, are left on the CPU by torch on purpose; they
    are counted but are no strays.

    Returns:
        a sentence, and ``groups`` (group → device → ``count, bytes``), ``strays`` (names of what is not on ``device``)
        and ``device``.
    """
    groups: dict[str, dict[str, dict[str, int]]] = {group: {} for group in GROUPS}
    strays: list[str] = []
    for group, name, tensor in _everything(model, optimizer, batch):
        place = groups[group].setdefault(str(tensor.device), {"count": 0, "bytes": 0})
        place["count"] += 1
        place["bytes"] += tensor.nbytes
        single = group == "optimizer state" and tensor.numel() == 1
        if not same_device(tensor.device, device) and not single:
            strays.append(f"{group}: {name} on {tensor.device}")
    return _words(groups, strays, device), {"groups": groups, "strays": strays, "device": str(device)}


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether both mean the same device; no index means the first."""
    return one.type == other.type and (one.index or 0) == (other.index or 0)


def move(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Move the model and the optimizer's state to ``device``.

    The state goes through torch's own ``load_state_dict``, which places each tensor with its parameter. Where moving a
    module makes new parameters, as it does between unlike kinds of device, the optimizer is given those.

    Returns:
        bytes that were moved.
    """
    state = optimizer.state_dict()
    size = sum(tensor.nbytes for _, _, tensor in _everything(model, optimizer, ()))
    before = [id(parameter) for parameter in model.parameters()]
    model.to(device)
    moved = dict(zip(before, model.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["params"] = [moved[id(parameter)] for parameter in group["params"]]
    optimizer.state.clear()
    optimizer.load_state_dict(state)
    return size


def _everything(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, batch: Iterable[torch.Tensor]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        yield "parameters", name, parameter
    for name, buffer in model.named_buffers():
        yield "buffers", name, buffer
    for weight, state in optimizer.state.items() if optimizer is not None else ():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield "optimizer state", f"{names.get(id(weight), 'unknown')}.{key}", value
    for index, tensor in enumerate(batch):
        yield "batches", ("inputs", "targets")[index] if index < 2 else str(index), tensor


def _words(groups: dict[str, dict[str, dict[str, int]]], strays: list[str], device: torch.device) -> str:
    if strays:
        more = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
        return f"Not on {device}: {', '.join(strays[:3])}{more}."
    there = [
        f"{group} {format_bytes(sum(place['bytes'] for place in places.values()))}"
        for group, places in groups.items()
        if places
    ]
    return f"All on {device}: {', '.join(there)}."
