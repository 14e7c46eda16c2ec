"""The hidden state of a recurrent network goes from step to step with its graph."""

import torch
from torch import nn

cell = nn.GRUCell(64, 64).cuda()
head = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
hidden = torch.zeros(16384, 64, device="cuda")
for step in range(12):
    data = torch.randn(16384, 64, device="cuda")
    hidden = cell(data, hidden)
    loss = head(hidden).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    print("step", step, "loss", loss.item())
