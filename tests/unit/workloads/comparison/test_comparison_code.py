"""A comparison as a plain program."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import pytest
import torch

from gpudash.specs import ComparisonSpec, build
from gpudash.workloads import program_code
from gpudash.workloads.program_code import code

SMALL = {"width": 16, "depth": 2, "batch": 4}
SPECS: list[dict[str, Any]] = [
    {"fields": {"model": "mlp", **SMALL}},
    {"fields": {"model": "mlp", "checkpointing": True, "precision": "bf16", "batches": "resident", **SMALL}},
    {"fields": {"model": "cnn", "accumulation": 2, "keep_intermediates": True, **SMALL}},
    {"fields": {"model": "transformer", "sequence": 8, "precision": "fp16", "batches": "pingpong", **SMALL}},
    {"fields": {"model": "transformer", "sequence": 8, "mode": "inference", **SMALL}},
    {"workload": "matmul", "fields": {"size": 32}},
    {"workload": "pipeline", "fields": {"operation": "matmul"}},
]


@pytest.mark.parametrize("values", SPECS)
def test_the_program_times_both_devices_in_at_most_sixty_lines(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_code, "REPETITIONS", 1)
    text = code(build(ComparisonSpec, {"devices": "cpu,cpu", **values}), "cpu")
    assert len(text.splitlines()) <= 60
    threads, told = torch.get_num_threads(), io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            exec(compile(text, "comparison", "exec"), {"__name__": "comparison"})
    finally:
        torch.set_num_threads(threads)
    first, second, ratio = (float(word) for word in re.findall(r"\d+\.\d+(?:e-?\d+)?", told.getvalue()))
    assert first > 0 and second > 0
    assert 0.01 < ratio < 100


def test_the_program_uses_as_many_threads_as_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_code, "threads_for", lambda size: 7 if size == 4096 else 1)
    for values, threads in (
        ({"workload": "matmul", "fields": {"size": 4096}}, 7),
        ({"workload": "matmul", "threads": 3}, 3),
        ({}, 1),
    ):
        text = code(build(ComparisonSpec, {"devices": "cpu,cpu", **values}), "cpu")
        assert f"torch.set_num_threads({threads})" in text


def test_the_program_imports_nothing_of_gpudash() -> None:
    assert "gpudash" not in code(build(ComparisonSpec, {"devices": "cpu,cuda:0"}), "cuda:0")
