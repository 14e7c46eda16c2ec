"""Data parallel training over all GPUs against one: throughput, and each rank's peak against the prediction."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cuda_standin.machine import is_here
from tests.gpu.child import LAST_WORDS, ROOT, limited

STEPS = 30 if not is_here() else 6
"""Enough for a rate; on the stand-in for CUDA, where no rate is a GPU's, enough for the peak."""

LARGE = {"width": 1024, "depth": 12, "batch": 8, "sequence": 512, "steps": STEPS, "epochs": 1}
TINY = {"model": "mlp", "width": 32, "depth": 2, "batch": 16, "steps": 20, "epochs": 1, "threads": 1}

HALVED = {"width": 256, "depth": 5, "batch": 8, "sequence": 128, "steps": 60, "epochs": 1}

STRATEGIES = ("ddp", "fsdp")

RUN_LIMIT_S = 90.0


def measure(devices: Sequence[str], *, values: Mapping[str, Any] = LARGE) -> dict[str, Any]:
    """One rank a device, each with the whole batch, against the first device alone.

    Args:
        devices: "cuda:0", "cuda:1", …, or "cpu" twice to try the measurement itself.
        values: fields of the training.

    Returns:
        ``skipped`` in words with fewer than two devices; else ``devices``, ``one`` (the run on the first device),
        and by strategy ``run, estimate, throughput_ratio, efficiency`` (that ratio over the number of ranks) and
        ``ranks`` (``rank, measured_bytes, predicted_bytes, error``: peak reserved).
    """
    if len(devices) < 2:
        return {"skipped": f"scaling needs two devices, and there is {len(devices)}"}
    alone = _command("run", values, "--device", devices[0], "--no-record")
    found: dict[str, Any] = {"devices": list(devices), "one": _figures(alone)}
    for strategy in STRATEGIES:
        where = ("--devices", ",".join(devices), "--parallel", strategy)
        run = _command("run", values, *where, "--no-record")
        estimate = _command("estimate", values, *where)
        found[strategy] = {
            "run": _figures(run),
            "estimate": estimate,
            "ranks": _against_prediction(run, estimate),
            **_scaling(alone, run, len(devices)),
        }
    return found


def split(devices: Sequence[str]) -> list[dict[str, Any]]:
    """A model split over two devices: what each of them reaches, and what was predicted.

    Returns:
        of each device ``device, measured_bytes, predicted_bytes``: peak reserved.

    Raises:
        AssertionError: when it did not finish.
    """
    where = ("--devices", ",".join(devices), "--parallel", "split")
    run = _command("run", HALVED, *where, "--no-record", "--on-nan", "continue")
    assert run.get("status") == "finished", run
    estimate = _command("estimate", HALVED, *where)
    return [
        {
            "device": reached["device"],
            "measured_bytes": reached["peak_reserved_bytes"],
            "predicted_bytes": predicted["peak_reserved_bytes"],
        }
        for reached, predicted in zip(run["result"]["devices"], estimate["ranks"], strict=True)
    ]


def _command(name: str, values: Mapping[str, Any], *words: str) -> dict[str, Any]:
    """What a command prints with ``--json``; ``error`` when it prints none."""
    fields = [word for key, value in values.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "gpudash", name, "training", *fields, *words, "--json"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limited(RUN_LIMIT_S), check=False
        )
        told: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {RUN_LIMIT_S:g} s"}
    except ValueError:
        return {"error": done.stderr[-LAST_WORDS:]}
    return told


def _figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth keeping of a run's outcome."""
    kept = ("status", "error", "memory", "metrics", "seconds")
    result = run.get("result") or {}
    facts = ("steps_per_second", "items_per_second", "ranks", "parameters_equal", "straggler", "backend")
    return {**{key: run.get(key) for key in kept}, **{key: result.get(key) for key in facts}}


def _scaling(alone: Mapping[str, Any], run: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    rates = [(one.get("result") or {}).get("items_per_second") for one in (alone, run)]
    if not all(rates):
        return {"throughput_ratio": None, "efficiency": None}
    ratio = rates[1] / rates[0]
    return {"throughput_ratio": ratio, "efficiency": ratio / ranks}


def _against_prediction(run: Mapping[str, Any], estimate: Mapping[str, Any]) -> list[dict[str, Any]]:
    measured = {one["rank"]: one.get("peak_reserved_bytes") for one in (run.get("result") or {}).get("ranks") or ()}
    found = []
    for one in estimate.get("ranks") or ():
        predicted, peak = one.get("peak_reserved_bytes"), measured.get(one["rank"])
        error = predicted / peak - 1 if predicted and peak else None
        found.append({"rank": one["rank"], "measured_bytes": peak, "predicted_bytes": predicted, "error": error})
    return found
