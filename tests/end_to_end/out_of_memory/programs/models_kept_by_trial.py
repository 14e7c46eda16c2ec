"""A search keeps the model of every trial."""

import torch
from torch import nn


def objective(width: int):
    """The loss and the model of a width."""
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        loss = model(torch.randn(64, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss, model


def search(widths):
    """All trials."""
    trials = []
    for width in widths:
        loss, model = objective(width)
        trials.append((width, loss, model))
    return trials


for width, loss, model in search([2048, 3072, 2048, 2560, 3072, 2560, 3072, 2048, 2560, 3072]):
    print(width, loss.item(), sum(parameter.numel() for parameter in model.parameters()))
