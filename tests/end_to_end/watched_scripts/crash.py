"""Fails in a function of its own, after a line on both streams."""

import sys

import torch


def train(steps: int) -> None:
    for step in range(steps):
        if step == 3:
            raise RuntimeError(f"the loss is nan at step {step}")


print("before", torch.ones(2).sum().item())
print("a warning", file=sys.stderr)
train(10)
