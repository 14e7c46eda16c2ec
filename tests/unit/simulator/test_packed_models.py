"""Layers with packed weights have the sizes of bitsandbytes, and allocate what they did in a recorded QLoRA step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpudash.simulator.models.packed_layers import Linear4bit, Linear8bitLt
from tests.programs import told_by

pytestmark = pytest.mark.process

RECORDED = json.loads(Path(__file__).with_name("recorded").joinpath("packed_layers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Of every model, from one process of dry runs."""
    found: dict[str, Any] = told_by("unit.simulator.packed_models")
    return found


def held(layer: nn.Module) -> dict[str, list[Any]]:
    """Type and shape of everything a layer holds."""
    named = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    return {name: [str(one.dtype).replace("torch.", ""), list(one.shape)] for name, one in named.items()}


@pytest.mark.parametrize(
    "row",
    RECORDED["sizes"]["layers"],
    ids=lambda row: f"{row['layer']} {row['in']} {row['out']} {row.get('nested')} {row.get('storage')}",
)
def test_a_packed_layer_holds_what_bitsandbytes_makes_of_the_same_layer(row: dict[str, Any]) -> None:
    like = nn.Linear(row["in"], row["out"], bias=False, device="meta")
    if row["layer"] == "8-bit":
        assert held(Linear8bitLt(like, row["in"], row["out"], device="meta")) == {
            name: row[name] for name in ("weight", "SCB")
        }
        return
    storage = getattr(torch, row["storage"])
    made = held(Linear4bit(like, row["in"], row["out"], nested=row["nested"], storage=storage, device="meta"))
    shared = "nested_code"  # one for all layers of a process
    expected = {name: row[name] for name in row if name in {*made, "offset", "nested_absmax"}}
    assert shared not in made and made == {name: value for name, value in expected.items() if name != "storage"}


@pytest.mark.parametrize("number", range(len(RECORDED["step"]["calls"])))
def test_each_direction_unpacks_the_weight_as_in_the_recorded_step(number: int, answers: dict[str, Any]) -> None:
    assert answers["step"]["calls"][number] == RECORDED["step"]["calls"][number]["sizes"]


def test_a_model_with_adapters_holds_the_very_blocks_of_the_recorded_one(answers: dict[str, Any]) -> None:
    found, recorded = answers["step"]["weights"], RECORDED["step"]["weights"]
    assert {size: found.get(size) for size in recorded} == recorded
    assert sum(found.values()) - sum(recorded.values()) <= 2  # the frequencies of the positions


def test_parameters_are_counted_as_before_they_were_packed(answers: dict[str, Any]) -> None:
    step = answers["step"]
    learning = 22 * 16 * (2048 + 2048 + 2048 + 256)
    assert step["learning"] == learning
    assert step["counted"] == step["plain"] + learning


def test_double_quantisation_makes_absmax_plain_twice_in_the_forward_pass_of_a_new_bitsandbytes(
    answers: dict[str, Any],
) -> None:
    absmax, weight, made = 4096 * 1024 // 64 * 4, 4096 * 1024 * 2, 32 * 1024 * 2
    forward = answers["nested"]["forward"]
    assert forward[:4] == [absmax, absmax, weight, made]
    assert sorted(forward[4:]) == sorted([-absmax, -absmax, -weight])
    backward = answers["nested"]["backward"]
    assert backward[:3] == [absmax, weight, -absmax]


def test_a_few_rows_are_multiplied_without_unpacking_and_learned_with_it(answers: dict[str, Any]) -> None:
    assert answers["few rows"]["forward"] == [4 * 1024 * 2]
    assert 4096 * 1024 * 2 in answers["few rows"]["backward"]


def test_eight_bits_keep_the_outliers_and_have_the_weight_whole_in_the_backward_pass(answers: dict[str, Any]) -> None:
    sums, halves, rounded = 64 * 128 * 4, 64 * 128 * 2, 64 * 256
    forward, backward = answers["eight bits"]["forward"], answers["eight bits"]["backward"]
    assert {sums, halves, rounded, -sums, -rounded} <= set(forward)
    assert sum(forward) == 64 * 128 * 2 + 64 * 2  # the result, and one column of outliers
    assert backward[0] == 256 * 128 * 2


def test_a_llama_of_8_billion_fits_24_gib_with_qlora_and_not_with_all_its_weights(answers: dict[str, Any]) -> None:
    models = answers["by config"]
    assert models["8B train"]["fits"] is False and models["8B qlora"]["fits"] is True
    assert models["8B train"]["parameters"] == models["8B qlora"]["parameters"] == 8_030_261_248
    packed, plain = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336), 2 * 128256 * 4096 + 65 * 4096
    least = packed // 2 + 4 * packed // 64 + 2 * plain
    assert least < models["8B qlora"]["weight_bytes"] < least * 1.001


def test_activations_on_the_host_cross_the_bus_once_each_way(answers: dict[str, Any]) -> None:
    plain, kept = answers["by config"]["plain"], answers["by config"]["activations"]
    assert kept["peak"] < plain["peak"]
    assert kept["to_host_bytes"] == kept["to_device_bytes"] > 0
    assert kept["to_host_bytes"] <= kept["pinned_bytes"] < 2 * kept["to_host_bytes"]
    assert kept["pageable_bytes"] == 0 and plain.get("pinned_bytes", 0) == 0


def test_weights_on_the_host_come_for_each_pass_and_their_gradients_go(answers: dict[str, Any]) -> None:
    plain, kept = answers["by config"]["plain"], answers["by config"]["weights"]
    weights = plain["weight_bytes"]
    assert kept["peak"] < plain["peak"] - 2 * weights
    assert kept["to_host_bytes"] == weights
    root = 2 * (2 * 512 * 256 + 256)  # embeddings, head and the last norm stay until the backward pass
    assert kept["to_device_bytes"] >= 2 * (weights - root) + root
    assert kept["pageable_bytes"] >= 2 * weights
    assert kept["architecture"] == "LlamaForCausalLM"


def test_packed_weights_of_a_config_are_followed_or_refused_in_one_sentence(answers: dict[str, Any]) -> None:
    models = answers["by config"]
    assert 0 < models["gptq"]["weight_bytes"] < models["plain"]["weight_bytes"]
    assert models["gptq"]["parameters"] == models["plain"]["parameters"]
    said = {
        "gptq learns": "are packed and do not learn",
        "gptq adapted": "are packed and do not learn",
        "unknown": "names the method 'aqlm'",
        "no such layer": "has no module 'query' to put an adapter on",
    }
    for name, words in said.items():
        assert words in models[name]["message"] and models[name]["message"].count(". ") == 0
