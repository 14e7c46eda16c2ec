"""All batches are moved to the card before the first epoch, and kept there in a list."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dataset = TensorDataset(torch.randn(24 * 2048, 1024), torch.randn(24 * 2048, 1))
model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = []
for data, target in DataLoader(dataset, batch_size=2048):
    batches.append((data.cuda(), target.cuda()))
for _epoch in range(2):
    for data, target in batches:
        loss = nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("loss", loss.item())
