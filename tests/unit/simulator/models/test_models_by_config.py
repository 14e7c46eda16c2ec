"""Models by their config: built by their libraries, predicted as they run, and refused in one sentence."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpudash import estimate
from gpudash.simulator.models import building, config
from gpudash.simulator.models.packed_layers import adapt
from gpudash.simulator.models.quantised import BitsandbytesAdamW
from gpudash.simulator.models.steps import WITHOUT_CACHE, RequestedModel
from gpudash.simulator.refusal import CannotPredictError
from gpudash.specs import ModelSpec
from gpudash.units import GIB
from tests.programs import told_by
from tests.unit.simulator.models import bert_large, real_models, recipe_trainings
from tests.unit.simulator.models.small_models import CONFIGS, REQUESTED, cases, written

pytestmark = pytest.mark.timeout(600)  # the first one waits for all models to be followed and run

META = torch.device("meta")


@pytest.fixture(scope="module")
def peaks() -> dict[str, dict[str, int]]:
    """Predicted, and taken on ``sim:0``, of every case."""
    return {how: told_by("unit.simulator.models.small_models", how, patience_s=600) for how in ("predicted", "taken")}


@pytest.mark.process
@pytest.mark.parametrize("case", [f"{name}: {way}" for name, way in cases()])
def test_a_model_takes_of_the_simulated_card_what_was_predicted(case: str, peaks: dict[str, dict[str, int]]) -> None:
    assert abs(peaks["predicted"][case] / peaks["taken"][case] - 1) <= 0.01


@pytest.mark.process
def test_what_is_predicted_of_recipes_is_what_their_programs_took_of_cudas_allocator() -> None:
    predicted = told_by("unit.simulator.models.recipe_trainings", "predicted", patience_s=600)
    assert predicted == pytest.approx(recipe_trainings.ALLOCATED, rel=0.001)


@pytest.mark.process
@pytest.mark.parametrize("name", ["batch_4", "accumulated", "checkpointed", "half"])
def test_a_training_published_in_2022_is_predicted_within_an_eighth(name: str) -> None:
    published: bert_large.Published = getattr(bert_large, name)
    predicted = estimate(f"{bert_large.__name__}:{name}", card="v100-16gb")
    assert predicted.to_dict()["peak_reserved_bytes"] / GIB == pytest.approx(published.reserved_gib, rel=0.125)


def built(folder: Path, device: torch.device = META, **differs: Any) -> torch.nn.Module:
    return building.build(config.read(str(folder)), device, {**REQUESTED, **differs})


def with_weights(folder: Path, name: str, *, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """A folder with the model's weights in it; what is known of the model that it describes."""
    from safetensors.torch import save_file

    made = written(folder, name)
    tensors = {key: torch.zeros(parameter.shape, dtype=dtype) for key, parameter in built(made).named_parameters()}
    save_file(tensors, str(made / "model.safetensors"))
    asked = RequestedModel({**REQUESTED, "path": str(made), "task": "infer"})
    asked.build(META)
    return asked.facts


@pytest.mark.parametrize("name", real_models.CONFIGS)
def test_a_published_model_has_the_parameters_of_its_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(real_models.CONFIGS[name]))
    asked = RequestedModel({**REQUESTED, "path": str(tmp_path), "task": "infer"})
    asked.build(META)
    if name in real_models.INDEXED:
        assert asked.facts["weight_bytes"] == real_models.INDEXED[name]
    else:
        assert asked.facts["parameters"] == real_models.PARAMETERS[name]


def test_experts_in_one_tensor_are_said_to_stay_unpacked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(real_models.CONFIGS["Qwen3-30B-A3B"]))
    asked = RequestedModel({**REQUESTED, "path": str(tmp_path), "task": "infer", "quantisation": "nf4"})
    asked.build(META)
    assert any(said.startswith("3% of the weights lie in linear layers") for said in asked.assumptions)


