"""Runs in processes of their own: whether the device's memory is back after them, and how soon they begin and stop."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.specs import Spec, build, field, workloads
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import Event, Note, RunEnd, RunStarted, StepFinished
from gpudash.units import GIB
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run import RunRequest
from gpudash.workloads.running.worker import Worker
from tests.cuda_standin.machine import ASSERT, Machine, is_here
from tests.gpu.child import Report
from tests.gpu.readings import has_context, used_bytes

PATIENCE_S = 120.0
CAP = MemoryCap(size=2 * GIB)


class HarmSpec(Spec):
    """Does what no process recovers from."""

    name = "harm"
    title = "Harm"
    summary = "Does what no process recovers from."
    run = "tests.gpu.isolation:harm"

    way: Literal["assert", "deaf"] = field("assert", "The way")


def harm(spec: HarmSpec, context: Context) -> Mapping[str, Any]:
    """A device-side assert; or products without end, between which nobody looks whether to stop."""
    held = torch.ones(1024, 1024, device=context.device)
    context.begin_steps()
    context.step(1, 2, loss=1.0)
    if spec.way == "assert":
        index = torch.tensor([2**20], device=context.device)
        if is_here():  # no kernel asserts anything on the stand-in for CUDA
            Machine.here().fail("cudaDeviceSynchronize", ASSERT, sticky=True, pid=os.getpid())
        torch.index_select(held, 0, index)
        getattr(torch, context.device.type).synchronize()
        raise RuntimeError("CUDA error: a simulated device asserts nothing")
    time.sleep(0.2)
    while True:
        held = held @ held


class Apart:
    """Runs workloads on one device, each in a process of its own.

    Args:
        cards: the simulated GPUs there are.
    """

    def __init__(self, device: str, cards: tuple[SimulatedGpu, ...] = ()) -> None:
        self._device = device
        self._cards = cards
        self._reported: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._runs = 0
        self._worker = Worker(self._reported.put, time.monotonic)
        self._worker.start()

    def warm_up(self) -> float:
        """Seconds until a process waits for a run."""
        began = time.monotonic()
        self._worker.warm_up(isolate=True)
        self._until(lambda event: isinstance(event, Note) and event.topic == "torch")
        return time.monotonic() - began

    def run(self, spec: Spec, *, stop: bool = False, **request: Any) -> dict[str, Any]:
        """One run in short; with ``stop`` it is stopped after its first step."""
        self._runs += 1
        began = time.monotonic()
        self._worker.submit(
            RunRequest(spec, self._device, self._runs, cards=self._cards, isolate=True, memory_cap=CAP, **request)
        )
        self._until(lambda event: isinstance(event, RunStarted))
        found: dict[str, Any] = {"to_start_s": time.monotonic() - began}
        if stop:
            self._until(lambda event: isinstance(event, StepFinished))
            time.sleep(0.5)
            asked = time.monotonic()
            self._worker.stop()
        ending: Any = self._until(lambda event: isinstance(event, RunEnd))
        if stop:
            found["to_stop_s"] = time.monotonic() - asked
        told = {key: getattr(ending, key, None) for key in ("kind", "status", "error", "message", "remedy", "steps")}
        return found | told | {"seconds": time.monotonic() - began}

    def close(self) -> bool:
        return self._worker.close(10.0)

    def _until(self, wanted: Callable[[Event], bool]) -> Event:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            event = self._reported.get(timeout=max(0.0, deadline - time.monotonic()))
            if wanted(event):
                return event


def specs() -> dict[str, tuple[Spec, bool]]:
    """Name → what is run, and whether it is stopped."""
    known = workloads()
    small = {"width": 64, "depth": 2, "batch": 4, "sequence": 32, "steps": 20, "epochs": 1}
    return {
        "training": (build(known["training"], small), False),
        "out_of_memory": (build(known["pressure"], {"until": "oom", "step": "256MiB", "rate": 200}), False),
        "poisoned": (HarmSpec(way="assert"), False),
        "deaf": (HarmSpec(way="deaf"), True),
        "afterwards": (build(known["pipeline"], {}), False),
    }


def measure(device: torch.device, _argument: None, tell: Report) -> None:
    """Each of `specs`, with what the device has in use before and after it, and when no run had been yet."""
    from gpudash.workloads.running.sim_backend import in_use

    backend = in_use()
    apart = Apart(str(device), () if backend is None else tuple(backend.cards))
    try:
        tell("warm_up_s", apart.warm_up())
        for name, (spec, stop) in specs().items():
            before = used_bytes(device)
            found = apart.run(spec, stop=stop)
            tell(name, found | {"used_bytes": {"before": before, "after": used_bytes(device)}})
        tell("this_process_has_a_context", has_context())
    finally:
        tell("closed", apart.close())
