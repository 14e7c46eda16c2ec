"""Every loss goes into a list with the graph that made it."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for _step in range(60):
    data = torch.randn(2048, 1024, device="cuda")
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss)
print("mean loss", float(sum(losses)) / len(losses))
