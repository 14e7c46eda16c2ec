"""Translates device names: ``cuda`` in the program, ``sim`` in torch."""

from __future__ import annotations

import re
from typing import Any

import torch

from gpudash.simulator.device.naming import DEVICE

CUDA = "cuda"

_NAMES = re.compile(rf"\b{DEVICE}(?=:\d|\b)")

_inward: dict[torch.device, torch.device] = {}
_outward: dict[torch.device, torch.device] = {}


def inward(device: Any) -> Any:
    """The simulated device for a CUDA device in any form torch accepts; anything else unchanged."""
    if type(device) is str:
        if not device.startswith(CUDA):
            return device
        device = torch.device(device)
    if type(device) is not torch.device or device.type != CUDA:
        return device
    made = _inward.get(device)
    if made is None:
        made = _inward[device] = _with_type(DEVICE, device)
    return made


def outward(device: torch.device) -> torch.device:
    """The CUDA device for a simulated one; any other unchanged."""
    if device.type != DEVICE:
        return device
    made = _outward.get(device)
    if made is None:
        made = _outward[device] = _with_type(CUDA, device)
    return made


def reworded(text: str) -> str:
    """A message of torch's, with the device named as the program names it."""
    return _NAMES.sub(CUDA, text)


def _with_type(kind: str, device: torch.device) -> torch.device:
    if device.index is None:
        return torch.device(kind)
    return torch.device(kind, device.index)
