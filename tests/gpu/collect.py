"""Measures gpudash on a machine with a GPU and writes what it found as small JSON files.

    python tests/gpu/collect.py OUT [--device cuda:0]

Needs torch with CUDA, nvidia-ml-py, pydantic and psutil; no Qt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from gpudash.specs import build, workloads
from gpudash.telemetry.records import Event, RunEnded, StageFinished, StepFinished, plain
from gpudash.workloads import torch_report
from gpudash.workloads.worker import MemoryLevel, RunRequest, Worker

PATIENCE_S = 300.0
COPY_BYTES = 256 * 2**20

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "pipeline": ("pipeline", {}),
    "pipeline_visible": ("pipeline", {"size": "200MiB", "repeat": 50}),
    "pipeline_pinned": ("pipeline", {"size": "200MiB", "repeat": 10, "move": "pinned"}),
    "pipeline_direct": ("pipeline", {"size": "200MiB", "repeat": 3, "move": "direct"}),
    **{
        f"pitfall_{name}": ("pipeline", {"pitfall": name})
        for name in ("unassigned", "mixed_devices", "leaf", "numpy", "current_device")
    },
    "transfer": ("transfer", {"blocks": "1MiB,16MiB,256MiB"}),
    "matmul_fp32": ("matmul", {"size": 8192}),
    "matmul_bf16": ("matmul", {"size": 8192, "dtype": "bfloat16"}),
    "training": ("training", {}),
    "training_bf16": ("training", {"precision": "bf16"}),
    "training_mlp": ("training", {"model": "mlp", "width": 256, "depth": 3, "batch": 64, "steps": 600}),
    "training_moved": ("training", {"move_at_epoch": 2, "steps": 60}),
    "training_pingpong": ("training", {"batches": "pingpong", "steps": 60}),
    "inference": ("training", {"mode": "inference", "steps": 200}),
    "pressure": ("pressure", {"step": "256MiB", "rate": 50, "cap": "4GiB", "hold": 0.2}),
    "out_of_memory": ("pressure", {"step": "8GiB", "rate": 1000, "cap": "1024GiB", "hold": 0}),
    "after_out_of_memory": ("pipeline", {}),
}


class Runner:
    """Runs workloads on one device, one after another, and keeps what they tell."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.events: list[Event] = []
        self.readings: list[Mapping[str, int]] = []
        self._ended = threading.Event()
        self._runs = 0
        self._probe: Callable[[], Mapping[str, int]] | None = None
        self._worker = Worker(self._take, time.monotonic, self._probed)
        self._worker.start()

    def run(self, workload: str, values: Mapping[str, Any], **request: Any) -> Any:
        """The ending of a run; its other events are in `events`, the allocator's readings in `readings`."""
        self.events, self.readings = [], []
        self._ended.clear()
        self._runs += 1
        spec = build(workloads()[workload], values)
        self._worker.submit(RunRequest(spec, self.device, self._runs, memory=self._memory, **request))
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

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, RunEnded):
            self._ended.set()

    def _probed(self, _device: str, probe: Callable[[], Mapping[str, int]] | None) -> None:
        self._probe = probe

    def _memory(self) -> MemoryLevel:
        free, total = torch.cuda.mem_get_info(self.device)
        return MemoryLevel(total - free, free, total)


def bare_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    """Bytes per second of a copy, measured by CUDA events and by nothing of gpudash: median of 10."""
    rates = []
    for _ in range(12):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        target.copy_(source, non_blocking=True)
        ended.record()
        ended.synchronize()
        rates.append(source.nbytes / (began.elapsed_time(ended) / 1e3))
    return statistics.median(rates[2:])


def copies(device: str) -> dict[str, float]:
    """Independent copy rates in bytes per second, to hold the transfer workload's against."""
    there = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    found = {}
    for memory in ("pageable", "pinned"):
        here = torch.ones(COPY_BYTES, dtype=torch.uint8, pin_memory=memory == "pinned")
        found[f"h2d_{memory}"] = bare_copy(here, there)
        found[f"d2h_{memory}"] = bare_copy(there, here)
    return found


def nvml() -> dict[str, Any]:
    """What NVML says, and how long each of its calls takes (median of 20, seconds)."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    calls: dict[str, Callable[[Any], Any]] = {
        "memory_v1": pynvml.nvmlDeviceGetMemoryInfo,
        "memory_v2": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
        "utilisation": pynvml.nvmlDeviceGetUtilizationRates,
        "temperature": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "power": pynvml.nvmlDeviceGetPowerUsage,
        "energy": pynvml.nvmlDeviceGetTotalEnergyConsumption,
        "sm_clock": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "pcie_generation": pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
        "pcie_width": pynvml.nvmlDeviceGetCurrPcieLinkWidth,
        "pcie_rx": lambda handle: pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        "processes": pynvml.nvmlDeviceGetComputeRunningProcesses,
    }
    gpus = []
    for handle in handles:
        gpu: dict[str, Any] = {"uuid": pynvml.nvmlDeviceGetUUID(handle), "name": pynvml.nvmlDeviceGetName(handle)}
        for name, call in calls.items():
            gpu[name] = _timed(lambda call=call, handle=handle: call(handle))
        gpus.append(gpu)
    found = {"driver": pynvml.nvmlSystemGetDriverVersion(), "gpus": gpus}
    pynvml.nvmlShutdown()
    return found


def _timed(call: Callable[[], Any]) -> dict[str, Any]:
    seconds = []
    try:
        for _ in range(20):
            began = time.perf_counter()
            value = call()
            seconds.append(time.perf_counter() - began)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": str(value)[:300], "seconds_median": statistics.median(seconds)}


def outcome(runner: Runner, workload: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A run in short: how it ended, its stages, first and last steps, result and allocator peaks."""
    ending = runner.run(workload, values)
    steps = runner.of(StepFinished)
    found = json.loads(ending.to_json())
    found["stages"] = [json.loads(stage.to_json()) for stage in runner.of(StageFinished)][:12]
    found["first_and_last_step"] = [json.loads(step.to_json()) for step in (steps[:1] + steps[-1:])]
    found["highest_reading"] = {
        key: max(reading[key] for reading in runner.readings) for key in (runner.readings[0] if runner.readings else ())
    }
    found["allocated_after_bytes"] = torch.cuda.memory_allocated(runner.device)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the JSON files")
    parser.add_argument("--device", default="cuda:0")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("There is no CUDA device here.\n")
        return 2
    given.out.mkdir(parents=True, exist_ok=True)

    def write(name: str, found: Any) -> None:
        (given.out / f"{name}.json").write_text(json.dumps(plain(found), indent=1))
        sys.stdout.write(f"{name}\n")

    report = torch_report(properties=True)
    readings = nvml()
    uuids = [gpu["uuid"] for gpu in readings["gpus"]]
    write("torch", {**report, "uuids_match": all(device["uuid"] in uuids for device in report["devices"])})
    write("nvml", readings)
    write("copies", copies(given.device))
    runner = Runner(given.device)
    for name, (workload, values) in RUNS.items():
        write(name, outcome(runner, workload, values))
    return 0 if runner.close() else 1


if __name__ == "__main__":
    raise SystemExit(main())
