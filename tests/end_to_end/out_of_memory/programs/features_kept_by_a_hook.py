"""A forward hook keeps the features of every step."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
features = []


def keep(module, args, output):
    features.append(output)


model[0].register_forward_hook(keep)
for _step in range(60):
    loss = model(torch.randn(1024, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("features", len(features), "loss", loss.item())
