"""Models by name: the usual ones, Hugging Face's cache, folders; nothing is fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudash.simulator.models.config import read
from gpudash.specs import ModelSpec
from gpudash.specs.model_names import cached_models, find_model, known_models

CONFIG = '{"model_type": "llama"}'


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, empty as yet."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


def cache(hub: Path, name: str, commit: str = "abc", *, main: bool = True, config: bool = True) -> Path:
    entry = hub / f"models--{name.replace('/', '--')}"
    snapshot = entry / "snapshots" / commit
    snapshot.mkdir(parents=True)
    if config:
        (snapshot / "config.json").write_text(CONFIG)
    if main:
        (entry / "refs").mkdir()
        (entry / "refs" / "main").write_text(commit)
    return snapshot


def weights(file: Path, tensors: dict[str, tuple[str, list[int]]], size: int = 0) -> None:
    header = {name: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]} for name, (kind, shape) in tensors.items()}
    written = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(len(written).to_bytes(8, "little") + written + b"\0" * size)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("text", ["Llama-3.1-8B", "llama-3.1-8b", "meta-llama/Llama-3.1-8B", "Llama-3.1-8B-Instruct"])
def test_a_usual_model_is_found_by_its_name_its_hub_name_and_that_of_a_variant(text: str) -> None:
    found = find_model(text)
    assert found.name == "Llama-3.1-8B" and read(str(found)).values["hidden_size"] == 4096


def test_every_usual_model_has_a_config_that_is_one_and_as_many_parameters_as_its_weights_hold() -> None:
    assert len(known_models()) > 25
    for model in known_models():
        assert read(str(model.folder)).values
        assert model.parameters and model.weight_bytes
        assert model.weight_bytes / model.parameters in (2.0, 4.0)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("text", "meant"), [("lama-3.1-8b", "Llama-3.1-8B"), ("qwen2.5-7", "Qwen2.5-7B"), ("gpt-2", "gpt2")]
)
def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean {meant}\\?$") as raised:
        find_model(text)
    assert str(raised.value).startswith(f"There is no model {text} here. ")


@pytest.mark.usefixtures("hub")
def test_what_is_like_no_name_and_a_folder_without_a_config_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^zzz is not there\. Choose the folder of a model, or its config\.json\.$"):
        find_model("zzz")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"empty has no config.json. Choose the folder of a model, or its config.json"):
        find_model(str(empty))


def test_a_model_of_the_cache_is_found_and_its_weights_are_counted_by_their_headers(hub: Path) -> None:
    snapshot = cache(hub, "some-one/tiny-model")
    weights(snapshot / "model-1.safetensors", {"a": ("BF16", [10, 20])}, 400)
    weights(snapshot / "model-2.safetensors", {"b": ("BF16", [5])}, 10)
    (model,) = cached_models()
    assert (model.name, model.hub, model.cached) == ("tiny-model", "some-one/tiny-model", True)
    assert model.parameters == 205
    assert model.weight_bytes == sum(file.stat().st_size for file in snapshot.glob("*.safetensors"))
    assert find_model("tiny-model") == find_model("Some-One/tiny-model") == snapshot
    assert ModelSpec(path="tiny-model").options["path"] == str(snapshot)


def test_the_main_branch_is_taken_and_what_has_no_config_or_no_readable_weights_is_no_reason_to_fail(hub: Path) -> None:
    other = cache(hub, "a/model", "111", main=False)
    cache(hub, "a/without", config=False)
    (hub / "models--a--model" / "refs").mkdir()
    (hub / "models--a--model" / "refs" / "main").write_text("222\n")
    main = hub / "models--a--model" / "snapshots" / "222"
    main.mkdir()
    (main / "config.json").write_text(CONFIG)
    (main / "model.safetensors").write_bytes(b"\xff" * 20)
    (model,) = cached_models()
    assert model.folder == main and model.parameters is None
    (main / "config.json").unlink()
    assert find_model("model") == other


def test_packed_weights_say_nothing_of_the_number_of_parameters(hub: Path) -> None:
    weights(cache(hub, "a/packed") / "model.safetensors", {"a": ("I32", [10]), "b": ("F16", [4])})
    assert cached_models()[0].parameters is None


def test_a_name_in_a_spec_stands_for_the_folder_and_stays_what_was_typed() -> None:
    spec = ModelSpec(path="gpt2")
    assert spec.path == "gpt2" and spec.missing == ""
    assert Path(spec.folder).name == "gpt2" and Path(str(spec.options["path"])).is_dir()
    assert ModelSpec(path="gpt-2").missing == "There is no model gpt-2 here. Did you mean gpt2?"


def test_the_folder_of_an_adapter_means_the_model_that_it_is_of(hub: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}')
    with pytest.raises(ValueError, match=r"is an adapter of org/base, whose config is not here\. Fetch it with: hf"):
        find_model(str(adapter))
    assert ModelSpec(path=str(adapter)).missing
    snapshot = cache(hub, "org/base")
    assert find_model(str(adapter)) == snapshot


@pytest.mark.parametrize("said", ["[]", "{", '{"base_model_name_or_path": 4}', '{"base_model_name_or_path": ""}'])
def test_an_adapter_that_names_no_model_is_refused_in_a_sentence(said: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(said)
    with pytest.raises(ValueError, match=r"has no config\.json|does not name its model"):
        find_model(str(tmp_path))


@pytest.mark.usefixtures("hub")
def test_a_name_that_is_not_in_the_cache_is_told_how_to_get_there() -> None:
    with pytest.raises(ValueError, match=r"Fetch it with: hf download acme/zzyzx config\.json"):
        find_model("acme/zzyzx")
