"""The memory of a rank as it is predicted, beside what real ranks count."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing._internal.distributed import fake_pg

from gpudash.memory.predicting.estimate import Target
from gpudash.simulator.dry_run import ranks as fsdp_memory
from gpudash.simulator.dry_run.ranks import NoRanksError
from gpudash.specs import TrainingSpec
from gpudash.workloads.predicting import estimate
from gpudash.workloads.predicting.dry_run import one_of
from tests.programs import told_by

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
        (TRANSFORMER, "ddp", "adamw"),
        (TRANSFORMER, "fsdp", "sgd"),
    )
]
ACCUMULATED = [spec(MLP, 2, parallel, "adamw", accumulation=2) for parallel in ("ddp", "fsdp")]
FOUR = [spec(TRANSFORMER, 4, "fsdp", "adamw")]
"""Shards shrink with the number of ranks; what DDP takes does not depend on it."""


@pytest.mark.process
def test_the_predicted_peak_of_every_rank_is_the_counted_one(tmp_path: Path) -> None:
    asked = [SGD_AND_ADAMW + ACCUMULATED, FOUR]
    answers = told_by("unit.workloads.rank_memory", json.dumps(asked), str(tmp_path), patience_s=300)
    for specs, found in zip(asked, answers, strict=True):
        for number, values in enumerate(specs):
            fullest = max(of_rank[number] for of_rank in found["counted"])
            assert found["predicted"][number] == pytest.approx(fullest, rel=OFF_BY), values


ON_TWO = TrainingSpec(devices="cpu,cpu")


def enter() -> None:
    with one_of(ON_TWO, None):  # type: ignore[arg-type]
        pass


def test_a_torch_without_ranks_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(NoRanksError, match="built without torch"):
        enter()


def test_a_torch_whose_ranks_need_their_peers_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fake_pg, "FakeStore")
    with pytest.raises(NoRanksError, match="no ranks that can be followed"):
        enter()
    assert not torch.distributed.is_initialized()


def test_a_torch_without_ranks_is_not_taken_for_an_error_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_options: Any) -> None:
        raise NoRanksError("This PyTorch has no ranks.")

    monkeypatch.setattr(estimate, "trace_of", refuse)
    with pytest.raises(estimate.CannotPredictError, match="This PyTorch has no ranks") as told:
        list(estimate.estimate(estimate.Question(ON_TWO, Target("cpu")), None))  # type: ignore[arg-type]
    assert told.value.kind == "unavailable" and "on one device" in told.value.remedy


def test_an_fsdp_that_cannot_be_followed_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    monkeypatch.setattr(fsdp_memory, "_emulated", False)
    kept = _fsdp_param.alloc_storage
    monkeypatch.delattr(_fsdp_param, "free_storage")
    with pytest.raises(AttributeError):
        fsdp_memory.emulate_storages(SimpleNamespace(storages=None))  # type: ignore[arg-type]
    assert _fsdp_param.alloc_storage is kept
    assert not fsdp_memory._emulated
