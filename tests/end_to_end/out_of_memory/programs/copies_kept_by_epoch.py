"""A copy of the weights is kept of every epoch, to go back to the best."""

import copy

import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(3))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpoints, losses = [], []
for _epoch in range(12):
    for _ in range(2):
        loss = model(torch.randn(16, 2048, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
    checkpoints.append(copy.deepcopy(model.state_dict()))
best = losses.index(min(losses))
model.load_state_dict(checkpoints[best])
print("best", best)
