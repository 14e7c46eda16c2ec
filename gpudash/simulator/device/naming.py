"""How the program names the simulated device: ``sim``, or ``cuda`` when it stands in for CUDA."""

from __future__ import annotations

from typing import Any

import torch

DEVICE = "sim"


class Naming:
    """The device names in use.

    Attributes:
        shown: the name the program sees.
        understood: the names the program may use.
    """

    def __init__(self) -> None:
        self.shown = DEVICE
        self.understood = frozenset((DEVICE,))

    def means_simulated(self, device: Any) -> bool:
        """Whether a device, in any form torch accepts, is a simulated one."""
        return device is not None and torch.device(device).type in self.understood


naming = Naming()
"""The names in this process."""


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device a tensor is on, even if a function mode changes its ``device``."""
    with torch._C.DisableTorchFunction():
        return tensor.device
