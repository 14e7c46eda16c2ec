"""A quantization_config is read or refused in one sentence, and packs the layers that transformers would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, GPT2Config, LlamaConfig, Qwen3Config
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from gpudash.simulator.models.packed_layers import Linear4bit, Linear8bitLt, MarlinLinear, PackedLinear, adapt
from gpudash.simulator.models.quantised import CHOICES, chosen, kept_by_itself, parameter_count, quantise, read
from gpudash.simulator.refusal import CannotPredictError

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


def llama(**settings: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, num_key_value_heads=2, **settings))


def others() -> Iterator[Any]:
    with torch.device("meta"):
        yield AutoModelForCausalLM.from_config(Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=16))
        yield AutoModelForCausalLM.from_config(GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=96))
        yield AutoModel.from_config(BertConfig(**SMALL))


def test_the_very_layers_are_packed_that_transformers_would_pack() -> None:
    for model in (llama(), llama(tie_word_embeddings=True), *others()):
        kept = get_keys_to_not_convert(model)
        assert set(kept_by_itself(model)) == set(kept)
        expected = {
            name
            for name, module in model.named_modules()
            if (type(module) is nn.Linear or isinstance(module, Conv1D)) and should_convert_module(name, kept)
        }
        before = sum(weight.numel() for weight in model.parameters())
        assert set(quantise(model, chosen("nf4"))) == expected
        assert parameter_count(model) == before


@pytest.mark.parametrize("skipped", [["lm_head"], ["mlp"], ["model.layers.1"], ["q_proj", r"model\.layers\.0\.mlp"]])
def test_modules_that_a_config_names_stay_as_they_are(skipped: list[str]) -> None:
    model = llama()
    names = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    how = read({"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": skipped})
    assert set(quantise(model, how)) == {name for name in names if should_convert_module(name, skipped)}


def test_what_a_checkpoint_has_packed_is_packed_whatever_the_rule_says() -> None:
    model = llama()
    assert quantise(model, chosen("gptq"), packed=["lm_head"]) == ("lm_head",)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"load_in_4bit": True}, Linear4bit),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Linear8bitLt),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True}, MarlinLinear),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}, MarlinLinear),
    ],
)
def test_each_known_method_packs_the_layers_of_a_model(config: dict[str, Any], kind: type[PackedLinear]) -> None:
    model = llama()
    quantise(model, read(config))
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert {type(module) for module in packed} == {kind} and len(packed) == 14


def test_gptq_and_awq_have_the_words_and_scales_of_their_checkpoints() -> None:
    def shapes(name: str, **more: Any) -> dict[str, tuple[int, ...]]:
        model = nn.Sequential(nn.ModuleList([nn.Linear(256, 512, bias=False, device="meta")]))
        quantise(model, read({"quant_method": name, "bits": 4, "group_size": 128, **more}), packed=["0.0"])
        return {key: tuple(one.shape) for key, one in model.get_submodule("0.0").named_buffers()}

    assert shapes("gptq") == {"qweight": (32, 512), "scales": (2, 512)}
    assert shapes("gptq", sym=False)["qzeros"] == (2, 64)
    assert shapes("gptq", desc_act=True)["g_idx"] == (256,)
    assert shapes("awq") == {"qweight": (256, 64), "scales": (2, 512), "qzeros": (2, 64)}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "names no quant_method"),
        ({"quant_method": "aqlm"}, "names the method 'aqlm'"),
        ({"quant_method": ["gptq"]}, "names the method ['gptq']"),
        ({"quant_method": "x" * 500}, "names the method 'xxx"),
        ([4], "is no object but [4]"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "both load_in_4bit and load_in_8bit"),
        ({"load_in_4bit": "yes"}, "load_in_4bit is true or false, not 'yes'"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf5"}, "fp4 or nf4, not 'nf5'"),
        ({"load_in_4bit": True, "bnb_4bit_quant_storage": "complex64"}, "bnb_4bit_quant_storage is one of uint8"),
        ({"load_in_4bit": True, "bnb_4bit_compute_dtype": "torch.int8"}, "bnb_4bit_compute_dtype is one of float16"),
        ({"load_in_4bit": True, "llm_int8_skip_modules": "lm_head"}, "a list of names of modules, not 'lm_head'"),
        ({"load_in_8bit": True, "llm_int8_threshold": "6"}, "a number from 0 on, not '6'"),
        ({"load_in_8bit": True, "llm_int8_has_fp16_weight": True}, "keeps weights in 16 bits"),
        ({"quant_method": "gptq", "bits": 5}, "2, 3, 4 or 8 bits, not 5"),
        ({"quant_method": "gptq", "bits": [4]}, "2, 3, 4 or 8 bits, not [4]"),
        ({"quant_method": "gptq", "group_size": 0}, "group_size is -1 or a whole number"),
        ({"quant_method": "awq", "bits": 8}, "AWQ packs weights of 4 bits, not 8"),
    ],
)
def test_a_quantization_config_that_is_not_known_is_refused_in_one_sentence(config: Any, said: str) -> None:
    with pytest.raises(CannotPredictError) as refused:
        read(config)
    assert said in str(refused.value) and str(refused.value).count(". ") == 0 and len(str(refused.value)) < 200
    assert refused.value.remedy


def test_a_name_to_leave_out_that_is_no_pattern_and_a_model_without_such_layers_are_refused() -> None:
    how = read({"load_in_4bit": True, "llm_int8_skip_modules": ["model.("]})
    with pytest.raises(CannotPredictError, match="cannot be read"):
        quantise(llama(), how)
    with pytest.raises(CannotPredictError, match="has no linear layer that is quantised"):
        quantise(nn.Sequential(nn.ReLU()), chosen("nf4"))
    with pytest.raises(CannotPredictError, match="do not fill words of 32 bits"):
        quantise(nn.Sequential(nn.Linear(7, 9, device="meta")), chosen("gptq"), packed=["0"])
    with pytest.raises(CannotPredictError, match="There is no quantisation 'nf5'"):
        chosen("nf5")


def adapters(model: nn.Module) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {
        name: (weight.dtype, tuple(weight.shape)) for name, weight in model.named_parameters() if weight.requires_grad
    }


@pytest.mark.parametrize("choice", ["nf4", "nf4-double", "int8"])
def test_adapters_on_packed_layers_are_those_that_peft_puts_on_plain_ones(choice: str) -> None:
    assert choice in CHOICES
    plain, packed = llama(), llama()
    quantise(packed, chosen(choice))
    found = adapters(adapt(packed, rank=8))
    assert found == adapters(adapt(plain, rank=8)) and len(found) == 2 * 14


def test_what_is_not_packed_becomes_float32_before_it_gets_adapters() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, num_key_value_heads=2), dtype=torch.bfloat16)
    settings = {"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}
    quantise(model, read(settings))
    kinds = {
        name.rpartition(".")[2] if "norm" not in name else "norm": weight.dtype
        for name, weight in adapt(model, rank=8).named_parameters()
        if "lora" not in name and "proj" not in name
    }
    assert set(kinds.values()) == {torch.float32}
    packed = [module for module in model.modules() if isinstance(module, Linear4bit)]
    assert {module.weight.dtype for module in packed} == {torch.bfloat16}


def test_names_for_adapters_are_the_ends_of_names_of_modules() -> None:
    found = adapters(adapt(llama(), rank=4, targets="q_proj, v_proj"))
    assert {name.split(".")[-4] for name in found} == {"q_proj", "v_proj"}
    assert adapters(adapt(llama(), rank=4, targets="")) == found  # what peft chooses for Llama


def test_adapters_that_cannot_be_are_refused_in_one_sentence() -> None:
    with pytest.raises(CannotPredictError, match="has no module 'proj' to put an adapter on") as refused:
        adapt(llama(), rank=4, targets="q_proj,proj")
    assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head" in refused.value.remedy
    with pytest.raises(CannotPredictError, match="1 or more, not 0"):
        adapt(llama(), rank=0)
    with pytest.raises(CannotPredictError, match="peft puts no adapters on LlamaForCausalLM"):
        adapt(llama(), rank=4, targets="norm")
