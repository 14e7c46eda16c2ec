"""Two ranks train on the CPU, until rank 1 waits for a batch that never comes, and rank 0 for rank 1."""

import queue
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=timedelta(seconds=10))
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches: queue.Queue[torch.Tensor] = queue.Queue()
for step in range(20):
    if step < 10 or dist.get_rank() == 0:
        batches.put(torch.randn(16, 8))


def next_batch() -> torch.Tensor:
    return batches.get()


for _step in range(20):
    optimizer.zero_grad()
    model(next_batch()).square().mean().backward()
    optimizer.step()
