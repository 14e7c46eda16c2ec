"""``torch.compile`` on the simulated device: code is traced and then run as it is; nothing is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from gpudash.simulator.storage import DEVICE


def install() -> None:
    """Run graphs with tensors of the simulated device uncompiled, with one warning."""
    compiler: Any = getattr(torch, "_TorchCompileInductorWrapper", None)
    if compiler is None:
        return
    original = compiler.__call__

    def compiled(self: Any, model: Any, inputs: Sequence[Any]) -> Any:
        if any(isinstance(value, torch.Tensor) and value.device.type == DEVICE for value in inputs):
            warnings.warn(f"torch.compile compiles nothing for {DEVICE}: the code runs as it is.", stacklevel=2)
            return model.forward
        return original(self, model, inputs)

    compiler.__call__ = compiled
