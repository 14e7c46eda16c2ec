"""One rank of a training that ``torchrun --nproc-per-node 2`` starts."""

import logging
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logging.getLogger("gpudash").info("step", extra={"step": step, "loss": loss.item()})
print(f"rank {os.environ['RANK']} of {dist.get_world_size()}")
dist.destroy_process_group()
