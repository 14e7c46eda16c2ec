"""Looks for the largest batch that fits, and goes on: it handles its out-of-memory errors."""

import torch

device = torch.accelerator.current_accelerator()
batch = 1
while True:
    try:
        torch.empty(batch, 2**20, device=device)
    except torch.OutOfMemoryError:
        break
    batch *= 2
print("fits", batch // 2)
