"""What dry runs write down of the steps of small programs, as JSON: for a Python of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.device.simulated_gpu import A100
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.own_code import Build, follow
from gpudash.specs import TrainingSpec
from gpudash.workloads.predicting.dry_run import trace_of

BATCH, INPUTS, OUTPUTS = 8, 32, 16

T4 = Architecture((7, 5), 40)
H100 = Architecture((9, 0), 132)


def linear(device: Any) -> Callable[[], object]:
    """A linear layer that learns by SGD of a batch on the device."""
    layer = nn.Linear(INPUTS, OUTPUTS, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    batch = torch.ones(BATCH, INPUTS, device=device)

    def step() -> None:
        layer(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def autocast(device: Any) -> Callable[[], object]:
    """A product in halves of float32 weights."""
    layer = nn.Linear(INPUTS, OUTPUTS, device=device)

    def step() -> None:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            layer(torch.ones(BATCH, INPUTS, device=device))

    return step


def copying(device: Any) -> Callable[[], object]:
    """A batch of the host, a result that is read, a copy that nobody waits for, and one of nothing."""

    def step() -> None:
        made = torch.ones(BATCH, INPUTS).to(device)
        float(made.sum().item())
        made.to("cpu", non_blocking=True)
        torch.empty(0).to(device)

    return step


def copying_into(device: Any) -> Callable[[], object]:
    """A batch of the host that goes into memory which is there already."""
    held = torch.empty(BATCH, INPUTS, device=device)

    def step() -> None:
        held.copy_(torch.ones(BATCH, INPUTS))
        held.sum()

    return step


def whole_training(device: Any) -> Callable[[], object]:
    """Ten steps, and an evaluation behind every fifth."""

    def train() -> None:
        layer = nn.Linear(INPUTS, OUTPUTS, device=device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        batch = torch.ones(BATCH, INPUTS, device=device)
        for number in range(10):
            layer(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % 5 == 4:
                with torch.no_grad():
                    layer(batch).exp()

    return train


def fused(device: Any) -> Callable[[], object]:
    """A norm and an optimizer whose names say that they are fused: the one takes a tensor, the other lists of them."""
    norm = nn.RMSNorm(INPUTS, device=device)
    layer = nn.Linear(INPUTS, OUTPUTS, device=device)
    optimizer = torch.optim.AdamW([*norm.parameters(), *layer.parameters()], fused=True)
    batch = torch.ones(BATCH, INPUTS, device=device)

    def step() -> None:
        layer(norm(batch)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def convolution(device: Any) -> Callable[[], object]:
    """A convolution, in float32."""
    layer = nn.Conv2d(3, 4, 3, device=device)

    def step() -> None:
        with torch.no_grad():
            layer(torch.ones(2, 3, 8, 8, device=device))

    return step


def main() -> None:
    """Print the work of each."""
    dry = DryRun()

    def work(build: Build, card: Architecture = A100) -> Any:
        found = follow(build, dry, steps=3, architecture=card).trace.work
        return None if found is None else found.to_dict()

    kinds = (linear, autocast, copying, copying_into, whole_training, convolution, fused)
    built = {made.__name__: work(made) for made in kinds}
    spec = TrainingSpec(model="cnn", batch=4, accumulation=2)
    on_cards = [trace_of(spec, dry, architecture=card).work for card in (A100, T4, H100)]
    ranks = trace_of(TrainingSpec(model="mlp", batch=4, devices="sim:0,sim:1"), dry).work
    told = {
        **built,
        "linear on a T4": work(linear, T4),
        "cnn": [None if found is None else found.to_dict() for found in on_cards],
        "ranks": None if ranks is None else ranks.to_dict(),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
