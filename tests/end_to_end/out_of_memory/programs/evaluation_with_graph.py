"""An evaluation runs without no_grad and keeps its outputs until its end."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def evaluate():
    model.eval()
    outputs = []
    for _batch in range(60):
        data = torch.randn(16384, 32, device="cuda")
        outputs.append(model(data))
    return torch.cat(outputs).argmax(1).float().mean().item()


for _step in range(3):
    loss = model(torch.randn(16384, 32, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("mean class", evaluate())
