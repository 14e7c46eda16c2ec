"""Callables as users write them, and what their dry runs answer: run in a process of its own, printing JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpudash.memory.estimate import Target
from gpudash.simulator.dry_run import FEW_NUMBERS, DryRun
from gpudash.simulator.tracking import Tracker
from gpudash.workloads.estimate import CannotPredictError, estimate_callable
from gpudash.workloads.estimate_process import _callable

Build = Callable[[torch.device], Callable[[], object]]
Use = Callable[[torch.Tensor, torch.Tensor], object]

kept: list[Any] = []


def step_then(use: Use) -> Build:
    """A training step of a small layer, after which ``use`` is given its result and its loss."""

    def build(device: torch.device) -> Callable[[], object]:
        layer = nn.Linear(8, 8).to(device)

        def step() -> None:
            result = layer(torch.ones(4, 8, device=device))
            loss = result.sum()
            loss.backward()
            use(result.detach(), loss.detach())

        return step

    return build


def allocate_by(number: float, near: torch.Tensor) -> torch.Tensor:
    """What must never be predicted: a size that depends on a number."""
    return torch.empty((int(number) % 1000 + 1) << 20, device=near.device)


def scaled(device: torch.device) -> Callable[[], object]:
    """Training in float16 as torch's documentation has it, with a scheduler that skips what the scaler skipped."""
    layer = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(layer.parameters())
    scaler = torch.amp.GradScaler(device.type)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = layer(torch.ones(4, 64, device=device)).square().mean()
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if before > scaler.get_scale() or 1 / before == 0:
            raise ValueError("a step was skipped")

    return step


def learns_on_the_cpu(device: torch.device) -> Callable[[], object]:
    """A loss that is worked out from a copy on the CPU, without looking at its numbers."""
    layer = nn.Linear(8, 8).to(device)
    return lambda: layer(torch.ones(4, 8, device=device)).cpu().square().sum().backward()


def saves_on_the_cpu(device: torch.device) -> Callable[[], object]:
    """Activations kept in the host's memory until the backward pass."""
    layer = nn.Linear(8, 8).to(device)

    def step() -> None:
        with torch.autograd.graph.save_on_cpu():
            loss = layer(torch.ones(4, 8, device=device)).square().sum()
        loss.backward()

    return step


def pins_on_the_cpu(result: torch.Tensor, _loss: torch.Tensor) -> None:
    """A copy on the CPU on its way back to the device."""
    result.cpu().pin_memory().to(result.device, non_blocking=True)


def cycle(result: torch.Tensor, _loss: torch.Tensor) -> None:
    """A list that holds itself and a tensor: only the garbage collector frees it."""
    holder: list[Any] = [result]
    holder.append(holder)


def interrupt(_result: torch.Tensor, _loss: torch.Tensor) -> None:
    raise KeyboardInterrupt


CALLABLES: dict[str, Build] = {
    "item of a copy": step_then(lambda result, loss: allocate_by(loss.cpu().item(), result)),
    "int of a copy": step_then(lambda result, loss: allocate_by(int(result.to("cpu")[0, 0]), result)),
    "copy to list": step_then(lambda result, loss: result.cpu().tolist()),
    "copy to numpy": step_then(lambda result, loss: result.cpu().numpy()),
    "condition on a copy": step_then(lambda result, loss: 1 if loss.cpu() > 0 else 2),
    "copy and host tensor": step_then(lambda result, loss: result.cpu() + torch.ones(4, 8)),
    "into a host tensor": step_then(lambda result, loss: torch.zeros(4, 8).copy_(result)),
    "to list": step_then(lambda result, loss: result.tolist()),
    "item": step_then(lambda result, loss: loss.item()),
    "mask": step_then(lambda result, loss: result[result > 0]),
    "unique": step_then(lambda result, loss: result.unique()),
    "exit": step_then(lambda result, loss: sys.exit(3)),
    "interrupt": step_then(interrupt),
    "division": step_then(lambda result, loss: 1 / 0),
    "unknown name": step_then(lambda result, loss: nothing_of_this_name),  # type: ignore[name-defined] # noqa: F821
    "kept copy": step_then(lambda result, loss: kept.append(loss.cpu().cpu().double())),
    "printed": step_then(lambda result, loss: sys.stdout.write(f"{result} {loss.cpu()}\n")),
    "on the cpu": learns_on_the_cpu,
    "saved on the cpu": saves_on_the_cpu,
    "pinned on the cpu": step_then(pins_on_the_cpu),
    "scaler": scaled,
    "cycle": step_then(cycle),
    "after a cycle": step_then(lambda result, loss: None),
    "again": step_then(lambda result, loss: None),
    "data parallel": lambda device: nn.DataParallel(nn.Linear(8, 8).to(device)),
}


def answers() -> dict[str, dict[str, Any]]:
    """What is predicted for every callable, or why nothing is."""
    dry, target = DryRun(), Target("cuda:0", capacity_bytes=2**33, free_bytes=2**33)
    found: dict[str, dict[str, Any]] = {}
    for name, build in CALLABLES.items():
        found[name] = asked(lambda build=build: estimate_callable(build, target, dry).peak_allocated_bytes)
    found["module that exits"] = asked(lambda: _callable("tests.unit.workloads.module_that_exits:build"))
    found["data parallel again"] = {"works": nn.DataParallel(nn.Linear(2, 2)).module.in_features}
    found["trusted"] = {"read": trusted(dry)}
    return found


def trusted(dry: DryRun) -> list[float]:
    """The different numbers that code known not to decide by them finds in copies on the CPU."""
    read: set[float] = set()

    def run(_tracker: Tracker) -> None:
        for count in (10, 100_000):
            values = torch.empty(count, device="sim")
            read.update(torch.ones(count).copy_(values).tolist())
            if count < FEW_NUMBERS:
                read.update(values.cpu().tolist())
            else:
                assert values.cpu().is_meta

    dry.record(run, trusting=True)
    return sorted(read)


def asked(predict: Callable[[], Any]) -> dict[str, Any]:
    """The answer of ``predict`` as JSON."""
    try:
        return {"peak": predict()}
    except CannotPredictError as error:
        return {"kind": error.kind, "message": str(error), "remedy": error.remedy}


if __name__ == "__main__":
    told = answers()
    sys.stdout.write(json.dumps(told) + "\n")
