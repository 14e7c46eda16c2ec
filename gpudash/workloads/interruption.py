"""Letting Stop reach into a long forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpudash.specs import CPU_FLOPS, TrainingSpec

CUDA_FLOPS = 1e12
"""Deliberately low estimate of a GPU's float32 FLOP/s; only decides whether to look for Stop within a step."""

SHORT_STEP_S = 0.1
"""Steps expected to be shorter are not interrupted: half of what Stop may take, and it costs microseconds a layer."""


def make_interruptible(
    model: nn.Module, spec: TrainingSpec, items: int, device: torch.device, check: Callable[[], None]
) -> None:
    """Call ``check`` after every layer, forward and backward, where a step of ``items`` items is expected to be long.

    Args:
        check: raises to end the step.
    """
    flops = CPU_FLOPS if device.type == "cpu" else CUDA_FLOPS
    # About 6 FLOP per weight and item forward and backward (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    if 6 * spec.parameters * items / flops <= SHORT_STEP_S:
        return

    def after_backward(_gradient: torch.Tensor) -> None:
        check()

    def after_forward(_layer: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        check()
        if output.requires_grad:
            output.register_hook(after_backward)  # type: ignore[no-untyped-call]

    for layer in model.modules():
        if next(layer.children(), None) is None:
            layer.register_forward_hook(after_forward)
