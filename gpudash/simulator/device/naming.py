"""What the program calls the simulated device: ``sim``, or ``cuda`` where it answers for CUDA."""

from __future__ import annotations

from typing import Any

import torch

DEVICE = "sim"


class Naming:
    """The names.

    Attributes:
        shown: what the program sees.
        understood: what it may say.
    """

    def __init__(self) -> None:
        self.shown = DEVICE
        self.understood = frozenset((DEVICE,))

    def means_simulated(self, device: Any) -> bool:
        """Whether a device, given as torch takes it, is a simulated one."""
        return device is not None and torch.device(device).type in self.understood


naming = Naming()
"""Those of this process."""


def device_of(tensor: torch.Tensor) -> torch.device:
    """Where a tensor lies, whatever a function mode makes of its ``device``."""
    with torch._C.DisableTorchFunction():
        return tensor.device
