"""A training by DistributedDataParallel whose rank 1 is slow.

With "once" rank 1 leaves at the beginning, but stays when the launcher has started all again.
"""

import os
import sys
import time

if "once" in sys.argv and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(7)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 60

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + rank)
losses = []
for _step in range(STEPS):
    time.sleep(0.04 if rank == 1 else 0.01)
    inputs = torch.randn(16, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with open(f"{os.environ['LOSSES']}{rank}", "w") as file:  # noqa: PTH123
    print(*losses, sep="\n", file=file)
dist.destroy_process_group()
