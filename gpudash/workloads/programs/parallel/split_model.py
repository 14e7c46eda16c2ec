"""A model split by hand over two devices: the first half of its layers on one, the second on the other.

What the first half puts out is copied to the second in the forward pass, and its gradient back in the backward pass.
Nothing overlaps: while one device computes, the other waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gpudash.specs import TrainingSpec
from gpudash.workloads.programs.batches import placed
from gpudash.workloads.programs.training_step import Cnn, Mlp, Transformer
from gpudash.workloads.running.context import Context

FORTH, BACK = "activations across", "gradients back"
"""Stages of the two copies."""


class HandOver(torch.autograd.Function):
    """A copy to another device, whose gradient is copied back; both are stages and transfers of the run."""

    @staticmethod
    def forward(ctx: Any, activations: torch.Tensor, device: torch.device, context: Context) -> torch.Tensor:
        ctx.source, ctx.context = activations.device, context
        return _copied(FORTH, activations, device, context)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _copied(BACK, gradients[0], ctx.source, ctx.context), None, None


def split_over(model: nn.Module, spec: TrainingSpec, devices: Sequence[torch.device], context: Context) -> None:
    """Put the halves of ``model``, which lies on the CPU, onto two devices.

    Args:
        model: one that `build_model` has built.
        devices: of the first half and of the second.
        context: is told of every copy between them.
    """
    first, second = devices
    assert isinstance(model, (Transformer, Mlp, Cnn))
    place = spec.second_half
    if isinstance(model, Mlp):
        behind: list[nn.Module] = [model.layers[place:]]
    else:
        last = [model.norm, model.head] if isinstance(model, Transformer) else [model.head]
        behind = [*model.blocks[place:], *last]
    there = {id(module) for part in behind for module in part.modules()}
    for module in model.modules():
        if next(module.children(), None) is None:  # all weights are in the leaves
            module.to(second if id(module) in there else first)

    def hand_over(activations: torch.Tensor) -> torch.Tensor:
        arrived: torch.Tensor = HandOver.apply(activations, second, context)  # type: ignore[no-untyped-call]
        return arrived

    model.handover = place, hand_over


def _copied(stage: str, tensor: torch.Tensor, device: torch.device, context: Context) -> torch.Tensor:
    (arrived,) = placed(stage, (tensor,), device, context)
    return arrived
