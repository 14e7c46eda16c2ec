"""What a server takes, what it serves, and what would serve more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpudash.devices.known_gpus import find
from gpudash.memory.serving.plan import GIB, ModelServer, ServerCard, ServerFlags, ServingAnswer
from gpudash.memory.serving.server_time import server_times
from tests.unit.memory.serving.logs import configs

LLAMA = configs()["Llama-3.1-8B-Instruct"]
FLAGS = ServerFlags(max_model_len=8192)


def card(name: str) -> ServerCard:
    gpu = find(name)
    assert gpu is not None
    return ServerCard.known(gpu)


def refusal(config: dict[str, Any], flags: ServerFlags) -> str | None:
    """Why there is no answer; ``None`` where there is one."""
    try:
        ModelServer(config).on(card("h100"), flags)
    except ValueError as error:
        return str(error)
    return None


def test_the_parts_add_up_to_the_share_of_the_card() -> None:
    service = ModelServer(LLAMA).on(card("h100"), FLAGS)
    parts = service.weights_bytes + service.activation_bytes + service.reserved_graph_bytes + service.non_torch_bytes
    assert parts + service.kv_bytes == int(service.card.total_bytes * 0.92)
    assert service.fits and service.certain


def test_cache_in_eight_bits_holds_twice_the_tokens() -> None:
    server = ModelServer(LLAMA)
    wide, narrow = (server.on(card("h100"), replace(FLAGS, kv_dtype=dtype)).cache for dtype in ("auto", "fp8"))
    assert narrow.blocks // 2 == wide.blocks and narrow.token_bytes * 2 == wide.token_bytes == 131072


def test_ranks_share_the_heads_of_keys_as_far_as_there_are_any() -> None:
    server = ModelServer(configs()["Qwen2.5-7B-Instruct"])
    sizes = [server.on(card("h100"), replace(FLAGS, tensor_parallel=ranks)).cache.token_bytes for ranks in (1, 2, 4)]
    assert sizes == [57344, 28672, 14336]
    many = ModelServer({**LLAMA, "num_key_value_heads": 2})
    assert many.on(card("h100"), replace(FLAGS, tensor_parallel=4)).cache.token_bytes == 32 * 2 * 128 * 2


def test_a_latent_is_kept_whole_by_every_rank() -> None:
    server = ModelServer(configs()["DeepSeek-V2-Lite-Chat"])
    for ranks in (1, 2):
        cache = server.on(card("h100"), replace(FLAGS, tensor_parallel=ranks)).cache
        assert cache.token_bytes == 27 * (512 + 64) * 2


def test_layers_with_a_window_take_no_more_for_a_longer_request() -> None:
    cache = ModelServer(configs()["gemma-3-27b-it"]).on(card("h100"), FLAGS).cache
    assert [(group.kind, group.count) for group in cache.groups] == [("full", 1), ("sliding", 6)]
    more = cache.blocks_of_a_request(65536) - cache.blocks_of_a_request(32768)
    assert more == 32768 // 16


def test_the_least_share_of_the_card_serves_and_a_smaller_one_does_not() -> None:
    server, users = ModelServer(LLAMA), 16
    share = server.least_utilisation(card("h100"), FLAGS, users, 8192)
    assert share is not None
    served = [
        server.on(card("h100"), replace(FLAGS, gpu_memory_utilization=tried)).users(8192)
        for tried in (share - 0.01, share)
    ]
    assert served[0] < users <= served[1]


def test_every_card_that_is_named_serves_as_many_as_asked_with_the_fewest() -> None:
    server, users = ModelServer(LLAMA), 40
    found = server.cards(FLAGS, users, 8192)
    assert found
    memory = [way.service.card.total_bytes * way.service.flags.tensor_parallel for way in found]
    assert memory == sorted(memory)
    for way in found:
        assert way.users >= users
        if (ranks := way.service.flags.tensor_parallel) > 1:
            fewer = server.on(way.service.card, replace(way.service.flags, tensor_parallel=ranks // 2))
            assert not fewer.fits or fewer.users(8192) < users


def test_a_change_that_is_said_to_be_enough_is() -> None:
    server = ModelServer(LLAMA)
    short = server.on(card("rtx4090"), FLAGS)
    assert short.users(8192) < 30
    ways = {way.change: way for way in server.ways(short, 30, 8192)}
    assert not ways["--kv-dtype fp8"].enough and ways["--tensor-parallel 4"].enough
    assert server.on(short.card, ways["--tensor-parallel 4"].service.flags).users(8192) >= 30


def test_a_model_that_does_not_start_says_the_longest_request_that_would() -> None:
    service = ModelServer(LLAMA).on(card("rtx4090"), ServerFlags())
    longest = service.cache.longest(service.max_model_len)
    assert not service.fits and service.max_model_len == 131072
    assert service.cache.concurrency(longest) >= 1 > service.cache.concurrency(longest + 16)


def test_weights_of_an_unknown_family_are_those_of_its_files() -> None:
    config = {**LLAMA, "model_type": "novel"}
    tensors = [("model.layers.0.a.weight", "BF16", (4096, 4096)), ("model.norm.weight", "F32", (4096,))]
    service = ModelServer(config, tensors).on(card("h100"), FLAGS)
    rotary = 131072 * 128 * 2
    assert service.weights_from == "safetensors"
    assert service.weights_bytes == 4096 * 4096 * 2 + 4096 * 4 + rotary


def test_scaled_positions_are_read_from_configs_of_either_form() -> None:
    gemma = configs()["gemma-3-4b-it"]
    text = dict(gemma["text_config"])
    scaling = text.pop("rope_scaling")
    newer = {**gemma, "text_config": {**text, "rope_parameters": {"full_attention": scaling, "sliding_attention": {}}}}
    older, newer_too = (ModelServer(config).on(card("h100"), FLAGS).weights_bytes for config in (gemma, newer))
    assert older == newer_too


def test_files_that_disagree_with_the_config_are_believed() -> None:
    tensors = [("model.layers.0.a.weight", "U8", (4 * GIB, 1))]
    assert ModelServer(LLAMA, tensors).on(card("h100"), FLAGS).weights_from == "safetensors"


@pytest.mark.parametrize(
    ("config", "flags", "words"),
    [
        ({}, {}, "does not say num_hidden_layers"),
        ({"num_hidden_layers": "many"}, {}, "num_hidden_layers is 'many'"),
        ({"model_type": "novel"}, {}, "safetensors files or their index beside config.json"),
        ({"quantization_config": {"quant_method": "quip"}}, {}, "names the method 'quip'"),
        ({"layer_types": ["spiral_attention"] * 32}, {}, "kind 'spiral_attention'"),
        ({}, {"gpu_memory_utilization": 1.5}, "no share between 0 and 1"),
        ({}, {"tensor_parallel": 3}, "does not divide the model's 32 attention heads"),
        ({}, {"max_model_len": 0}, "--max-model-len 0 is less than 1"),
        ({}, {"kv_dtype": "int3"}, "'int3' is none of auto"),
        ({}, {"dtype": "int8"}, "'int8' is none of auto"),
        ({}, {"quantization": "quip"}, "'quip' is none of nf4"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(config: dict[str, Any], flags: dict[str, Any], words: str) -> None:
    whole = {**LLAMA, **config} if config or flags else {"model_type": "novel"}
    told = refusal(whole, replace(FLAGS, **flags))
    assert told is not None and words in told and "\n" not in told


STRANGE = (None, 0, -1, 2**60, 1.5, True, "x", [], ["x"], {}, {"x": "y"}, [128, 0])


@pytest.mark.parametrize("name", ["Llama-3.1-8B-Instruct", "gemma-3-4b-it", "Qwen3.6-35B-A3B-NVFP4", "gpt-oss-20b"])
def test_a_config_with_a_strange_value_anywhere_is_answered_or_refused(name: str) -> None:
    extra = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.5, "vision_config": {}}
    config = {**extra, **configs()[name]}
    refused = 0
    for place in [(key,) for key in config] + [
        (outer, key) for outer, inner in config.items() if isinstance(inner, dict) for key in inner
    ]:
        for value in STRANGE:
            changed: dict[str, Any] = json.loads(json.dumps(config))
            within = changed if len(place) == 1 else changed[place[0]]
            within[place[-1]] = value
            told = refusal(changed, FLAGS)
            assert told is None or (told.endswith(".") and "\n" not in told), (place, value)
            refused += told is not None
    assert refused


def test_a_model_whose_text_is_packed_is_not_packed_again() -> None:
    packed = {"model_type": "llava", "text_config": {**LLAMA, "quantization_config": {"quant_method": "fp8"}}}
    server = ModelServer(packed)
    changes = [way.change for way in server.ways(server.on(card("h100"), FLAGS), 500, 8192)]
    assert changes and not any("--quantization" in change for change in changes)


def test_weights_packed_in_a_way_that_is_not_known_are_what_the_files_say() -> None:
    strange = {**LLAMA, "quantization_config": {"quant_method": "hqq"}}
    server = ModelServer(strange, [("model.layers.0.weight", "U8", (2**32, 1))])
    service = server.on(card("h100"), FLAGS)
    assert service.weights_from == "safetensors"
    assert server_times(ServingAnswer("strange", server, service, 8192, None), {}).requested is None


def test_experts_asked_for_in_four_bits_keep_no_workspace() -> None:
    server = ModelServer(configs()["Qwen3-30B-A3B"])
    whole, packed = (server.on(card("h100"), replace(FLAGS, quantization=name)) for name in (None, "mxfp4"))
    assert packed.activation_bytes < whole.activation_bytes
