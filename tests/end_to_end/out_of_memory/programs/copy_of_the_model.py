"""A copy of the model that is averaged over the steps lies on the card too."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = model(torch.randn(16, 2048, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    print("step", step, "loss", loss.item())
