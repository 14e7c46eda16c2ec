"""The batch is too large for the card from the first step on."""

import torch
from torch import nn

batch_size = 4096
model = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    data = torch.randn(batch_size, 512, device="cuda")
    target = torch.randint(0, 10, (batch_size,), device="cuda")
    loss = nn.functional.cross_entropy(model(data), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
