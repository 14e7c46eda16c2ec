"""Trains on whatever GPU torch has and keeps, at every step, what it could let go."""

import logging
import sys

import torch

device = torch.accelerator.current_accelerator()
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
history = []
for step in range(steps):
    inputs = torch.randn(64, 256, device=device)
    outputs = model(inputs)
    loss = outputs.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(inputs.repeat(16, 1))
    logging.getLogger("gpudash").info("step", extra={"step": step, "loss": loss})
print("peak", torch.accelerator.max_memory_allocated())
