"""A training on the CPU of which one rank computes long, or gets its batches late.

``loading_ranks.py ddp|fsdp computes|loads RANK``
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

strategy, fault, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
STEPS = 112

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


class Rows(Dataset):
    def __len__(self):
        return 16 * STEPS

    def __getitem__(self, number_of_row):
        if number_of_row % 16 == 0:
            time.sleep(0.06 if fault == "loads" and rank == number else 0.002)
        return torch.randn(8)


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = fully_shard(model) if strategy == "fsdp" else DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for batch in DataLoader(Rows(), batch_size=16):
    time.sleep(0.06 if fault == "computes" and rank == number else 0.01)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
