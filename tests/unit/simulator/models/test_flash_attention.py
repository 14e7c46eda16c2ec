"""Models that attend by flash-attn: they take what torch's copy of its kernel takes, and no mask."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.simulator.models.flash_attention import AS_TORCH
from gpudash.specs import ModelSpec
from tests.programs import told_by

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = told_by("unit.simulator.models.flash_models")
    return found


@pytest.mark.parametrize("case", ["llama", "llama, checkpointing", "llama, amp", "infer"])
def test_where_torch_takes_its_flash_kernel_flash_attn_takes_as_much(
    case: str, answers: dict[str, dict[str, Any]]
) -> None:
    assert answers[f"{case}, flash"]["peaks"] == answers[case]["peaks"]
    assert AS_TORCH in answers[f"{case}, flash"]["assumptions"]


@pytest.mark.parametrize("case", ["gemma", "qlora"])
def test_windows_soft_caps_and_wide_activations_need_no_more_with_flash_attn(
    case: str, answers: dict[str, dict[str, Any]]
) -> None:
    assert answers[f"{case}, flash"]["peaks"][0] < 0.95 * answers[case]["peaks"][0]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("fp32", "takes bfloat16 and float16 only, and this model attends in float32. Choose --precision bf16."),
        ("turing", "needs compute capability 8.0, and this card has 7.5."),
        ("t5", "T5ForConditionalGeneration does not know flash_attention_2."),
        ("unet", "A model of diffusers attends by torch's fused kernels here. Leave --attention out."),
    ],
)
def test_what_flash_attn_does_not_take_is_refused_in_a_sentence(
    case: str, said: str, answers: dict[str, dict[str, Any]]
) -> None:
    assert said in answers[case]["refused"]


def test_it_may_be_named_in_short() -> None:
    assert ModelSpec.model_validate({"attention": "flash"}).attention == "flash_attention_2"


def test_it_is_run_on_cuda_alone() -> None:
    spec = ModelSpec(path="/", attention="flash_attention_2")
    (problem,) = spec.run_problems("cpu")
    assert "needs a CUDA device" in problem and spec.problems("cpu") == spec.run_problems("cuda:0") == []
