"""One reader says what a quantization_config packs, for training and for servers."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.memory.quantisation import SERVED, QuantisationError, read
from gpudash.memory.serving.plan import ModelServer, ServerCard, ServerFlags
from gpudash.memory.serving.served_model import ServedModel
from gpudash.memory.serving.weights import weight_bytes

PHI_4 = {
    "model_type": "llama",
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "num_hidden_layers": 40,
    "vocab_size": 100352,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FP8_GROUP = {"weights": {"num_bits": 8, "strategy": "channel"}, "input_activations": {"num_bits": 8}}


def weights(how: dict[str, Any] | None = None, **settings: Any) -> float:
    config = {**PHI_4, "quantization_config": how} if how else PHI_4
    return weight_bytes(ServedModel(config), **settings) / 2**30


def test_scales_that_are_quantised_in_turn_are_small_where_the_server_keeps_them_so() -> None:
    double = {**BITSANDBYTES, "bnb_4bit_use_double_quant": True}
    assert weights(double) == weights(BITSANDBYTES)
    # 13.6 billion weights in 213 million blocks, whose scale takes a byte in place of four
    assert weights(BITSANDBYTES) - weights(double, nested=True) == pytest.approx(0.59, abs=0.01)


@pytest.mark.parametrize(
    ("skipped", "matrices"),
    [
        ("model.layers.1", 4),
        ("model.layers.1.self_attn.q_proj", 1),
        ("language_model.model.layers.1.mlp", 2),
        ("model.layers.40", 0),
    ],
)
def test_modules_that_the_config_leaves_out_take_what_they_took_before(skipped: str, matrices: int) -> None:
    how = read({**BITSANDBYTES, "llm_int8_skip_modules": [skipped]})
    left = [matrix for matrix in ServedModel(PHI_4).matrices() if matrix.quantisable and not how.reaches(matrix.name)]
    assert len(left) == matrices
    assert all("layers.1." in matrix.name for matrix in left)


@pytest.mark.parametrize(
    ("how", "gib"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 8.5),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 8.5),
        ({"quant_method": "fp8"}, 14.6),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 14.6),
        ({"quant_method": "fbgemm_fp8"}, 14.6),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 14.6),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 9.05),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": FP8_GROUP}}, 14.6),
        ({"quant_method": "mxfp4"}, 27.3),
        (BITSANDBYTES, 9.05),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 14.6),
    ],
)
def test_every_method_takes_its_share_of_the_weights(how: dict[str, Any], gib: float) -> None:
    assert weights(how) == pytest.approx(gib, rel=0.02)


def test_a_model_that_is_not_quantised_can_be_asked_about_as_if_it_were() -> None:
    server = ModelServer(PHI_4)
    card = ServerCard("a card", 48 * 2**30)
    sizes = {name: server.on(card, ServerFlags(quantization=name)).weights_bytes for name in SERVED}
    plain = server.on(card, ServerFlags()).weights_bytes
    assert all(size < 0.6 * plain for name, size in sizes.items() if name != "mxfp4")
    assert sizes["awq"] < sizes["nf4"] < sizes["fp8"]


def test_a_checkpoint_that_is_quantised_is_not_quantised_again() -> None:
    server = ModelServer({**PHI_4, "quantization_config": BITSANDBYTES})
    card = ServerCard("a card", 48 * 2**30)
    assert server.on(card, ServerFlags(quantization="bitsandbytes")).weights_from == "config"
    with pytest.raises(ValueError, match="--quantization awq: the checkpoint is quantised by bitsandbytes already"):
        server.on(card, ServerFlags(quantization="awq"))


@pytest.mark.parametrize(
    "how",
    [
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [-1, 128]},
        {"quant_method": "compressed-tensors", "config_groups": [1]},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 10**30}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"group_size": "many"}}}},
        {"quant_method": "modelopt", "quant_algo": ["NVFP4"]},
        {"quant_method": "fp8", "ignored_layers": [4]},
        {"quant_method": {"awq": 1}},
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(how: dict[str, Any]) -> None:
    with pytest.raises(QuantisationError) as refused:
        read(how)
    assert str(refused.value).count(". ") == 0
    assert refused.value.remedy
