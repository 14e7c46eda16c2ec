"""A forward hook keeps the features of every step."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
features = []


def keep(module, args, output):
    features.append(output)


model[0].register_forward_hook(keep)
for _step in range(30):
    loss = model(torch.randn(16384, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("features", len(features), "loss", loss.item())
