"""Trains two layers on a small simulated GPU, where what cuBLAS works in is most of what PyTorch holds."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
device = sys.argv[1]
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    batch = torch.randn(2048, 256, device=device)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
