"""A process of somebody else holds most of the card."""

import torch

data = [torch.ones(50 * 2**20 // 4, device="cuda") for _ in range(8)]
print("done", len(data))
