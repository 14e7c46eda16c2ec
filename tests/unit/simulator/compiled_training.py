"""Trains a small network with and without ``torch.compile`` on the simulated GPU, in a process of its own."""

from __future__ import annotations

import json
import sys
import warnings

import torch
from torch import nn

from gpudash.simulator import simulate

BACKENDS = (None, "inductor", "eager", "aot_eager")


def losses(backend: str | None) -> list[float]:
    """Of three steps."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).to("sim")
    run = network if backend is None else torch.compile(network, backend=backend)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = run(torch.ones(2, 4, device="sim")).square().sum()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    simulate(2**30)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = {str(backend): losses(backend) for backend in BACKENDS}
    said = sorted({str(warning.message) for warning in caught})
    traced = torch._dynamo.utils.counters["frames"]["total"]
    sys.stdout.write(json.dumps({"losses": told, "said": said, "traced": traced}) + "\n")
