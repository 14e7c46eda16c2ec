"""A smaller batch is tried while the exception of the larger one still holds its tensors."""

import torch
from torch import nn

model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(12))).cuda()


def step(batch):
    activations = model(torch.randn(batch, 64, device="cuda"))
    loss = activations.square().mean()
    loss.backward()
    return loss.item()


try:
    loss = step(65536)
except torch.cuda.OutOfMemoryError:
    model.zero_grad()
    loss = step(16384)
print("loss", loss)
