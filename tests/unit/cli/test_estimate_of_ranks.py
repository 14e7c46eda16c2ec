"""``gpudash estimate training --devices A,B``: what each rank takes, and which one decides."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.memory.predicting.rank_estimates import NCCL_BYTES
from gpudash.session.predicting import estimator
from gpudash.units import GIB, MIB
from tests.unit.cli.test_estimate import ESTIMATE, SCRIPT

RANK = {
    "rank": 0,
    "device": "cpu",
    "capacity_bytes": 16 * GIB,
    "free_bytes": 8 * GIB,
    "peak_allocated_bytes": 9 * GIB,
    "peak_reserved_bytes": 10 * GIB,
    "minimum_capacity_bytes": 11 * GIB,
    "overhead_bytes": 300 * MIB + NCCL_BYTES,
    "fits": False,
    "spare_bytes": -round(2.3 * GIB),
    "margin_bytes": 0,
}
OF_RANKS: dict[str, Any] = {
    **ESTIMATE,
    "device": "cpu",
    "overhead_bytes": 300 * MIB + NCCL_BYTES,
    "communication_bytes": NCCL_BYTES,
    "ranks": [RANK, {**RANK, "rank": 1, "free_bytes": 16 * GIB, "fits": True, "spare_bytes": round(5.5 * GIB)}],
    "deciding_rank": 0,
    "strategy": "fsdp",
    "largest_global_batch": 24,
}
ON_TWO = ("estimate", "training", "--devices", "cpu,cpu", "--parallel", "fsdp")


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "predictor.py"
    script.write_text(SCRIPT, encoding="utf-8")
    answer = json.dumps({"final": True, "estimate": OF_RANKS})
    monkeypatch.setattr(estimator, "COMMAND", (sys.executable, "-I", str(script), answer))
    monkeypatch.setenv("COLUMNS", "120")


def test_the_document_has_each_rank_and_the_one_that_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ON_TWO, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ranks"][0].keys() >= {
        "rank",
        "device",
        "capacity_bytes",
        "free_bytes",
        "peak_reserved_bytes",
        "minimum_capacity_bytes",
        "fits",
        "margin_bytes",
    }
    assert (document["fits"], document["deciding_rank"], document["largest_global_batch"]) == (False, 0, 24)


def test_a_person_reads_the_ranks_and_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(list(ON_TWO)) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "training on 2 ranks (cpu): does not fit, 2.30 GiB short on rank 0"
    assert any("N NCCL (assumed) 192 MiB" in line for line in lines)
    assert "largest batch: 12 per rank, 24 in all" in lines
    assert "rank 1 on cpu: 10.50 GiB of 16.00 GiB free, fits" in lines
    assert "assumed: NCCL about 192 MiB per rank" in lines
