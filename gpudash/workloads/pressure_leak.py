"""A training that loses memory: each step's loss is kept, and with it the step's whole graph."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gpudash.specs import PressureSpec
from gpudash.specs.training import CLASSES, FEATURES
from gpudash.workloads.classes import classes
from gpudash.workloads.context import Context
from gpudash.workloads.pressure_pace import Pace
from gpudash.workloads.pressure_sizes import BATCH_BYTES, DEPTH, LEARNING_RATE, SAMPLE_BYTES, WIDTH


def leak(spec: PressureSpec, context: Context, cap: int | None) -> None:
    """Train a small model whose steps lose about `step` bytes each, until they add up to ``cap``."""
    batch = max(1, min(spec.step, cap or spec.step) // SAMPLE_BYTES)
    lost = batch * SAMPLE_BYTES
    pace = Pace(spec, context, max(1, cap // lost) if cap is not None else None)
    inputs, targets = _batch(batch, spec.seed, context)
    model = small_model().to(context.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    losses: list[torch.Tensor] = []
    while cap is None or (len(losses) + 1) * lost <= cap:
        pace.wait()
        context.about_to_allocate(lost)
        with context.stage("train step"):
            train_step(model, optimizer, inputs, targets, losses)
        pace.done(len(losses) * lost, loss=losses[-1].item())
    pace.hold(len(losses) * lost)
    with context.stage("free", bytes=len(losses) * lost, copied=False):
        losses.clear()
        context.free_cache()


def small_model() -> nn.Module:
    """Tells `CLASSES` classes of `FEATURES` features apart."""
    layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH), nn.GELU()]
    for _ in range(DEPTH - 1):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    losses: list[torch.Tensor],
) -> None:
    """One step of training, with a mistake: the list keeps the loss and its graph; ``loss.item()`` would not."""
    losses.append(functional.cross_entropy(model(inputs), targets))
    torch.autograd.backward(losses[-1], retain_graph=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _batch(samples: int, seed: int, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """The same samples for every step, on the run's device."""
    size = samples * BATCH_BYTES
    context.about_to_allocate(size, "cpu")
    if context.device.type != "cpu":
        context.about_to_allocate(size)
    points, labels = classes(samples, seed)
    return points.to(context.device), labels.to(context.device)
