"""Configs as they stand on the Hub, without what their architecture has by itself, are answered or refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.serving.defaults import completed, families
from gpudash.memory.serving.plan import ModelServer, ServerCard, ServerFlags
from gpudash.memory.serving.served_model import FULL, SLIDING, STATE, ServedModel
from gpudash.simulator.models.config import ModelConfig, read
from gpudash.simulator.models.matrices import matrices_of
from gpudash.simulator.refusal import CannotPredictError

REFUSED = {
    "FacebookAI/xlm-roberta-large": "is an encoder",
    "google-t5/t5-small": "encodes and decodes",
    "google/vit-large-patch32-224-in21k": "does not say vocab_size",
    "sentence-transformers/all-MiniLM-L6-v1": "is an encoder",
    "XiaomiMiMo/MiMo-7B-Base": "which transformers .* does not know",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "comes with code of its own",
}
"""What is not answered, with the one thing that is missing."""

CARD = ServerCard("a card", 2**50)


@cache
def published() -> dict[str, dict[str, Any]]:
    return dict(json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8")))


def server(config: dict[str, Any]) -> ModelServer:
    if ServedModel(config).is_known:
        return ModelServer(config)
    return ModelServer(config, built=matrices_of(ModelConfig(Path("config.json"), config)))


def test_there_are_configs_enough_each_with_its_source() -> None:
    sources = [facts["source"] for facts in published().values()]
    assert all(sources)
    assert sum(source.startswith("https://") and source.endswith("config.json") for source in sources) >= 40


@pytest.mark.parametrize("name", sorted(published().keys() - REFUSED.keys()))
def test_a_published_config_is_answered_for_a_server(name: str) -> None:
    found = server(published()[name]["config"])
    service = found.on(CARD, ServerFlags(max_model_len=min(4096, found.model.positions or 4096)))
    assert service.fits and service.weights_bytes > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_answered_says_what_is_missing(name: str) -> None:
    with pytest.raises((ValueError, CannotPredictError), match=REFUSED[name]):
        server(published()[name]["config"])


@pytest.mark.parametrize("name", [name for name, facts in published().items() if facts["parameters"]])
def test_weights_are_as_many_as_were_published(name: str) -> None:
    facts = published()[name]
    matrices = server(facts["config"]).model.matrices()
    counted = sum(one.count * one.inputs * one.outputs for one in matrices if not one.name.endswith(".absorbed"))
    assert counted == pytest.approx(facts["parameters"], rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "google/gemma-3-4b-it",
        "llava-hf/llava-1.5-7b-hf",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
    ],
)
def test_a_family_whose_matrices_are_known_has_those_that_transformers_builds(name: str) -> None:
    config = published()[name]["config"]
    built = matrices_of(ModelConfig(Path("config.json"), config))
    sizes = [
        sum(one.count * one.inputs * one.outputs for one in found) for found in (built, server(config).model.matrices())
    ]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.003)


def test_gemma_3_attends_to_everything_in_every_sixth_layer_though_its_config_says_nothing_of_it() -> None:
    model = ServedModel(published()["google/gemma-3-4b-it"]["config"])
    assert model.kinds[:7] == [SLIDING] * 5 + [FULL, SLIDING]
    assert (model.vocabulary, model.heads, model.kv_heads, model.head_dim) == (262208, 8, 4, 256)
    assert model.tied


@pytest.mark.parametrize(
    ("name", "attending", "keeping_a_state"),
    [
        ("ai21labs/AI21-Jamba-1.5-Mini", 4, 28),
        ("LiquidAI/LFM2.5-VL-1.6B", 6, 10),
        ("tiiuae/Falcon-H1-0.5B", 36, 36),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 6, 23),
    ],
)
def test_of_a_mixed_model_only_layers_that_attend_keep_tokens(name: str, attending: int, keeping_a_state: int) -> None:
    kinds = ServedModel(published()[name]["config"]).kinds
    assert (kinds.count(FULL), kinds.count(STATE)) == (attending, keeping_a_state)


@pytest.mark.parametrize(
    ("family", "said", "kinds"),
    [
        ("bamba", {"attn_layer_indices": [1]}, [STATE, FULL, STATE, STATE]),
        ("granitemoehybrid", {"layer_types": ["mamba", "mamba", "mamba", "attention"]}, [STATE, STATE, STATE, FULL]),
        ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [4]}}, [STATE, STATE, STATE, FULL]),
        ("minimax_text_01", {"attn_type_list": [0, 1, 0, 1]}, [STATE, FULL, STATE, FULL]),
        ("zamba2", {"layers_block_type": ["mamba", "hybrid", "mamba", "mamba"]}, [STATE, FULL, STATE, STATE, STATE]),
        ("deepseek_v32", {"kv_lora_rank": 512, "layer_types": ["indexed_attention"] * 4}, [FULL] * 4),
        ("longcat_flash", {"kv_lora_rank": 512, "num_layers": 4}, [FULL] * 8),
    ],
)
def test_each_family_says_in_its_own_way_which_layers_attend(
    family: str, said: dict[str, Any], kinds: list[str]
) -> None:
    sizes = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000}
    assert ServedModel({"model_type": family, **sizes, **said}).kinds == kinds


@pytest.mark.parametrize(
    ("name", "ranks", "state"),
    [
        # 8,192 channels, each with three inputs and a state of 16
        ("ai21labs/AI21-Jamba-1.5-Mini", 1, 8192 * (3 + 16) * 2),
        # the two inputs before the one that a convolution of three is at, of 2,048 channels
        ("LiquidAI/LFM2.5-VL-1.6B", 1, 2048 * 2 * 2),
        # three inputs of 1,536 channels and of B and C, 128 each; 24 heads of 64 by 128
        ("tiiuae/Falcon-H1-0.5B", 1, (1536 + 2 * 128) * 3 * 2 + 1536 * 128 * 2),
        # each of two ranks has B and C whole
        ("tiiuae/Falcon-H1-0.5B", 2, (1536 // 2 + 2 * 128) * 3 * 2 + 1536 // 2 * 128 * 2),
    ],
)
def test_a_state_is_as_large_as_vllm_makes_it(name: str, ranks: int, state: int) -> None:
    assert ServedModel(published()[name]["config"]).state_bytes(ranks, 2) == state


def test_kimi_s_states_are_in_float32_whatever_the_model_s_numbers() -> None:
    linear = {"full_attn_layers": [4], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
    model = ServedModel({"model_type": "kimi_linear", "vocab_size": 163840, "linear_attn_config": linear})
    assert model.state_bytes(1, 2) == 3 * 4096 * 3 * 2 + 4096 * 128 * 4


def test_what_sees_or_hears_in_a_way_that_is_not_known_here_is_left_to_transformers() -> None:
    assert not ServedModel(published()["mistralai/Voxtral-Mini-3B-2507"]["config"]).is_known
    config = published()["google/gemma-3-4b-it"]["config"]
    assert ServedModel(config).is_known
    assert not ServedModel({**config, "model_type": "a_model_of_tomorrow"}).is_known


def test_layers_whose_states_are_not_known_are_refused_in_a_sentence() -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000}
    model = ServedModel({"model_type": "bailing_hybrid", **sizes, "layer_types": ["linear_attention"] * 2})
    with pytest.raises(ValueError, match="What a layer without attention of a bailing_hybrid keeps does not follow"):
        model.state_bytes(1, 2)


def test_a_model_without_attention_keeps_one_state_a_request() -> None:
    sizes = {
        "hidden_size": 4096,
        "intermediate_size": 8192,
        "num_hidden_layers": 64,
        "state_size": 16,
        "conv_kernel": 4,
    }
    model = ServedModel({"model_type": "falcon_mamba", "vocab_size": 65024, **sizes})
    assert model.kinds == [STATE] * 64
    # 8,192 channels, each with the last three inputs of its convolution and a state of 16
    assert model.state_bytes(1, 2) == 8192 * (3 + 16) * 2


def test_what_a_config_says_is_never_replaced_by_a_default() -> None:
    for name, facts in published().items():
        whole = completed(facts["config"])
        for field, value in facts["config"].items():
            if isinstance(value, dict) and field in ("text_config", "vision_config"):
                assert value.items() <= whole[field].items(), name
            else:
                assert whole[field] == value, name


def test_the_first_configs_of_qwen2_vl_have_their_text_in_the_whole() -> None:
    config = {"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "vision_config": {"depth": 32}}
    whole = completed(config)
    assert "text_config" not in whole
    assert (whole["hidden_size"], whole["num_hidden_layers"]) == (
        3584,
        families()["qwen2_vl_text"]["num_hidden_layers"],
    )


def test_what_nvidia_writes_beside_a_config_is_its_quantisation(tmp_path: Path) -> None:
    facts = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"], "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(facts))
    (tmp_path / "config.json").write_text(json.dumps(published()["Qwen/Qwen3-8B"]["config"]))
    said = read(str(tmp_path)).values["quantization_config"]
    assert said == {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
