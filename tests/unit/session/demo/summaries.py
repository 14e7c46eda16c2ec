"""Summaries of runs, as `RunView.summary` writes them, with the few figures a scene reads."""

from __future__ import annotations

from typing import Any

from gpudash.memory.predicting.estimate import Estimate
from gpudash.units import GIB, MIB


def summary(device: str = "sim:0", **changes: Any) -> dict[str, Any]:
    """A run that finished and has nothing to tell."""
    return {
        "workload": "training",
        "device": device,
        "simulated": device.startswith("sim"),
        "spec": {},
        "status": "finished",
        "seconds": 2.0,
        "steps": 10,
        "stages": [],
        "metrics": {},
        "memory": {"peak_allocated_bytes": None},
        "result": {},
        "warnings": [],
        "error": None,
        "recording": None,
        **changes,
    }


def stage(name: str, size: int, copied: bool, count: int = 1) -> dict[str, Any]:
    """A stage that moved ``size`` bytes in a tenth of a second."""
    return {"name": name, "bytes": size, "copied": copied, "count": count, "bytes_per_second": size / 0.1}


def trained(device: str, loss: float, speed: float = 100.0, peak: int | None = None) -> dict[str, Any]:
    """A training that reached a loss at a speed."""
    metrics = {"loss": {"last_20_median": loss + 0.3, "last": loss}, "throughput": {"median": speed}}
    memory = {"peak_allocated_bytes": peak}
    return summary(device, metrics=metrics, memory=memory, losses=[4.0, loss])


def placed(batches: str, size: int, device: str = "sim:0") -> dict[str, Any]:
    """A training with its batches in one place, which copied ``size`` bytes."""
    run = trained(device, 1.0)
    return {**run, "spec": {"batches": batches}, "stages": [stage("batch", size, size > 0)]}


def estimate(needed: int) -> Estimate:
    """A prediction of which only the peak and what it is made of matter."""
    return Estimate(
        device="sim:0",
        capacity_bytes=4 * GIB,
        free_bytes=4 * GIB,
        spare_bytes=4 * GIB - needed,
        overhead_bytes=300 * MIB,
        workload="model",
        by_category={"weights": needed // 2, "activations": needed // 4},
    )
