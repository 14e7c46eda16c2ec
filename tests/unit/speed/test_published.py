"""Published steps of other models and cards: their rows, and the work that was traced of them."""

from __future__ import annotations

import gzip
import json

import pytest

from gpudash.devices.card_performance import CARD_PERFORMANCE
from gpudash.speed.work import UNKNOWN, StepWork
from tests.speed.published import TABLES, WORKS, Published, read

ROWS = list(read())
WORK = {
    key: (StepWork.from_dict(work), parameters)
    for key, (work, parameters) in json.loads(gzip.decompress(WORKS.read_bytes())).items()
}

GFLOPS = {
    "resnet50": 8.2,
    "resnext101_32x4d": 16.0,
    "seresnext101_32x4d": 16.0,
    "efficientnet_b0": 0.8,
    "efficientnet_b4": 8.8,
    "vit_base_patch16_224": 35.1,
    "convnext_large": 68.8,
    "stable-diffusion-1.5-unet": 1610,
}
"""Of one item forward, two for each multiplication and addition: the papers' figures."""


def flops(row: Published) -> float:
    work, _ = WORK[row.key]
    return sum(operation.flops * count for operation, count in work.operations.items())


def test_every_row_is_of_a_known_card_and_has_its_work() -> None:
    assert {row.table for row in ROWS} == set(TABLES)
    assert {row.card for row in ROWS} <= set(CARD_PERFORMANCE)
    assert {row.key for row in ROWS} == set(WORK)
    assert all(row.step_s > 0 for row in ROWS)


@pytest.mark.parametrize("model", list(GFLOPS))
def test_the_work_of_a_model_is_what_its_paper_says(model: str) -> None:
    found = [row for row in ROWS if row.model == model]
    assert found
    for row in found:
        passes = 3 if row.training else 1
        assert flops(row) / row.batch / passes == pytest.approx(GFLOPS[model] * 1e9, rel=0.1)


def test_bert_does_six_for_each_of_its_parameters_and_tokens_and_a_little_more_for_attention() -> None:
    for row in ROWS:
        if row.model == "bert-large":
            passes = 3 if row.training else 1
            least = 2 * 302e6 * row.batch * row.size * passes
            assert least <= flops(row) <= 1.2 * least


def test_nothing_of_them_is_unknown_and_tensor_cores_do_what_the_row_says() -> None:
    for row in ROWS:
        work, parameters = WORK[row.key]
        assert parameters > 1e6
        kinds = {operation.dtype for operation in work.operations if operation.flops > 1e6}
        assert not [operation.name for operation in work.operations if operation.kind == UNKNOWN]
        assert ("float16" in kinds) == row.precision.endswith("float16")
        if row.precision == "tf32":
            assert "tf32" in kinds


def test_gradients_that_are_summed_over_steps_are_exchanged_once() -> None:
    assert {row.accumulated for row in ROWS if row.table == "nvidia_bert"} == {1, 32, 64, 128}
    assert {row.accumulated for row in ROWS if row.table != "nvidia_bert"} == {1}
