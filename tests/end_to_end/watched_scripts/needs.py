"""Trains on cuda with the most memory in the backward pass, the optimizer's step or the evaluation; saves weights."""

import sys
from pathlib import Path

import torch

where = sys.argv[1]
width, rows = {"backward": (256, 4096), "optimizer": (2048, 16), "evaluation": (256, 512)}[where]
torch.manual_seed(0)
layers = [torch.nn.Linear(width, width) for _ in range(4)]
model = torch.nn.Sequential(*layers).to("cuda")
kind = torch.optim.AdamW if where == "optimizer" else torch.optim.SGD
optimizer = kind(model.parameters(), lr=1e-3)
with Path("log.txt").open("a") as log:
    log.write("begun\n")
for step in range(5):
    inputs = torch.randn(rows, width, device="cuda")
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
    del inputs, loss
with torch.no_grad():
    found = model(torch.randn(65536 if where == "evaluation" else 16, width, device="cuda"))
torch.save(model.state_dict(), "model.pt")
print("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
