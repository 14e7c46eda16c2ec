"""A training by DistributedDataParallel whose rank 1 is slow, and dies at a step if it is given one.

With "once" rank 1 leaves at the beginning, but stays when the launcher has started all again.
"""

import os
import signal
import sys
import time

fatal = sys.argv[1] if len(sys.argv) > 1 else ""
if fatal == "once" and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(7)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

STEPS = 60

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + rank)
losses = []
for step in range(STEPS):
    if rank == 1 and str(step) == fatal:
        time.sleep(1.0)  # so that what was told before has been heard
        os.kill(os.getpid(), signal.SIGKILL)
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
