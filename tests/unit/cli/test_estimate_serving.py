"""``gpudash estimate --model PATH --task serve``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run
from tests.json_page import undescribed
from tests.unit.memory.serving.gguf_files import LLAMA_3_8B, header
from tests.unit.memory.serving.logs import configs


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(configs()["Llama-3.1-8B-Instruct"]), encoding="utf-8")
    return str(tmp_path)


def words(model: str, *more: str) -> list[str]:
    return ["estimate", "--model", model, "--task", "serve", *more]


def document(capsys: pytest.CaptureFixture[str], said: list[str]) -> dict[str, Any]:
    assert run([*said, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert undescribed(said, found) == []
    return dict(found)


def test_a_card_and_a_length_are_answered_with_tokens_and_requests(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(model, "--simulate", "h100", "--max-model-len", "8192")) == 0
    told = capsys.readouterr().out
    assert "on H100 80GB: serves" in told and "weights 15.0 GiB" in told
    assert "maximum concurrency for 8,192 tokens per request" in told


def test_users_of_a_length_are_answered_with_flags_and_cards(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = words(model, "--simulate", "rtx4090", "--users", "40", "--length", "8192", "--max-model-len", "8192")
    found = document(capsys, asked)
    assert found["enough"] is False and found["users"] < 40
    assert any(way["enough"] for way in found["ways"]) and found["cards_that_serve"]
    assert run(asked) == 0
    assert "not 40" in capsys.readouterr().out


def test_flags_have_the_names_that_vllm_has_too(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    long = words(model, "--simulate", "h100", "--tensor-parallel-size", "2", "--kv-cache-dtype", "fp8")
    short = words(model, "--simulate", "h100", "--tensor-parallel", "2", "--kv-dtype", "fp8")
    assert document(capsys, long) == document(capsys, short)


def test_a_server_that_does_not_start_says_what_would(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words(model, "--simulate", "16GiB")) == 0
    told = capsys.readouterr().out
    assert "short before there is a KV cache" in told and "--quantization fp8" in told
    assert run(words(model, "--simulate", "rtx4090")) == 0
    assert "a request of 131,072 tokens has no room" in capsys.readouterr().out


def test_the_index_alone_says_the_weights_of_an_unknown_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**configs()["Llama-3.1-8B-Instruct"], "model_type": "novel", "max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asked = words(str(tmp_path), "--simulate", "h100")
    assert run(asked) == 2
    assert "safetensors files or their index" in capsys.readouterr().err
    index = {"metadata": {"total_size": 2**34}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    found = document(capsys, asked)
    assert found["weights_from"] == "safetensors" and found["weights_bytes"] == 2**34 + 1024 * 128 * 2


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--users", "0"], "--users 0 is less than 1"),
        (["--gpu-memory-utilization", "92"], "no share between 0 and 1"),
        (["--tensor-parallel", "3"], "does not divide"),
        (["--devices", "sim:0,sim:1"], "Say how many with --tensor-parallel"),
        (["--batch", "8"], "--batch"),
        (["--max-model-len", "long"], "--max-model-len"),
        (["--device", "sim:4"], "none of the cards"),
        (["--memory-cap", "2GiB"], "no memory cap"),
        (["--simulate", "h100"], "Say --tensor-parallel 2 for cards that share the model"),
        (["--max-model-len", "200000"], "--allow-long-max-model-len"),
        (["--engine", "vllm==soon"], "'soon' is no version"),
        (["--max-model-len", "8kb"], "--max-model-len"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_sentence(
    model: str, more: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(model, "--simulate", "h100", *more)) == 2
    said = capsys.readouterr()
    assert told in said.err and "Traceback" not in said.err and not said.out


def test_a_model_that_is_not_there_is_refused_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run([*words(str(tmp_path / "none"), "--simulate", "h100"), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "failed" and "is not there" in found["error"]["message"]


def test_a_server_s_speed_is_told_as_predicted_with_its_interval(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = words(model, "--simulate", "h100", "--users", "20", "--length", "4096", "--answer", "96")
    time = document(capsys, asked)["time"]
    assert time["predicted"] is True
    assert (time["users"], time["prompt"], time["answer"]) == (20, 4000, 96)
    assert time["tokens_per_s_low"] < time["tokens_per_s"] < time["tokens_per_s_high"]
    assert run(asked) == 0
    told = capsys.readouterr().out
    assert "predicted, for prompts of 4,000 and answers of 96 tokens, not measured:" in told
    assert "20 at a time: first token after " in told


def test_a_card_of_which_only_the_size_is_known_has_no_speed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, words(model, "--simulate", "80GiB"))["time"] is None


def test_an_answer_without_a_prompt_is_refused_in_a_sentence(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words(model, "--simulate", "h100", "--length", "100", "--answer", "100")) == 2
    assert "--answer 100 leaves no prompt of requests of 100 tokens" in capsys.readouterr().err


def test_a_file_of_own_cards_that_is_none_is_said_with_its_line(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUDASH_HOME", str(tmp_path))
    (tmp_path / "cards.toml").write_text("[mine]\nmemory_gb_per_s = 'much'\n", encoding="utf-8")
    assert run(words(model, "--simulate", "h100")) == 2
    assert "cards.toml:2:1: mine: memory_gb_per_s: " in capsys.readouterr().err


def test_what_would_serve_more_has_its_speed_beside_it(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = words(model, "--simulate", "rtx4090", "--users", "40", "--length", "8192", "--max-model-len", "8192")
    found = document(capsys, asked)
    speeds = {way["change"]: way["time"] for way in [*found["ways"], *found["cards_that_serve"]]}
    assert all(time["predicted"] is True and time["users"] <= 40 for time in speeds.values())
    assert speeds["H200"]["tokens_per_s"] > speeds["A100 80GB"]["tokens_per_s"]
    assert run(asked) == 0
    assert " tokens/s" in capsys.readouterr().out.split("enough")[1]


CARDS = ("--users", "40", "--length", "4096", "--max-model-len", "8192", "--cards", "rtx3060,rtx4090,h100,24GiB")


def test_cards_beside_each_other_have_requests_speed_and_money_for_a_million_tokens(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, words(model, *CARDS, "--price", "h100=2.5€/h"))
    assert found["card"] == "RTX 3060"
    rtx3060, rtx4090, h100, size = found["compared_cards"]
    assert h100["users"] > 40 > rtx4090["users"] > rtx3060["users"] == 0
    assert (h100["time"]["users"], rtx4090["time"]["users"]) == (40, rtx4090["users"])
    assert h100["cost_per_million_tokens"] == pytest.approx(2.5 * 1e6 / 3600 / h100["time"]["tokens_per_s"])
    assert (h100["currency"], rtx4090["cost_per_million_tokens"]) == ("EUR", None)
    assert "short before there is a KV cache" in rtx3060["reason"]
    assert size["time"] is None and "name the card" in size["reason"]


@pytest.mark.parametrize(
    ("order", "first"), [("time", "h100"), ("memory", "h100"), ("energy", "h100"), ("price", "rtx4090")]
)
def test_servers_are_sorted_by_what_is_asked_those_that_do_not_start_last(
    model: str, order: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = ("--price", "h100=200/h", "--price", "4090=0.4/h")
    found = document(capsys, words(model, *CARDS, *prices, "--sort", order))["compared_cards"]
    assert (found[0]["card"], found[-1]["card"]) == (first, "rtx3060")


def test_the_table_of_servers_says_that_it_is_predicted_and_of_how_many_tokens_money_is(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(model, *CARDS, "--price", "h100=2.5€/h", "--tensor-parallel", "2")) == 0
    said = capsys.readouterr()
    assert "2 × H100 80GB" in said.out
    assert "predicted for prompts of 3,072 and answers of 1,024 tokens" in said.out
    assert "price are of a million tokens" in said.out
    assert "No price was given for rtx3060, rtx4090, 24GiB" in said.err


def test_a_server_has_no_epochs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words(model, *CARDS, "--epoch-steps", "10")) == 2
    assert "A server has no epochs" in capsys.readouterr().err


def test_a_gguf_file_is_answered_for_llama_cpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model-Q4_K.gguf"
    file.write_bytes(header(*LLAMA_3_8B))
    found = document(
        capsys, words(str(file), "--simulate", "rtx4060", "--ctx-size", "8192", "--kv-cache-dtype", "q8_0")
    )
    assert found["fits"] is True and found["gpu_layers"] == 33 and found["kv_bytes"] == 544 * 2**20
    assert run(words(str(file), "--simulate", "4GiB", "--n-gpu-layers", "20")) == 0
    told = capsys.readouterr().out
    assert "in llama.cpp" in told and "in the host's memory" in told and "--gpu-layers 20 of 33" in told


def test_a_gguf_file_that_is_cut_off_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(*LLAMA_3_8B)[:400])
    assert run(words(str(file), "--simulate", "h100")) == 2
    assert "the header of the GGUF file is cut off" in capsys.readouterr().err


def test_tokens_may_be_written_as_a_server_s_may(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = words(model, "--simulate", "h100")
    short = document(capsys, [*asked, "--max-model-len", "8K", "--length=1k"])
    assert (short["max_model_len"], short["length"]) == (8192, 1000)


def test_a_longer_request_than_the_model_has_positions_is_answered_when_asked_for(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = ["--max-model-len", "200000", "--allow-long-max-model-len"]
    assert document(capsys, words(model, "--simulate", "h100", *longer))["max_model_len"] == 200000


def test_the_flags_of_a_server_have_a_help_page_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--task", "serve", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--max-model-len" in told and "--engine" in told and "--sequence" not in told
    assert all(flag in told for flag in ("--simulate", "--cards", "--price", "--json"))


def test_a_task_that_is_none_is_refused_with_all_there_are(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--model", model, "--task", "srve", "--simulate", "h100"]) == 2
    told = capsys.readouterr().err
    assert "train, lora, qlora, infer and serve" in told and "did you mean serve" in told


def test_laptops_are_offered_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = words(model, "--simulate", "rtx3050-laptop", "--users", "1", "--length", "2048", "--max-model-len", "2048")
    found = document(capsys, asked)
    assert found["cards_that_serve"]
    assert all(way["cards"] == 1 for way in found["cards_that_serve"] if "laptop" in way["card"])
    assert not any("--tensor-parallel" in way["change"] for way in found["ways"])


@pytest.mark.parametrize("more", [("--simulate", "rtx4090-laptop"), ("--simulate=h100", "--cards=rtx4090-laptop")])
def test_several_laptop_gpus_share_no_model(
    model: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(model, *more, "--tensor-parallel", "2")) == 2
    assert "--tensor-parallel 2: no machine has several RTX 4090 Laptop." in capsys.readouterr().err
