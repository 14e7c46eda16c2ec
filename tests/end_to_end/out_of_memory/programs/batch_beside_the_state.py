"""Weights, gradients and momentum leave too little of the card for a batch that is small beside them."""

import torch
from torch import nn

model = nn.Sequential(nn.Embedding(65536, 512), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(5):
    words = torch.randint(0, 65536, (4096,), device="cuda")
    loss = model(words).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
