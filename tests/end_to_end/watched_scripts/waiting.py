"""A training whose data set takes its time: each item spins for two milliseconds."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset

ITEM_S = 0.002


class Items(Dataset[torch.Tensor]):
    """Items that are made by doing nothing for a while."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.perf_counter() + ITEM_S
        while time.perf_counter() < until:
            pass
        return torch.full((8,), float(index))


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(2):
    for batch in DataLoader(Items(), batch_size=4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
