"""Workloads that a run's own process imports: some that behave, and some that nothing else could survive."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from gpudash.specs import Spec, field
from gpudash.workloads.running.context import Context

Way = Literal["segfault", "exit", "killed", "closed", "cuda", "sys.exit", "child", "deaf", "deaf in C"]


class EndingSpec(Spec):
    """Takes two steps, then ends in some way."""

    name = "ending"
    title = "Ending"
    summary = "Takes two steps, then ends in some way."
    run = "tests.unit.workloads.hosted_workloads:end"

    way: Way = field("exit", "The way")


def end(spec: EndingSpec, context: Context) -> Mapping[str, Any]:
    context.begin_steps()
    for step in (1, 2):
        context.step(step, 10, loss=1.0 / step)
    if spec.way == "child":
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        context.note("grandchild", "started", pid=grandchild.pid)
    else:
        time.sleep(0.1)  # what was told is sent by then
        _ENDS[spec.way]()
        context.step(3, 10, loss=0.0)
    context.wait(600)
    return {}


def _poison() -> None:
    raise RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA")


_ENDS: dict[str, Callable[[], Any]] = {
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "closed": lambda: os.closerange(3, 256),
    "cuda": _poison,
    "sys.exit": lambda: sys.exit("enough"),
    "deaf": lambda: time.sleep(600),
    "deaf in C": lambda: ctypes.PyDLL(None).sleep(600),  # no other thread of the process runs meanwhile
}


class AskingSpec(Spec):
    """Asks everything that a run can ask, and tells the answers."""

    name = "asking"
    title = "Asking"
    summary = "Asks everything that a run can ask."
    run = "tests.unit.workloads.hosted_workloads:ask"

    size: int = field(1000, "Bytes that are announced")


def ask(spec: AskingSpec, context: Context) -> Mapping[str, Any]:
    level = context.memory()
    context.keep(
        level=None if level is None else [level.used_bytes, level.free_bytes, level.total_bytes],
        warn_ratio=context.warn_ratio,
        link=context.link_bytes_per_second,
        pid=os.getpid(),
        group=os.getpgrp(),
        energy=[context.energy("cpu"), context.energy("cuda:0")],
    )
    context.about_to_allocate(spec.size)
    context.about_to_allocate(spec.size + 1, "cpu")
    return {"granted": True}


class HoldingSpec(Spec):
    """Holds memory of a simulated GPU until it is told to free what is idle."""

    name = "holding"
    title = "Holding"
    summary = "Holds idle memory until it is told to free it."
    run = "tests.unit.workloads.hosted_workloads:hold"


def hold(spec: HoldingSpec, context: Context) -> Mapping[str, Any]:
    module: Any = torch.sim  # type: ignore[attr-defined]
    context.begin_steps()
    torch.empty(64 * 2**20, dtype=torch.uint8, device=context.device)
    reserved = module.memory_reserved()
    step = 0
    while module.memory_reserved():
        step += 1
        context.step(step, 100_000, throughput=1.0)
        context.wait(0.005)
    return {"reserved": reserved}
