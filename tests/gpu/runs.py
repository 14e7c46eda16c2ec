"""Runs of the program's workloads on a device, by its own worker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.specs import build, workloads
from gpudash.telemetry.records import Event, RunEnd, StageFinished, StepFinished
from gpudash.workloads.running.context import MemoryLevel
from gpudash.workloads.running.run import RunRequest
from gpudash.workloads.running.worker import Worker
from tests.cuda_standin.machine import is_here

PATIENCE_S = 300.0

SIZE = "200MiB" if not is_here() else "8MiB"
"""Of tensors that are copied over and over: enough to be seen on a card; on the stand-in for CUDA the host copies."""

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "pipeline": ("pipeline", {}),
    "pipeline_visible": ("pipeline", {"size": SIZE, "repeat": 50}),
    "pipeline_pinned": ("pipeline", {"size": SIZE, "repeat": 10, "move": "pinned"}),
    "pipeline_direct": ("pipeline", {"size": SIZE, "repeat": 3, "move": "direct"}),
    **{
        f"pitfall_{name}": ("pipeline", {"pitfall": name})
        for name in ("unassigned", "mixed_devices", "leaf", "numpy", "current_device")
    },
    "transfer": ("transfer", {"blocks": "1MiB,16MiB,256MiB"}),
    "matmul_fp32": ("matmul", {"size": 8192}),
    "matmul_bf16": ("matmul", {"size": 8192, "dtype": "bfloat16"}),
    "training": ("training", {}),
    "training_bf16": ("training", {"precision": "bf16"}),
    "training_fp16": ("training", {"precision": "fp16", "steps": 60}),
    "training_checkpointing": ("training", {"checkpointing": True, "steps": 60}),
    "training_accumulation": ("training", {"accumulation": 4, "steps": 60}),
    "training_cnn": ("training", {"model": "cnn", "width": 64, "steps": 60}),
    "training_mlp": ("training", {"model": "mlp", "width": 256, "depth": 3, "batch": 64, "steps": 600}),
    "training_moved": ("training", {"move_at_epoch": 2, "steps": 60}),
    "training_pingpong": ("training", {"batches": "pingpong", "steps": 60}),
    "inference": ("training", {"mode": "inference", "steps": 200}),
    "pressure": ("pressure", {"step": "256MiB", "rate": 50, "cap": "4GiB", "hold": 0.2}),
    **{
        f"pressure_{name}": ("pressure", {"pattern": name, "rate": 200, "cap": "2GiB", "hold": 0.1})
        for name in ("leak", "sawtooth", "fragmentation", "spike")
    },
    "out_of_memory": ("pressure", {"step": "8GiB", "rate": 1000, "cap": "1024GiB", "hold": 0}),
    "after_out_of_memory": ("pipeline", {}),
}


class Runner:
    """Runs workloads on one device, one after another, and keeps what they tell.

    Args:
        device: torch's name of it.
        cards: the simulated GPUs there are.
    """

    def __init__(self, device: str, cards: tuple[SimulatedGpu, ...] = ()) -> None:
        self.device = device
        self.cards = cards
        self.events: list[Event] = []
        self.readings: list[Mapping[str, int]] = []
        self._ended = threading.Event()
        self._runs = 0
        self._probe: Callable[[], Mapping[str, int]] | None = None
        self._worker = Worker(self._take, time.monotonic, self._probed)
        self._worker.start()

    @property
    def module(self) -> Any:
        """torch's module of the device."""
        return getattr(torch, self.device.partition(":")[0])

    def run(self, workload: str, values: Mapping[str, Any], **request: Any) -> Any:
        """The ending of a run; its other events are in `events`, the allocator's readings in `readings`."""
        self.events, self.readings = [], []
        self._ended.clear()
        self._runs += 1
        spec = build(workloads()[workload], values)
        given = {"memory": self._memory, "cards": self.cards, **request}
        self._worker.submit(RunRequest(spec, self.device, self._runs, **given))
        deadline = time.monotonic() + PATIENCE_S
        while not self._ended.wait(0.05):
            probe = self._probe
            if probe is not None:
                self.readings.append(probe())
            if time.monotonic() > deadline:
                raise TimeoutError(f"{workload} did not end")
        return self.events[-1]

    def stop(self) -> None:
        self._worker.stop()

    def free_cache(self) -> None:
        self._worker.free_cache()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> bool:
        return self._worker.close(10.0)

    def level(self) -> dict[str, int]:
        """What torch has allocated and reserved on the device, in bytes."""
        module = self.module
        return {
            "allocated_bytes": int(module.memory_allocated(self.device)),
            "reserved_bytes": int(module.memory_reserved(self.device)),
        }

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, RunEnd):
            self._ended.set()

    def _probed(self, _device: str, probe: Callable[[], Mapping[str, int]] | None) -> None:
        self._probe = probe

    def _memory(self) -> MemoryLevel:
        free, total = self.module.mem_get_info(self.device)
        return MemoryLevel(total - free, free, total)


def outcome(runner: Runner, workload: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A run in short: how it ended, its stages, first and last steps, result and allocator peaks."""
    ending = runner.run(workload, values)
    steps = runner.of(StepFinished)
    found: dict[str, Any] = json.loads(ending.to_json())
    found.pop("explanation", None)
    found["stages"] = [json.loads(stage.to_json()) for stage in runner.of(StageFinished)][:12]
    found["first_and_last_step"] = [json.loads(step.to_json()) for step in (steps[:1] + steps[-1:])]
    found["highest_reading"] = {
        key: max(reading[key] for reading in runner.readings) for key in (runner.readings[0] if runner.readings else ())
    }
    found["allocated_after_bytes"] = runner.level()["allocated_bytes"]
    return found


def measure_runs(device: torch.device, _argument: None, tell: Callable[[str, Any], None]) -> None:
    """Every run of `RUNS`, one after another in one process, as in the window."""
    runner = Runner(str(device))
    for name, (workload, values) in RUNS.items():
        tell(name, outcome(runner, workload, values))
    tell("closed", runner.close())
