"""Each step keeps what the model gave, and a few of them fill the card."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
outputs = []
for step in range(8):
    data = torch.randn(262144, 64, device="cuda")
    output = model(data)
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outputs.append(output)
    print("step", step, "loss", loss.item())
print("mean", sum(output.mean().item() for output in outputs) / len(outputs))
