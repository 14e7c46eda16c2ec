"""Two processes with cuda:0, a server beside a trainer: one is refused what the other has, until that is killed."""

import subprocess
import sys
import time

import torch

HEARD_S = 2.5
"""So long the dashboard surely has listed who uses a GPU."""


def hold(mib: int) -> torch.Tensor:
    return torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")


if len(sys.argv) > 1:
    kept = hold(int(sys.argv[1]))
    print("held", flush=True)
    sys.stdin.readline()
    sys.exit()

server = subprocess.Popen([sys.executable, __file__, "1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
server.stdout.readline()
own = hold(100)
print("free", torch.cuda.mem_get_info()[0] // 2**20)
time.sleep(HEARD_S)
try:
    hold(1200)
except torch.OutOfMemoryError as error:
    print(error)
print("server", server.pid, flush=True)
server.kill()
server.wait()
more = hold(1200)
print("free", torch.cuda.mem_get_info()[0] // 2**20)
time.sleep(HEARD_S)
