"""A training that loses memory: each step's loss is kept, and with it the step's whole graph."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.rounding import segment_size
from gpudash.specs import PressureSpec
from gpudash.units import MIB
from gpudash.workloads.classes import CLASSES, FEATURES, classes
from gpudash.workloads.context import Context
from gpudash.workloads.pressure_pace import Pace

WIDTH = 32
"""Width of the hidden layers: narrow, so that a step computes little for the memory it keeps."""

DEPTH = 2
"""Hidden layers: few, so that what a step of the default size keeps comes in blocks of more than 10 MiB, for which
torch's CUDA allocator takes segments of their own; smaller ones would leave part of theirs idle."""

LEARNING_RATE = 0.01

BATCH_BYTES = 4 * FEATURES + 8
"""Of a sample and its class, as they are given to the model."""

RESERVE = 2 * 20 * MIB
"""For the model, its gradients, the optimizer and the libraries' workspaces, which share segments of 2 and 20 MiB."""

SAMPLE_BYTES = 4 * (2 * DEPTH * WIDTH + CLASSES)
"""What the graph keeps of a sample, in float32: each hidden layer before and after GELU, and the log-softmax of the
outputs."""


def leak_within(most: int, step: int) -> int:
    """Bytes that may be lost by steps of ``step`` bytes so that the run takes no more than ``most`` in all.

    Beside what is lost it takes the batch, what a step needs for a moment, which is less than two steps lose, and what
    torch's allocator rounds each lost block up by.
    """
    batch = max(1, step // SAMPLE_BYTES)
    layer = batch * WIDTH * 4
    segment = segment_size(layer, AllocatorSettings())
    taken = 2 * DEPTH * (segment // (segment // layer)) + batch * CLASSES * 4
    steps = (most - 2 * taken - batch * BATCH_BYTES - RESERVE) // taken
    return steps * batch * SAMPLE_BYTES if steps > 0 else max(0, most) // 8


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
