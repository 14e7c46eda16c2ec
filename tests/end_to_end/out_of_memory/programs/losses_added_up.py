"""The losses of an evaluation are added up with their graphs."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total_loss = 0
for _step in range(60):
    loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
    penalty = model(torch.randn(2048, 1024, device="cuda")).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total_loss += penalty
print("mean", float(total_loss) / 60)