@pytest.mark.parametrize(("keeps", "kept"), [(False, torch.float32), (True, torch.bfloat16)])
def test_adapters_over_16_bits_are_float32_unless_they_are_kept(keeps: bool, kept: torch.dtype, tmp_path: Path) -> None:
    adapted = adapt(built(written(tmp_path, "llama"), precision="bf16"), rank=4, keeps_type=keeps)
    assert {one.dtype for one in adapted.parameters() if one.requires_grad} == {kept}
    spec = ModelSpec(path="/", task="lora", recipe="torchtune")
    assert spec.keep_16_bits


@pytest.mark.parametrize(("checkpointing", "said"), [(False, True), (True, False)])
def test_a_cache_that_trainers_switch_off_is_said_where_a_loop_may_leave_it_on(
    checkpointing: bool, said: bool, tmp_path: Path
) -> None:
    made = written(tmp_path, "llama")
    asked = RequestedModel({**REQUESTED, "path": str(made), "task": "train", "checkpointing": checkpointing})
    asked.build(META)
    assert (WITHOUT_CACHE in asked.assumptions) is said


@pytest.mark.parametrize("name", ["llama", "gemma", "bert", "unet"])
def test_parameters_and_bytes_are_those_of_the_files(name: str, tmp_path: Path) -> None:
    facts = with_weights(tmp_path, name)
    assert facts["dtype"] == "bfloat16"
    assert (facts["stored_parameters"], facts["stored_bytes"]) == (facts["parameters"], facts["weight_bytes"])


def test_the_type_of_the_files_is_the_true_one(tmp_path: Path) -> None:
    assert CONFIGS["llama"]["torch_dtype"] == "bfloat16"
    assert with_weights(tmp_path, "llama", dtype=torch.float16)["dtype"] == "float16"


def test_of_an_index_without_its_files_the_size_is_known(tmp_path: Path) -> None:
    folder = written(tmp_path, "llama")
    index = {"metadata": {"total_size": 123456}, "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    stored = config.read(str(folder)).stored
    assert stored is not None and (stored.total_bytes, stored.parameters, stored.dtype) == (123456, None, None)


def test_shared_weights_have_their_memory_once(tmp_path: Path) -> None:
    model: Any = built(written(tmp_path, "gemma"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_weights_that_transformers_keeps_wide_are_wide(tmp_path: Path) -> None:
    model = built(written(tmp_path, "t5"), torch.device("cpu"), precision="fp16")
    wide = {name.split(".")[-2] for name, parameter in model.named_parameters() if parameter.dtype is torch.float32}
    assert wide == {"wo"}


LYING = struct.pack("<Q", 100 * 2**30) + b"{}"
SHORT = json.dumps({"a": {"dtype": "BF16", "shape": [2**30], "data_offsets": [0, 2**31]}}).encode()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no config.json"),
        ({"config.json": b"{"}, "is not valid JSON: it ends at line 1"),
        ({"config.json": b"[" * 100_000}, "is not valid JSON"),
        ({"config.json": b"\xff\xfe\x00"}, "is not valid JSON"),
        ({"config.json": b"[1]"}, "holds no JSON object"),
        ({"config.json": b"{}"}, "names no kind of model"),
        ({"config.json": b'{"model_type": 7}'}, "names no kind of model"),
        ({"config.json": b'{"model_type": "llama", "hidden_size": -1}'}, "hidden_size is -1"),
        ({"config.json": b'{"model_type": "llama", "num_hidden_layers": 1000000000}'}, "num_hidden_layers is 1e+09"),
        ({"config.json": b'{"model_type": "llama", "vocab_size": 1e30}'}, "vocab_size is 1e+30"),
        ({"config.json": b'{"model_type": "llama", "num_attention_heads": 0}'}, "describes no model that can be built"),
        ({"config.json": b'{"model_type": "no_such_kind"}'}, "is of the kind 'no_such_kind', which transformers"),
        ({"config.json": b'{"model_type": "mine", "auto_map": {"AutoModel": "m.M"}}'}, "comes with code of its own"),
        ({"config.json": b'{"_class_name": "NoSuchNet"}'}, "is a 'NoSuchNet', which is no model that diffusers"),
        ({"config.json": b'{"_class_name": "DDPMScheduler"}'}, "is a 'DDPMScheduler', which is no model"),
        ({"config.json": b'{"model_type": "llama"}', "model.safetensors": LYING}, "does not say what the file holds"),
        (
            {"config.json": b'{"model_type": "llama"}', "model.safetensors": struct.pack("<Q", len(SHORT)) + SHORT},
            "does not say what the file holds",
        ),
        (
            {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"version https://git-lfs.github.com"},
            "does not say what the file holds",
        ),
        ({"config.json": b'{"model_type": "llama"}', "m.safetensors.index.json": b"{}"}, "has no weight_map"),
    ],
)
def test_what_is_no_model_is_refused_in_a_sentence(files: dict[str, bytes], said: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CannotPredictError) as refused:
        built(tmp_path)
    assert said in str(refused.value) and "\n" not in str(refused.value) and refused.value.remedy
    assert refused.value.kind == "request"


def test_a_folder_that_is_not_there_is_refused() -> None:
    with pytest.raises(CannotPredictError, match="is not there"):
        config.read("/no/such/folder")


def test_a_python_without_the_libraries_is_told_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CannotPredictError, match="has no transformers") as refused:
        built(written(tmp_path, "llama"))
    assert "pip install 'gpudash[models]'" in refused.value.remedy


