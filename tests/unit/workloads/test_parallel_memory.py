"""The memory of a rank as it is predicted, beside what real ranks count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

MLP = {"model": "mlp", "width": 512, "depth": 4, "batch": 64}
TRANSFORMER = {"width": 64, "depth": 3, "batch": 4}

OFF_BY = 0.01
"""How far a prediction may lie from the count, as a part of it."""


def spec(model: dict[str, Any], ranks: int, parallel: str, optimizer: str, **more: Any) -> dict[str, Any]:
    devices = ",".join(["cpu"] * ranks)
    return {**model, "optimizer": optimizer, "parallel": parallel, "devices": devices, "steps": 3, "epochs": 1, **more}


SGD_AND_ADAMW = [
    spec(model, 2, parallel, optimizer)
    for model, parallel, optimizer in (
        (MLP, "ddp", "sgd"),
        (MLP, "fsdp", "adamw"),
        (TRANSFORMER, "ddp", "adamw"),
        (TRANSFORMER, "fsdp", "sgd"),
    )
]
ACCUMULATED = [spec(MLP, 2, parallel, "adamw", accumulation=2) for parallel in ("ddp", "fsdp")]
FOUR = [spec(MLP, 4, "ddp", "adamw"), spec(TRANSFORMER, 4, "fsdp", "adamw")]


def test_the_predicted_peak_of_every_rank_is_the_counted_one(tmp_path: Path) -> None:
    asked = [SGD_AND_ADAMW + ACCUMULATED, FOUR]
    command = [sys.executable, "-m", "tests.unit.workloads.rank_memory", json.dumps(asked), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    for specs, found in zip(asked, json.loads(done.stdout), strict=True):
        for number, values in enumerate(specs):
            fullest = max(of_rank[number] for of_rank in found["counted"])
            assert found["predicted"][number] == pytest.approx(fullest, rel=OFF_BY), values
