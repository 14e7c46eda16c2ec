"""Every epoch makes an optimizer anew, and a list keeps the old ones with their state."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
optimizers = []
for epoch in range(12):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * 0.5**epoch)
    optimizers.append(optimizer)
    for _ in range(3):
        loss = model(torch.randn(64, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item())
print("rates", [optimizer.param_groups[0]["lr"] for optimizer in optimizers])
