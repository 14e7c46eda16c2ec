"""Cross-validation keeps the model of every fold, and its optimizer with it."""

import torch
from torch import nn


def train(data: torch.Tensor, target: torch.Tensor):
    """A model of one fold."""
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss = nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer, loss.item()


data, target = torch.randn(100, 64), torch.randn(100, 1)
results = []
for fold in range(10):
    kept = torch.arange(100) % 10 != fold
    model, optimizer, loss = train(data[kept].cuda(), target[kept].cuda())
    results.append({"fold": fold, "model": model, "optimizer": optimizer, "loss": loss})
    print("fold", fold, "loss", loss)
print("best", min(results, key=lambda result: result["loss"])["fold"])
