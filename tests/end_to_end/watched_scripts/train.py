"""Trains on the CPU, and says how it goes in the one line that any program may have."""

import logging
import sys

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
for step in range(1, steps + 1):
    inputs = torch.randn(32, 64)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logging.getLogger("gpudash").info("step", extra={"step": step, "loss": loss.item(), "epoch": step / steps})
print(f"loss {loss.item():.6f}")