def test_code_that_comes_with_a_model_is_not_run_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "m.C", "AutoModel": "m.M"}}'
    )
    (tmp_path / "m.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    with pytest.raises(CannotPredictError, match="not run unasked") as refused:
        built(tmp_path)
    assert "--trust-remote-code" in refused.value.remedy and not (tmp_path / "ran").exists()
    with pytest.raises(CannotPredictError, match="describes no model that can be built"):
        built(tmp_path, trust_remote_code=True)
    assert (tmp_path / "ran").exists()


EIGHT_BIT_STATES: dict[tuple[int, ...], dict[str, tuple[int, torch.dtype]]] = {
    (4095,): {"state1": (4095, torch.float32), "state2": (4095, torch.float32)},
    (4096,): {
        "state1": (4096, torch.uint8),
        "state2": (4096, torch.uint8),
        "absmax1": (16, torch.float32),
        "absmax2": (16, torch.float32),
        "qmap1": (256, torch.float32),
        "qmap2": (256, torch.float32),
    },
    (1000, 77): {
        "state1": (77_000, torch.uint8),
        "state2": (77_000, torch.uint8),
        "absmax1": (301, torch.float32),
        "absmax2": (301, torch.float32),
        "qmap1": (256, torch.float32),
        "qmap2": (256, torch.float32),
    },
}
"""What ``AdamW8bit`` of bitsandbytes 0.50.2 holds for a parameter, by its sizes: numbers and type of each tensor."""


def test_a_paged_state_is_not_torchs_but_for_that_of_small_parameters() -> None:
    large = torch.nn.Parameter(torch.zeros(400, 250))
    small = torch.nn.Parameter(torch.zeros(300, 300))
    large.grad = torch.zeros_like(large)
    small.grad = torch.zeros_like(small)
    for bits, kept in ((8, 2 * 100_000), (32, 8 * 100_000)):
        optimizer = BitsandbytesAdamW([large, small], bits=bits, paged=True)
        optimizer.step()
        assert optimizer.paged_bytes == kept
        assert optimizer.state[large]["state1"].is_meta and not optimizer.state[small]["state1"].is_meta


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_of_eight_bits_is_that_of_bitsandbytes(dtype: torch.dtype) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(sizes, dtype=dtype)) for sizes in EIGHT_BIT_STATES]
    optimizer = BitsandbytesAdamW(parameters)
    sum(parameter.sum() for parameter in parameters).backward()
    optimizer.step()
    states = [optimizer.state[parameter] for parameter in parameters]
    found = [{name: (held.numel(), held.dtype) for name, held in state.items()} for state in states]
    assert found == list(EIGHT_BIT_STATES.values())
    assert states[1]["qmap1"] is states[2]["qmap1"], "all parameters of a device share the tables"
