"""The margin of the KV cache's memory, held against starts that nothing was fitted to; engines by their versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.devices.known_gpus import find
from gpudash.memory.serving.engines import engine
from gpudash.memory.serving.plan import GIB, ModelServer, ServerCard, ServerFlags
from tests.unit.memory.serving.logs import configs, page
from tests.unit.memory.serving.startups import BEGIN, END, is_held_out, is_inside, startups, table

FLAGS = ServerFlags(max_model_len=8192)


def card(name: str) -> ServerCard:
    gpu = find(name)
    assert gpu is not None
    return ServerCard.known(gpu)


def test_nine_of_ten_held_out_starts_are_inside_the_margin() -> None:
    held_out = [start for start in startups() if is_held_out(start)]
    assert len(held_out) >= 25
    assert sum(map(is_inside, held_out)) >= 0.9 * len(held_out)


def test_the_guide_has_the_coverage_that_the_code_makes() -> None:
    written = page().partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "python -m tests.unit.memory.serving.startups writes it"


@pytest.mark.parametrize(
    ("asked", "plain", "since", "reserved"),
    [
        ("vllm==0.6.3", True, (0,), False),
        ("vllm==0.9", True, (0,), False),
        ("vllm==0.10.2", True, (0, 10), False),
        ("VLLM==v0.19.1", True, (0, 17), False),
        ("vllm==0.22.0", True, (0, 21), True),
        ("vllm==0.31.0", True, (0, 23), False),
        ("vllm==0.31.0", False, (0, 21), True),
        ("vllm", False, (0, 21), True),
        ("sglang", True, (0,), False),
    ],
)
def test_an_engine_is_the_newest_that_the_version_has(
    asked: str, plain: bool, since: tuple[int, ...], reserved: bool
) -> None:
    found = engine(asked, plain=plain)
    assert (found.since, found.graphs_reserved) == (since, reserved)


@pytest.mark.parametrize("asked", ["", "tgi", "vllm==", "vllm==new", "vllm==0.²", "vllm==9999999", "vllm 0.19"])
def test_an_engine_that_is_not_known_is_refused_in_one_sentence(asked: str) -> None:
    with pytest.raises(ValueError, match=r"Write vllm, vllm==0\.19 or sglang"):
        engine(asked, plain=True)


def test_slots_for_adapters_take_memory_whether_used_or_not() -> None:
    server = ModelServer(configs()["Qwen3-4B"])
    one, many = (server.on(card("rtx4090"), replace(FLAGS, max_loras=slots)) for slots in (1, 64))
    assert many.adapter_bytes == pytest.approx(64 * one.adapter_bytes, rel=1e-6)
    assert many.adapter_bytes / GIB == pytest.approx(12.49 - 7.56, abs=0.1)
    assert one.kv_bytes - many.kv_bytes == many.adapter_bytes - one.adapter_bytes


def test_the_first_engine_reads_the_longest_request_whole_up_to_a_length() -> None:
    server = ModelServer(configs()["Qwen2.5-7B-Instruct"])
    flags = ServerFlags(engine="vllm==0.8", max_model_len=32_768)
    assert server.on(card("a6000"), flags).flags.max_num_batched_tokens == 32_768
    longer = ModelServer(configs()["Llama-3.1-8B-Instruct"])
    assert longer.on(card("a6000"), replace(flags, max_model_len=65_536)).flags.max_num_batched_tokens == 2048
