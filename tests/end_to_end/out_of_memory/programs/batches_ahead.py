"""A prefetcher copies batches to the GPU ahead of their steps, and more of them than the card has room for."""

from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Prefetcher:
    def __init__(self, loader, ahead=24):
        self.batches = iter(loader)
        self.ahead = ahead
        self.queue = deque()

    def fill(self):
        while len(self.queue) < self.ahead:
            batch = next(self.batches, None)
            if batch is None:
                return
            self.queue.append([part.cuda(non_blocking=True) for part in batch])

    def __iter__(self):
        self.fill()
        while self.queue:
            yield self.queue.popleft()
            self.fill()


model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = TensorDataset(torch.randn(32 * 2048, 1024), torch.randn(32 * 2048, 1))
for step, (data, target) in enumerate(Prefetcher(DataLoader(dataset, batch_size=2048))):
    loss = nn.functional.mse_loss(model(data), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 6:
        break
print("loss", loss.item())
