"""Summaries of runs, as `RunView.summary` writes them, with the few figures a scene reads."""

from __future__ import annotations

from typing import Any

from gpudash.units import MIB


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


def moved(device: str = "sim:0", *, peak: int | None = 128 * MIB, copied: bool = True) -> dict[str, Any]:
    """A pipeline that ran twice over 64 MiB."""
    stages = [stage("create", 128 * MIB, False, 2), stage("move", 128 * MIB if copied else 0, copied, 2)]
    return summary(device, stages=stages, memory={"peak_allocated_bytes": peak})


def pitfall(name: str, message: str | None, **facts: Any) -> dict[str, Any]:
    """A mistake that was made."""
    told = {"pitfall": name, "message": message, "explanation": "Why.", "remedy": "Do that.", "facts": facts}
    return summary(result={"pitfall": told})


def trained(device: str, loss: float, speed: float = 100.0) -> dict[str, Any]:
    """A training that reached a loss at a speed."""
    metrics = {"loss": {"last_20_median": loss}, "throughput": {"median": speed}}
    return summary(device, metrics=metrics)


def placed(batches: str, size: int, device: str = "sim:0") -> dict[str, Any]:
    """A training with its batches in one place, which copied ``size`` bytes."""
    run = trained(device, 1.0)
    return {**run, "spec": {"batches": batches}, "stages": [stage("batch", size, size > 0)]}


def out_of_memory(**by_category: int) -> dict[str, Any]:
    """A training that ran out of memory with its categories holding so many bytes."""
    explanation = {
        "headline": "Lines keep memory.",
        "step": 34,
        "requested_bytes": 12 * MIB,
        "growing": [{"bytes_per_step": 4 * MIB}],
        "by_category": {name.replace("_", " "): size for name, size in by_category.items()},
    }
    error = {"kind": "sim", "message": "Memory ran out.", "remedy": "", "explanation": explanation}
    spec = {"keep_intermediates": True, "batch": 1024}
    return summary(status="out_of_memory", error=error, spec=spec)
