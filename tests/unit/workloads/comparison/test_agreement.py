"""Whether two devices found the same."""

from __future__ import annotations

import math

import pytest

from gpudash.workloads.programs.comparison import COMPARED_STEPS, of_losses, of_results, tolerance

LOSSES = [2.0 - 0.01 * step for step in range(30)]


def test_losses_within_the_precision_agree_and_the_tolerance_is_told() -> None:
    other = [loss * (1 + 1e-6) for loss in LOSSES]
    found = of_losses((LOSSES, [0.5] * 30), (other, [0.5] * 30), "fp32")
    assert found.agrees is True
    assert found.tolerance == tolerance("fp32")
    assert "2e-04" in found.words
    assert found.accuracy == (0.5, 0.5)


@pytest.mark.parametrize(("precision", "agrees"), [("fp32", False), ("bf16", True)])
def test_the_tolerance_is_the_precisions_own(precision: str, agrees: bool) -> None:
    other = [loss * 1.01 for loss in LOSSES]
    assert of_losses((LOSSES, []), (other, []), precision).agrees is agrees


def test_only_the_first_steps_are_compared() -> None:
    other = [*LOSSES[:COMPARED_STEPS], *[9.0] * 20]
    assert of_losses((LOSSES, []), (other, []), "fp32").agrees is True


def test_a_loss_that_is_nan_on_one_side_only_differs() -> None:
    assert of_losses(([1.0, math.nan], []), ([1.0, 2.0], []), "fp32").agrees is False
    assert of_losses(([1.0, math.nan], []), ([1.0, math.nan], []), "fp32").agrees is True


def test_results_are_compared_by_their_values() -> None:
    assert of_results({"values": [[1.0, 2.0]]}, {"values": [[1.0, 2.0]]}, "float32").agrees is True
    assert of_results({"values": [[1.0, 2.0]]}, {"values": [[1.0, 2.1]]}, "float32").agrees is False


def test_a_workload_that_tells_nothing_neither_agrees_nor_differs() -> None:
    assert of_losses(([], []), ([], []), "fp32").agrees is None
    assert of_results({}, {}, "float32").agrees is None
