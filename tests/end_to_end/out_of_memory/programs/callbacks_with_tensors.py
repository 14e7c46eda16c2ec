"""Each step leaves a callback behind, whose default holds what the model gave."""

import torch
from torch import nn

callbacks = []


def at_end(callback) -> None:
    """Have something called at the end."""
    callbacks.append(callback)


model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    output = model(torch.randn(32768, 64, device="cuda"))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    at_end(lambda step=step, output=output: print(step, output.std().item()))
for callback in callbacks[-2:]:
    callback()
