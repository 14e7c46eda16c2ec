"""Lets the simulator fail in each of its modules in turn, and says what comes of that: ``... dry`` or ``... computed``.

A module fails as a fault of its own would let it: the first of its functions that a call comes to raises an error.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpudash.simulator import operations, simulate
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.own_code import follow
from gpudash.simulator.faults import SimulatorError
from gpudash.simulator.refusal import CannotPredictError

FAMILIES = sorted(f"operations.{found.name}" for found in pkgutil.iter_modules(operations.__path__))
"""Modules that stand in for operations of torch's."""

FAILING = """
def failing(frame, event, _argument):
    if event == "call" and frame.f_code.co_filename == file:
        failed.append(frame.f_code.co_name)
        return [][0]
    return None
"""


@contextmanager
def failing(module: str, failed: list[str]) -> Iterator[None]:
    """Let the first function of ``module`` that is called fail, in code that counts as the module's.

    Args:
        failed: is given its name.
    """
    file = importlib.import_module(f"gpudash.simulator.{module}").__file__ or ""
    scope: dict[str, Any] = {"file": file, "failed": failed}
    exec(compile(FAILING, file, "exec"), scope)
    sys.settrace(scope["failing"])
    try:
        yield
    finally:
        sys.settrace(None)


def attend(device: torch.device) -> Callable[[], object]:
    """Attention."""
    query = torch.rand(2, 4, 16, 32, device=device)
    return lambda: functional.scaled_dot_product_attention(query, query, query)


def attend_and_differentiate(device: torch.device) -> Callable[[], object]:
    """The backward pass of attention."""
    query = torch.rand(2, 4, 16, 32, device=device, requires_grad=True)
    attended = functional.scaled_dot_product_attention(query, query, query)
    return attended.sum().backward


def mixed(device: torch.device) -> Callable[[], object]:
    """A product in half precision."""
    one = torch.rand(8, 8, device=device)

    def call() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return one @ one

    return call


def encoded(device: torch.device) -> Callable[[], object]:
    """A layer of an encoder in one piece."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(device).eval()
    sequence = torch.rand(2, 4, 16, device=device)

    @torch.inference_mode()
    def call() -> Any:
        return layer(sequence)

    return call


def recurrent(kind: Callable[..., nn.Module]) -> Callable[[torch.device], Callable[[], object]]:
    """A recurrent layer."""

    def build(device: torch.device) -> Callable[[], object]:
        layer, sequence = kind(8, 8).to(device), torch.rand(4, 8, device=device)
        return lambda: layer(sequence)

    return build


def gathered(device: torch.device) -> Callable[[], object]:
    """A sum over ranks, of which there is one."""
    values = torch.rand(8, device=device)
    return lambda: torch.distributed.all_reduce(values)


def on_one(call: Callable[[torch.Tensor], object]) -> Callable[[torch.device], Callable[[], object]]:
    """A call with a tensor of 64×64 random numbers."""

    def build(device: torch.device) -> Callable[[], object]:
        one = torch.rand(64, 64, device=device)
        return lambda: call(one)

    return build


CALLS: dict[str, Callable[[torch.device], Callable[[], object]]] = {
    "operations.attention": attend,
    "operations.attention_scratch": attend_and_differentiate,
    "operations.autocast": mixed,
    "operations.batch_norm": on_one(lambda one: functional.batch_norm(one, None, None, training=True)),
    "operations.collectives": gathered,
    "operations.cudnn_recurrent": recurrent(nn.LSTM),
    "operations.encoder_layers": encoded,
    "operations.kernels": on_one(lambda one: one.new_zeros(4)),
    "operations.operations": on_one(lambda one: one * 2),
    "operations.outcomes": on_one(lambda one: one * 2),
    "operations.recurrent": recurrent(nn.GRUCell),
    "operations.reductions": on_one(torch.sum),
    "operations.scripts": on_one(lambda one: one.t().roll(1, 0)),
    "operations.temporaries": on_one(torch.sort),
}
"""Of each family what comes to it."""

AROUND: dict[str, Callable[[torch.device], Callable[[], object]]] = {
    "device.storage": on_one(torch.relu),
    "device.tracking": lambda device: lambda: nn.Linear(4, 4, device=device)(torch.ones(4, device=device)),
    "dry_run.host_tensors": on_one(lambda one: one.cpu() + 1),
    "dry_run.missing_numbers": on_one(lambda one: one > 0),
    "dry_run.own_code": on_one(lambda one: one.sum().tolist()),
}
"""As `CALLS`, of modules that a dry run has around the operations."""

NOT_DRY = frozenset(("operations.collectives",))
NOT_COMPUTED = frozenset(("operations.outcomes",))
"""Families that only the other way of running has."""


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.kept.append(record)


def predicted() -> dict[str, dict[str, Any]]:
    """What a dry run says of each."""
    records = Records()
    logging.getLogger("gpudash").addHandler(records)
    dry = DryRun()
    found: dict[str, dict[str, Any]] = {}
    for family, made in {**CALLS, **AROUND}.items():
        if family in NOT_DRY:
            continue
        failed: list[str] = []

        def build(
            device: torch.device, family: str = family, made: Any = made, failed: list[str] = failed
        ) -> Callable[[], object]:
            call = made(device)
            torch.zeros(1, device=device)

            def step() -> None:
                with failing(family, failed):
                    call()

            return step

        records.kept.clear()
        try:
            follow(build, dry, steps=2)
        except CannotPredictError as error:
            logged = [record.exc_info is not None for record in records.kept]
            found[family] = {"kind": error.kind, "message": str(error), "remedy": error.remedy, "logged": logged}
        found.setdefault(family, {})["failed"] = failed
    return found


def computed() -> dict[str, dict[str, Any]]:
    """What is raised of each where numbers are computed."""
    simulate(2**30)
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    found: dict[str, dict[str, Any]] = {}
    for family, made in CALLS.items():
        if family in NOT_COMPUTED:
            continue
        call = made(torch.device("sim", 0))
        failed: list[str] = []
        try:
            with failing(family, failed):
                call()
        except SimulatorError as error:
            found[family] = {"message": str(error), "cause": type(error.__cause__).__name__}
        found.setdefault(family, {})["failed"] = failed
    torch.distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    answers = predicted() if sys.argv[1] == "dry" else computed()
    sys.stdout.write(json.dumps(answers) + "\n")
