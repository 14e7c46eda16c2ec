"""How fast a server of a language model answers."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.devices.card_performance import CARD_PERFORMANCE
from gpudash.speed.serving import SPREAD, WIDE_SPREAD, ServedWork, generating, serving_time
from tests.speed.serving_rows import FITTED_MODEL, Row, rows

LLAMA_8B = ServedWork(
    layers=32,
    hidden=4096,
    weights_bytes=16.06e9,
    parameters=7.5e9,
    token_bytes=131072,
    attention_width=32 * 4096,
    arithmetic="bfloat16",
)

MIXTURE = replace(LLAMA_8B, weights_bytes=93e9, expert_bytes=90e9, experts=8, experts_of_a_token=2, parameters=12.9e9)

CARDS = st.sampled_from([key for key, card in CARD_PERFORMANCE.items() if "bfloat16" in card.flops])


def off(found: list[Row]) -> float:
    return statistics.median(row.error for row in found)


def test_the_rows_that_the_constants_were_fitted_on_are_met() -> None:
    fitted = [row for row in rows() if row.model == FITTED_MODEL]
    assert len(fitted) == 18
    assert off(fitted) <= 0.06
    assert all(row.covered for row in fitted)


def test_another_model_of_the_same_server_and_the_throughput_of_vllm_are_met_blind_on_all_cards() -> None:
    another = [row for row in rows() if row.model == "llama-2-7b"]
    vllm = [row for row in rows() if row.table == "serving_vllm" and row.what == "both"]
    assert {row.card for row in another} == {"h100", "l40s", "a100-80gb"} and len(another) == 18
    assert {row.card for row in vllm} == {"rtx4090", "l4"} and len(vllm) == 11
    for found in (another, vllm):
        assert off(found) <= 0.1 and all(row.covered for row in found)


def test_generating_alone_is_met_blind_on_eleven_cards_of_another_server() -> None:
    found = [row for row in rows() if row.what == "generating"]
    assert len({row.card for row in found}) == 11
    assert off(found) <= 0.1
    assert sum(row.covered for row in found) >= 0.85 * len(found)


@given(CARDS, st.integers(1, 500), st.integers(1, 30_000), st.integers(1, 4000))
def test_more_users_get_more_in_all_and_less_each(card: str, users: int, prompt: int, answer: int) -> None:
    few = serving_time(LLAMA_8B, CARD_PERFORMANCE[card], users, prompt, answer)
    many = serving_time(LLAMA_8B, CARD_PERFORMANCE[card], users + 1, prompt, answer)
    assert many.tokens_per_s >= few.tokens_per_s * 0.999
    assert many.tokens_per_s_user <= few.tokens_per_s_user * 1.001
    assert many.first_token_s >= few.first_token_s >= few.alone_first_token_s
    assert many.together_first_token_s >= few.together_first_token_s >= few.alone_first_token_s
    assert few.alone_tokens_per_s >= few.tokens_per_s_user


@given(st.integers(1, 200), st.integers(1, 8000))
def test_a_card_with_more_of_everything_is_never_slower(users: int, length: int) -> None:
    slow, fast = CARD_PERFORMANCE["a100-40gb"], CARD_PERFORMANCE["h200"]
    assert generating(LLAMA_8B, fast, users, length).total_s < generating(LLAMA_8B, slow, users, length).total_s


def test_one_user_waits_for_the_weights_and_hundreds_for_arithmetic_or_their_cache() -> None:
    card = CARD_PERFORMANCE["rtx4090"]
    alone = serving_time(LLAMA_8B, card, 1, 500, 500)
    assert alone.bound == "memory bandwidth"
    assert alone.alone_tokens_per_s == pytest.approx(47, rel=0.1)
    assert serving_time(LLAMA_8B, card, 900, 10, 10).bound == "compute"


def test_a_mixture_reads_the_experts_that_its_tokens_take() -> None:
    assert MIXTURE.weight_bytes(1) == pytest.approx(3e9 + 90e9 / 4)
    assert MIXTURE.weight_bytes(2) == pytest.approx(3e9 + 90e9 * (1 - 0.75**2))
    assert MIXTURE.weight_bytes(1000) == pytest.approx(93e9)


def test_layers_with_a_window_keep_no_more_than_that() -> None:
    work = replace(LLAMA_8B, token_bytes=0, window_token_bytes=100, window=1000, state_bytes=7)
    assert work.kept_bytes(500) == 50_007
    assert work.kept_bytes(5000) == 100_007


def test_the_interval_is_wider_where_less_is_known() -> None:
    card = CARD_PERFORMANCE["h100"]
    guessed = replace(card, guessed=("l2_bytes",))
    assert serving_time(LLAMA_8B, card, 1, 1, 1).spread == SPREAD
    for work, on in ((LLAMA_8B, guessed), (replace(LLAMA_8B, ranks=2), card), (replace(LLAMA_8B, unpacked=True), card)):
        assert serving_time(work, on, 1, 1, 1).spread == WIDE_SPREAD


def test_a_document_says_that_it_is_predicted_and_holds_every_figure_in_its_interval() -> None:
    document = serving_time(LLAMA_8B, CARD_PERFORMANCE["h100"], 8, 1000, 200).to_dict()
    assert document["predicted"] is True
    for name in ("first_token_s", "tokens_per_s_user", "tokens_per_s", "alone_first_token_s", "alone_tokens_per_s"):
        assert document[f"{name}_low"] < document[name] < document[f"{name}_high"]
    assert document["tokens_per_s_user"] * 8 == pytest.approx(document["tokens_per_s"])


def test_nothing_is_said_of_requests_without_tokens() -> None:
    with pytest.raises(ValueError, match="at least one token each"):
        serving_time(LLAMA_8B, CARD_PERFORMANCE["h100"], 1, 0, 5)
