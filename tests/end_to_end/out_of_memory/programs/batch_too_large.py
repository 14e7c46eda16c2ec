"""The batch is too large for the card from the first step on."""

import torch
from torch import nn

batch_size = 65536
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    data = torch.randn(batch_size, 64, device="cuda")
    target = torch.randint(0, 10, (batch_size,), device="cuda")
    loss = nn.functional.cross_entropy(model(data), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
