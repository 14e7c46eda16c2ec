"""Predictions against what runs took on cards, as recorded; needs no GPU."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from gpudash.memory.predicting.architecture import WORKSPACE_CACHE_VARIABLE
from tests.gpu.prediction import MARGIN_RATIO, SPECS, predict

RECORDED = json.loads((Path(__file__).parent / "recorded" / "h100.json").read_text(encoding="utf-8"))
RUNS: dict[str, Any] = RECORDED["runs"]
WITHOUT_CUDNN = [name for name in RUNS if not name.startswith("cnn")]

CONVOLVING_RATIO = 0.03
"""Partial sums of cuDNN's gradients are not predicted."""

pytestmark = pytest.mark.timeout(600)  # the first one waits for all runs to be followed


@pytest.fixture(scope="module")
def predicted() -> dict[str, dict[str, Any]]:
    """Of every run, for the card that it ran on, made without it."""
    card = RECORDED["hardware"]
    target = {
        "device": "cuda:0",
        "capacity_bytes": card["total_bytes"],
        "free_bytes": card["total_bytes"],
        "overhead_bytes": 0,
        "overhead_words": "no context",
        "margin_ratio": MARGIN_RATIO,
        "settings": "",
        "architecture": {"capability": card["capability"], "multiprocessors": card["multiprocessors"]},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WORKSPACE_CACHE_VARIABLE, "1")  # as torch kept workspaces that ran there
        return predict({name: SPECS[name] for name in RUNS}, target)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_predicted_to_allocate_what_it_did_on_the_card_and_with_the_torch_that_ran_there_to_the_byte(
    name: str, predicted: dict[str, dict[str, Any]]
) -> None:
    if name in WITHOUT_CUDNN and torch.__version__ == RECORDED["hardware"]["torch"]:
        found = predicted[name]["peak_allocated_bytes"], predicted[name]["peak_reserved_bytes"]
        assert found == (RUNS[name]["allocated"]["card"], RUNS[name]["reserved"]["card"])
    most = CONVOLVING_RATIO if name.startswith("cnn") else MARGIN_RATIO
    assert predicted[name]["peak_allocated_bytes"] == pytest.approx(RUNS[name]["allocated"]["card"], rel=most)


def test_what_runs_are_predicted_to_reserve_is_about_what_they_reserved(predicted: dict[str, dict[str, Any]]) -> None:
    errors = [abs(predicted[name]["peak_reserved_bytes"] / RUNS[name]["reserved"]["card"] - 1) for name in RUNS]
    assert statistics.median(errors) < 0.001 and max(errors) < 0.12


def test_the_stand_in_took_what_the_card_took_wherever_cudnn_takes_nothing() -> None:
    for name in WITHOUT_CUDNN:
        assert RUNS[name]["allocated"]["standin"] == RUNS[name]["allocated"]["card"], name
