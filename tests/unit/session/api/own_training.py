"""A training as a user writes it: a function that is given a device and returns its step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def build(device: torch.device) -> Callable[[], None]:
    """A small network with its optimizer."""
    model = nn.Linear(64, 32).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 64, device=device)).sum().backward()
        optimizer.step()

    return step
