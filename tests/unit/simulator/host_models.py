"""Models of a gibibyte that are built on the CPU in every way, and moved: run in a process of its own, printing JSON.

    python -m tests.unit.simulator.host_models FOLDER

writes by name the bytes of weights that each one puts on the device, and ``peak_rss``, the most memory in bytes that
the process has held. FOLDER takes a checkpoint.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.own_code import follow

WIDTH = 16384
SMALL = 1024

Init = Callable[[torch.Tensor], object]
Step = Callable[[], object]


def layer(init: Init, width: int = WIDTH) -> nn.Linear:
    """A layer of ``width`` by ``width`` that ``init`` has filled."""
    made = nn.Linear(width, width, bias=False)
    init(made.weight)
    return made


def forward(model: nn.Module, device: torch.device, width: int = WIDTH) -> Step:
    return lambda: model(torch.ones(1, width, device=device))


def normalised(weight: torch.Tensor) -> None:
    """By numbers that are read, row by row."""
    with torch.no_grad():
        for row in range(4):
            weight[row] /= weight[row].norm().item()


def checked(weight: torch.Tensor) -> None:
    """With a guard against what does not happen."""
    with torch.no_grad():
        weight.copy_(torch.randn_like(weight) * 0.02)
    if weight.isnan().any() or not torch.isfinite(weight).all():
        raise ValueError("not finite")


def svd(weight: torch.Tensor) -> None:
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    with torch.no_grad():
        weight.copy_(left @ torch.diag(values) @ right)


INITS: dict[str, Init] = {
    "trunc_normal_": lambda weight: nn.init.trunc_normal_(weight, std=0.02),
    "trunc_normal_ of a narrow range": lambda weight: nn.init.trunc_normal_(weight, a=-0.01, b=0.01),
    "orthogonal_": nn.init.orthogonal_,
    "kaiming_uniform_": nn.init.kaiming_uniform_,
    "xavier_normal_": nn.init.xavier_normal_,
    "normalised": normalised,
    "checked": checked,
    "svd": svd,
}


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(8, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 8))
        nn.init.kaiming_uniform_(self.down)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(values) + values @ self.down.t() @ self.up.t()
        return result


def adapted(device: torch.device) -> Step:
    return forward(Adapted(layer(nn.init.xavier_normal_)).to(device), device)


def averaged(device: torch.device) -> Step:
    model = layer(nn.init.xavier_normal_)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.lerp_(model.weight, 0.5)
    return forward(nn.Sequential(model, twin).to(device), device)


def rates(device: torch.device) -> Step:
    """Small tensors keep their numbers on the CPU."""
    found = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
    places = torch.arange(6).reshape(2, 3).t().reshape(-1)[torch.tensor([True, False] * 3)]
    if max(found) < 0.29 or places.tolist() != [0, 1, 2]:
        raise ValueError(f"{found} {places}")
    return forward(layer(nn.init.xavier_normal_).to(device), device)


def on_the_device(init: Init) -> Callable[[torch.device], Step]:
    def build(device: torch.device) -> Step:
        with torch.device(device):
            return forward(layer(init), device)

    return build


def loaded(path: Path, **options: Any) -> Callable[[torch.device], Step]:
    def build(device: torch.device) -> Step:
        model = layer(nn.init.zeros_, SMALL)
        model.load_state_dict(torch.load(path, **options), assign="mmap" in options)
        return forward(model.to(device), device, SMALL)

    return build


def peak_rss() -> int:
    """Most memory in bytes that this program held; getrusage's figure may be that of the process that started it."""
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) * 1024


def main(folder: Path) -> None:
    path = folder / "layer.pt"
    torch.save(nn.Linear(SMALL, SMALL, bias=False).state_dict(), path)
    builds: dict[str, Callable[[torch.device], Step]] = {
        **{name: lambda device, init=init: forward(layer(init).to(device), device) for name, init in INITS.items()},
        **{f"{name} on the device": on_the_device(init) for name, init in INITS.items()},
        "adapted": adapted,
        "averaged": averaged,
        "rates": rates,
        "loaded": loaded(path),
        "loaded mapped": loaded(path, mmap=True),
        "loaded there": loaded(path, map_location="sim:0"),
    }
    dry, found = DryRun(), {}
    for name, build in builds.items():
        trace = follow(build, dry, steps=2).trace
        kinds = zip(trace.sizes, trace.categories, strict=True)
        found[name] = sum(size for size, category in kinds if category == "weights")
    found["peak_rss"] = peak_rss()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
