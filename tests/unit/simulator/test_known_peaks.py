"""The dry run against peaks that were measured on a real GPU.

The first predictions were written down before they were compared; those that are recorded now follow rules that were
held against torch's own allocator since. They rest on one constant that a model does not tell, the bytes of cuBLAS's
workspace (`gpudash.memory.predicting.architecture.USUAL_WORKSPACE_BYTES`).
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch

from gpudash.session.predicting.estimates import CUDA_MARGIN_RATIO
from tests.programs import output_of

pytestmark = pytest.mark.long

RECORDED = json.loads((Path(__file__).parent / "recorded" / "known_peaks.json").read_text(encoding="utf-8"))
PREDICTED: dict[str, dict[str, int]] = RECORDED["predicted"]

MEASURED = {
    "decoder, context 128, training, float32": {"allocated": 7_026_606_592, "reserved": 7_235_174_400},
    "decoder, context 512, training, bf16 autocast": {"allocated": 12_431_545_344, "reserved": 12_660_506_624},
    "decoder, context 128, inference, float32": {"allocated": 1_738_928_128, "reserved": 1_763_704_832},
    "decoder, context 512, inference, bf16 autocast": {"allocated": 1_951_309_824, "reserved": 1_981_808_640},
    "attention alone, float32": {"allocated": 3_249_144_832, "reserved": 3_781_165_056},
}
"""Bytes on the GPU: the highest of the recorded step, block by block as the allocator handed them out."""

FIGURES = [(name, figure) for name in MEASURED for figure in ("allocated", "reserved")]


def off_by(name: str, figure: str) -> float:
    """Part of the measured figure by which the predicted one is above it."""
    return PREDICTED[name][figure] / MEASURED[name][figure] - 1


def test_a_dry_run_predicts_what_was_written_down() -> None:
    if torch.__version__.split("+")[0] != RECORDED["torch"]:
        pytest.skip(f"the predictions were made with torch {RECORDED['torch']}")
    assert json.loads(output_of("unit.simulator.known_models")) == PREDICTED


@pytest.mark.parametrize(("name", "figure"), FIGURES)
def test_a_predicted_peak_is_within_one_percent_of_the_measured_one(name: str, figure: str) -> None:
    assert abs(off_by(name, figure)) <= 0.01


def test_predicted_peaks_are_half_of_the_time_within_three_thousandths() -> None:
    assert statistics.median(abs(off_by(name, figure)) for name, figure in FIGURES) <= 0.003


def test_no_prediction_is_below_what_was_measured_by_more_than_the_margin_that_is_stated() -> None:
    assert min(off_by(name, figure) for name, figure in FIGURES) >= -CUDA_MARGIN_RATIO
