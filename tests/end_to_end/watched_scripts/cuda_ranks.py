"""A training that says "cuda", of which one rank is slow, runs out of memory, or is killed with 3 GiB on its card.

``cuda_ranks.py ddp|fsdp slow|full|killed RANK``; every rank has a card of its own.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

strategy, fault, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
STEPS, KILLED_AT = 112 if fault == "slow" else 32, 12

torch.set_num_threads(1)
dist.init_process_group("nccl")
rank = dist.get_rank()
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
model = fully_shard(model) if strategy == "fsdp" else DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
kept = []
for step in range(STEPS):
    if fault == "slow":
        time.sleep(0.06 if rank == number else 0.01)
    if rank == number and fault == "full":
        kept.append(torch.empty(2**30, dtype=torch.uint8, device=device))
    if rank == number and fault == "killed" and step == KILLED_AT:
        kept.append(torch.empty(3 * 2**30, dtype=torch.uint8, device=device))
        time.sleep(1.0)  # so that what was told before has been heard
        os.kill(os.getpid(), signal.SIGKILL)
    loss = model(torch.randn(16, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
