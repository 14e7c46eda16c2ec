"""Names of devices on their way: ``cuda`` as the program says it, ``sim`` as torch is told it."""

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
    """The simulated device in place of one of CUDA's, given as torch takes it; anything else as it is."""
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
    """One of CUDA's in place of a simulated device; any other as it is."""
    if device.type != DEVICE:
        return device
    made = _outward.get(device)
    if made is None:
        made = _outward[device] = _with_type(CUDA, device)
    return made


def reworded(text: str) -> str:
    """A text of torch's, with the device called as the program calls it."""
    return _NAMES.sub(CUDA, text)


def _with_type(kind: str, device: torch.device) -> torch.device:
    if device.index is None:
        return torch.device(kind)
    return torch.device(kind, device.index)
