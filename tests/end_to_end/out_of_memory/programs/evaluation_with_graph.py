"""An evaluation runs without no_grad and keeps its outputs until its end."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def evaluate():
    model.eval()
    outputs = []
    for _batch in range(80):
        data = torch.randn(1024, 512, device="cuda")
        outputs.append(model(data))
    return torch.cat(outputs).argmax(1).float().mean().item()


for _step in range(3):
    loss = model(torch.randn(1024, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("mean class", evaluate())
