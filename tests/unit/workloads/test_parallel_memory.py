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


def begun(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.workloads.rank_memory", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(processes: list[subprocess.Popen[str]]) -> list[Any]:
    try:
        told = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes), told
    return [json.loads(out) for out, _problems in told]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_predicted_peak_of_every_rank_is_the_counted_one(ranks: int, tmp_path: Path) -> None:
    asked = [
        spec(model, ranks, parallel, optimizer)
        for model in (MLP, TRANSFORMER)
        for parallel in ("ddp", "fsdp")
        for optimizer in (("sgd", "adamw") if ranks == 2 else ("adamw",))
    ]
    asked.append(spec(MLP, ranks, "fsdp", "adamw", accumulation=2))
    specs = json.dumps(asked)
    counted = said([begun("count", specs, str(rank), str(ranks), str(tmp_path / "store")) for rank in range(ranks)])
    (predicted,) = said([begun("predict", specs)])
    for number, values in enumerate(asked):
        fullest = max(of_rank[number] for of_rank in counted)
        assert predicted[number] == pytest.approx(fullest, rel=OFF_BY), values
