"""The whole data set is moved to the card before the first step."""

import torch
from torch import nn

inputs = torch.randn(40_000, 2048).cuda()
targets = torch.randn(40_000, 1).cuda()
model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for begin in range(0, 512, 256):
    loss = nn.functional.mse_loss(model(inputs[begin : begin + 256]), targets[begin : begin + 256])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
