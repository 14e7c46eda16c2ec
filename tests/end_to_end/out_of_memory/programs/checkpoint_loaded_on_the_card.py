"""A checkpoint is loaded onto the card beside the model that takes it."""

import tempfile

import torch
from torch import nn


def build():
    return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(7)))


with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    torch.save(build().state_dict(), file.name)
    model = build().cuda()
    state = torch.load(file.name, map_location="cuda")
    model.load_state_dict(state)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = model(torch.randn(16, 2048, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
