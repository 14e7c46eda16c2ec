"""Letting Stop reach into a long forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpudash.specs import CPU_FLOPS, TrainingSpec

GPU_FLOPS = 1e12
"""Deliberately low estimate of a GPU's float32 FLOP/s; only decides whether to look for Stop within a batch."""

COMPUTING_ON_THE_CPU = ("cpu", "sim")
"""Kinds of device whose arithmetic is the CPU's: itself and the simulated GPU."""

SHORT_BATCH_S = 0.1
"""Batches expected to be shorter are not interrupted: half of what Stop may take, and it costs microseconds a layer."""


def make_interruptible(model: nn.Module, spec: TrainingSpec, device: torch.device, check: Callable[[], None]) -> None:
    """Call ``check`` after every layer, forward and backward, where a batch is expected to take long.

    Args:
        check: raises to end the step.
    """
    flops = CPU_FLOPS if device.type in COMPUTING_ON_THE_CPU else GPU_FLOPS
    # Backward costs twice as much as forward (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    if 3 * spec.forward_flops / flops <= SHORT_BATCH_S:
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
