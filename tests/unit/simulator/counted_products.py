"""What steps multiply, by the kernels and by torch's own counter: run in a process of its own, printing JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run.dry_run import DryRun

Step = Callable[[torch.device], object]


def layers(device: torch.device) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).to(device)
    net(torch.ones(2, 3, 8, 8, device=device)).sum().backward()


def attention(device: torch.device, dtype: torch.dtype) -> None:
    query = torch.ones(2, 4, 16, 8, device=device, dtype=dtype, requires_grad=True)
    functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()


def experts(device: torch.device) -> None:
    """16 tokens of 32 numbers through one of 4 matrices each, to 64; and both gradients."""
    rows = torch.ones(16, 32, device=device, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.ones(4, 32, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([4, 8, 12, 16], device=device, dtype=torch.int32)
    torch._grouped_mm(rows, weights, offs=ends).square().sum().backward()


STEPS: dict[str, Step] = {
    "layers": layers,
    "flash attention": lambda device: attention(device, torch.bfloat16),
    "efficient attention": lambda device: attention(device, torch.float32),
    "experts": experts,
}


def counted(dry: DryRun, step: Step) -> dict[str, Any]:
    """FLOPs of a step by both."""

    def run(tracker: Tracker) -> None:
        step(torch.device("sim", 0))
        tracker.finish()

    work = dry.record(run).work
    assert work is not None
    with FlopCounterMode(display=False) if step is not experts else nullcontext() as counter:
        dry.record(run)
    return {
        "own": work.flops,
        "torch": None if counter is None else counter.get_total_flops(),
    }


if __name__ == "__main__":
    process = DryRun()
    json.dump({name: counted(process, step) for name, step in STEPS.items()}, sys.stdout)
