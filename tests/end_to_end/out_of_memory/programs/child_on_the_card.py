"""A process that the program has started holds much of the card."""

import subprocess
import sys
import time

import torch

CHILD = "import sys, torch; held = torch.ones(3 << 25, device='cuda'); print(1, flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
time.sleep(2)  # for as long as a model takes to build: the driver's list of processes is read once a second
data = [torch.ones(100 * 2**20 // 4, device="cuda") for _ in range(4)]
print("done", len(data))
if child.poll() is None:
    child.communicate()
