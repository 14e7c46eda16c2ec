"""Losses for language models that never hold all logits, and an optimizer that steps within the backward pass.

They stand for what recipes use: cross entropy over chunks of the sequence, each recomputed in the backward pass
(torchtune's chunked losses, which keep no chunk in float32 once compiled), and cross entropy fused with the last
layer, whose gradients are computed in the forward pass (``FusedLinearCrossEntropy`` of Liger and of Unsloth).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpudash.simulator.models.config import refused

PIECES = 8
"""Chunks of a sequence in torchtune's losses (``num_output_chunks``)."""


class HiddenHead(nn.Module):
    """A last layer that returns its input unchanged: the loss does the multiplication.

    Args:
        head: the original layer, whose parameters stay the model's.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return hidden


def without_logits(base: Any, kind: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Move the last layer of ``base`` from its forward pass into a loss of hidden states and labels; return the loss.

    Args:
        base: a model of transformers. It is changed: its ``logits`` are hidden states from now on.
        kind: "chunked" or "fused".

    Raises:
        CannotPredictError: in one sentence, if the model has no such layer.
    """
    find = getattr(base, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if not isinstance(head, nn.Linear):
        problem = f"{type(base).__name__} has no linear layer that makes logits, so no {kind} cross entropy."
        raise refused(problem, "Leave --loss out.")
    base.set_output_embeddings(HiddenHead(head))
    if getattr(base.config, "final_logit_softcapping", None):
        base.config.final_logit_softcapping = None  # for logits, which no longer exist
    weight = head.weight

    def loss(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # each token is predicted from those before it
        rows = hidden[:, :-1].reshape(-1, hidden.shape[-1])
        targets = labels[:, 1:].reshape(-1)
        if kind == "fused":
            function: Any = _Fused
            made: torch.Tensor = function.apply(rows, weight, targets)
            return made
        pieces = zip(rows.chunk(PIECES), targets.chunk(PIECES), strict=True)
        parts = [checkpoint(_summed, piece, weight, wanted, use_reentrant=False) for piece, wanted in pieces]
        return torch.stack(parts).sum() / targets.numel()

    return loss


def _summed(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy((rows @ weight.t()).float(), targets, reduction="sum")


def _gradients_of(logits: torch.Tensor, wanted: torch.Tensor, count: int) -> torch.Tensor:
    """Each row's share of the mean loss; ``logits`` become their gradients in place, as in Liger's kernel."""
    log_sums = torch.logsumexp(logits, 1, keepdim=True)
    losses = (log_sums - logits.gather(1, wanted)).squeeze(1).float() / count
    logits.sub_(log_sums).exp_()
    logits.scatter_add_(1, wanted, torch.full_like(wanted, -1, dtype=logits.dtype))
    logits.div_(count)
    return losses


class _Fused(torch.autograd.Function):
    """``fused_linear_cross_entropy_forward`` of Liger: chunks whose logits are no larger than the hidden states, with
    gradients in their place."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        count, width = rows.shape
        pieces = math.ceil(weight.shape[0] / width)
        size = 1 << (math.ceil(count / pieces) - 1).bit_length()
        gradient = torch.zeros_like(rows)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(count, dtype=torch.float32, device=rows.device)
        for start in range(0, count, size):
            piece = rows[start : start + size]
            logits = piece @ weight.t()
            wanted = targets[start : start + size].unsqueeze(1)
            losses[start : start + size] = _gradients_of(logits, wanted, count)
            gradient[start : start + size] = logits @ weight
            if of_weight is not None:
                of_weight += logits.t() @ piece
        ctx.save_for_backward(gradient, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient, of_weight = ctx.saved_tensors
        return gradient.mul_(grads[0]), None if of_weight is None else of_weight.mul_(grads[0]), None


def step_in_backward(parameters: Iterable[nn.Parameter], make: Callable[[Iterable[nn.Parameter]], Any]) -> None:
    """Update each parameter, and free its gradient, as soon as the gradient is complete.

    Args:
        parameters: the trainable ones.
        make: creates the optimizer of some parameters.
    """

    def hooked(optimizer: Any) -> Callable[[torch.Tensor], None]:
        def update(_parameter: torch.Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        return update

    for parameter in parameters:
        weight: Any = parameter
        weight.register_post_accumulate_grad_hook(hooked(make([parameter])))
