"""Training on several GPUs, data parallel or with a split model: each works, and takes what was predicted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu import scaling
from tests.gpu.prediction import MARGIN_RATIO

pytestmark = [pytest.mark.long, pytest.mark.timeout(8 * scaling.RUN_LIMIT_S)]

COUNT = torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    if COUNT < 2:
        pytest.skip("needs two CUDA devices")
    return scaling.measure([f"cuda:{index}" for index in range(COUNT)])


@pytest.mark.parametrize("strategy", scaling.STRATEGIES)
def test_the_ranks_end_with_the_same_parameters_over_nccl(found: dict[str, Any], strategy: str) -> None:
    run = found[strategy]["run"]
    assert run["status"] == "finished", run
    assert run["parameters_equal"] is True and run["backend"] == "nccl"


def test_no_half_of_a_split_model_takes_more_than_was_predicted() -> None:
    if COUNT < 2:
        pytest.skip("needs two CUDA devices")
    halves = scaling.split(["cuda:0", "cuda:1"])
    assert [half["device"] for half in halves] == ["cuda:0", "cuda:1"]
    for half in halves:
        assert half["predicted_bytes"] == pytest.approx(half["measured_bytes"], rel=MARGIN_RATIO), half


UNPACED = pytest.mark.values("DDP's peak differs from run to run without a card's pace; the cause is not known")
"""By up to 7 % above the prediction. NCCL's thread may let go late of buckets that are made anew."""


@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=UNPACED if name == "ddp" else ()) for name in scaling.STRATEGIES]
)
def test_no_rank_takes_more_than_was_predicted(found: dict[str, Any], strategy: str) -> None:
    ranks = found[strategy]["ranks"]
    assert len(ranks) == COUNT
    for rank in ranks:
        assert rank["error"] is not None and rank["error"] > -MARGIN_RATIO, rank


@pytest.mark.values("how fast one GPU and several are")
def test_several_gpus_do_more_than_one(found: dict[str, Any]) -> None:
    assert found["ddp"]["throughput_ratio"] > 1, found
