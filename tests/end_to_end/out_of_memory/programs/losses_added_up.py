"""The losses of an evaluation are added up with their graphs."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total_loss = 0
for _step in range(30):
    loss = model(torch.randn(32768, 64, device="cuda")).square().mean()
    penalty = model(torch.randn(32768, 64, device="cuda")).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total_loss += penalty
print("mean", float(total_loss) / 30)
