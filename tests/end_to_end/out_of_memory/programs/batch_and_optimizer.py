"""A batch that is too large, and an optimizer that works in copies of all weights at once: both have to be changed."""

import os

import torch
from torch import nn

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
batch_size = 1024
layers = [layer for _ in range(16) for layer in (nn.Linear(512, 512), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(512, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    data = torch.randn(batch_size, 512, device="cuda")
    target = torch.randint(0, 10, (batch_size,), device="cuda")
    loss = nn.functional.cross_entropy(model(data), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
