"""What is said beside a prediction of a torch that the predictions have not been measured with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.memory.predicting.estimate import Estimate
from gpudash.memory.predicting.prediction import Prediction
from gpudash.memory.predicting.torch_versions import unmeasured_torch


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.1+cu132", ""])
def test_of_a_torch_that_was_measured_nothing_is_said(version: str) -> None:
    assert unmeasured_torch(version) == ""


@pytest.mark.parametrize("version", ["2.10.0", "2.16.0a0+git1", "3.0.0"])
def test_of_another_torch_it_is_said_which_were_measured(version: str) -> None:
    number = version.partition("+")[0]
    assert unmeasured_torch(version) == f"measured with torch 2.11 to 2.15; torch {number} may allocate differently"


def test_it_stands_beside_the_prediction() -> None:
    estimate = Estimate(workload="matmul", device="sim:0", peak_allocated_bytes=1, torch="2.13.0")
    assert Prediction(estimate).assumption_lines == []
    newer = Prediction(replace(estimate, torch="2.16.0"))
    assert newer.assumption_lines == [unmeasured_torch("2.16.0")]
