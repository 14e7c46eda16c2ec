"""Every loss goes into a list with the graph that made it."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for _step in range(30):
    data = torch.randn(32768, 64, device="cuda")
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss)
print("mean loss", float(sum(losses)) / len(losses))
