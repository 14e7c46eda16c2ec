"""From a model's config to how fast a server of it answers."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.devices.card_performance import CARD_PERFORMANCE
from gpudash.devices.known_gpus import find
from gpudash.memory.serving.plan import ModelServer, ServerCard, ServerFlags
from gpudash.memory.serving.server_time import server_time
from gpudash.speed.serving import ServingTime
from tests.unit.memory.serving.logs import configs

CONFIGS = configs()


def predicted(model: str, key: str = "h200", users: int = 1, answer: int | None = None, **flags: Any) -> ServingTime:
    gpu = find(key)
    assert gpu is not None
    server = ModelServer(CONFIGS[model])
    service = server.on(ServerCard.known(gpu), ServerFlags(max_model_len=4096, allow_long_max_model_len=True, **flags))
    return server_time(server.model, service, CARD_PERFORMANCE[key], users, 4096, answer)


@pytest.mark.parametrize("model", list(CONFIGS))
def test_every_family_has_a_speed_that_its_weights_and_the_card_allow(model: str) -> None:
    time = predicted(model)
    # A card of 4.8 TB/s cannot generate faster than it reads what one token takes of the weights, and none of these
    # models is below two billion parameters or above 80 GB of what a token takes.
    assert 4.8e12 / 200e9 / 4 <= time.alone_tokens_per_s <= 1000
    assert 0.001 <= time.alone_first_token_s <= 10


def test_a_mixture_is_faster_than_a_dense_model_of_its_size() -> None:
    assert predicted("Qwen3-30B-A3B").alone_tokens_per_s > 2 * predicted("Qwen2.5-32B-Instruct").alone_tokens_per_s


def test_weights_in_eight_bits_are_read_in_half_the_time_and_four_bits_are_less_sure() -> None:
    plain = predicted("Qwen2.5-7B-Instruct")
    eight = predicted("Qwen2.5-7B-Instruct-fp8-dynamic")
    four = predicted("Meta-Llama-3.1-8B-Instruct-quantized.w4a16")
    assert eight.alone_tokens_per_s > 1.3 * plain.alone_tokens_per_s
    assert eight.spread == plain.spread < four.spread


def test_two_cards_generate_faster_than_one() -> None:
    one = predicted("Qwen2.5-32B-Instruct", users=8)
    two = predicted("Qwen2.5-32B-Instruct", users=8, tensor_parallel=2)
    assert one.tokens_per_s < two.tokens_per_s < 2 * one.tokens_per_s


def test_an_answer_leaves_room_for_the_prompt() -> None:
    time = predicted("Qwen3-8B", answer=96)
    assert (time.prompt, time.answer) == (4000, 96)
    assert predicted("Qwen3-8B").answer == 1024
    with pytest.raises(ValueError, match="--answer 4,096 leaves no prompt of requests of 4,096 tokens"):
        predicted("Qwen3-8B", answer=4096)
