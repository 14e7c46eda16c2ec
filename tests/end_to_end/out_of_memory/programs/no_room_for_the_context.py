"""The card has no room for the context, which comes before any tensor."""

import torch

print("done", torch.ones(4, device="cuda").sum().item())
