"""A run of a model by its config, with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudash.specs import ModelSpec
from gpudash.telemetry.records import RunEnd, StepFinished
from gpudash.workloads.program_code import code
from tests.unit.simulator.models.small_models import CONFIGS, written
from tests.unit.workloads.conftest import Bench


def test_a_model_takes_its_steps_on_the_cpu(bench: Bench, tmp_path: Path) -> None:
    ended = bench.run("model", path=str(written(tmp_path, "llama")), precision="fp32", batch=2, sequence=8)
    assert ended.status == "finished", ended
    result = ended.result
    assert (result["architecture"], result["dtype"], result["sequence"]) == ("LlamaForCausalLM", "float32", 8)
    assert sum(isinstance(event, StepFinished) and event.loss is not None for event in bench.events) == 3


def test_a_model_that_cannot_be_built_ends_the_run_in_a_sentence(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS["llama"], "model_type": "no_such_kind"}))
    ended = bench.run("model", path=str(tmp_path))
    assert (
        isinstance(ended, RunEnd)
        and ended.status == "failed"
        and "does not know" in ended.message
        and "Update transformers" in ended.remedy
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "No model is named"),
        ({"path": "/no/such/folder"}, "/no/such/folder is not there"),
        (
            {"path": "/", "task": "qlora"},
            "weights packed as nf4 can only be predicted here. To run it, use your own script",
        ),
        ({"path": "/", "optimizer": "adamw8bit"}, "8-bit AdamW can only be predicted here"),
        ({"path": "/", "task": "qlora", "optimizer": "adamw8bit"}, "packed as nf4 and 8-bit AdamW can only"),
        ({"path": "/", "offload": "weights"}, "weights on the host can only be predicted here"),
        (
            {"path": "/", "devices": "cpu,cpu"},
            "a model over 2 devices can only be predicted here. To run it, use your own script",
        ),
    ],
)
def test_what_is_only_predicted_says_why_it_is_not_run(values: dict[str, str], said: str) -> None:
    spec = ModelSpec.model_validate(values)
    assert spec.problems("cpu") == [] and said in "; ".join(spec.run_problems("cpu"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"quantisation": "nf4"}, "nf4 weights do not learn"),
        ({"task": "lora", "quantisation": "gptq"}, "no adapter is trained on gptq"),
        ({"task": "infer", "quantisation": "fp8"}, "fp8 is of servers alone"),
    ],
)
def test_packed_weights_learn_only_by_adapters(values: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModelSpec.model_validate(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"task": "infer"}, "several devices train together"),
        ({"devices": "cuda:0"}, "only one device"),
        ({"devices": "cuda:0,sim:0"}, "simulated GPUs and real ones"),
        ({"offload": "weights"}, "kept on the host by FSDP2; choose fsdp"),
        (
            {"task": "qlora", "parallel": "fsdp"},
            "packs weights of nf4 into integers; choose ddp, or --task lora. FSDP1",
        ),
        ({"task": "qlora", "parallel": "fsdp1"}, "then have one type, and peft makes float32 .* --keep-16-bits"),
        ({"task": "qlora", "quantisation": "int8", "parallel": "fsdp1"}, "int8 weights as integers alone"),
        ({"offload": "weights", "parallel": "fsdp1"}, "kept on the host by FSDP2; choose fsdp"),
        ({"optimizer": "adamw8bit", "parallel": "fsdp"}, "8-bit AdamW does not step on shards"),
        ({"optimizer": "adafactor", "parallel": "fsdp"}, "Adafactor does not step on shards"),
    ],
)
def test_what_several_devices_cannot_do_is_refused_in_a_sentence(values: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModelSpec.model_validate({"devices": "cuda:0,cuda:1", **values})


def test_a_device_beside_those_of_the_ranks_is_refused() -> None:
    spec = ModelSpec(path="/", devices="cuda:0,cuda:1")
    assert spec.problems("cuda:0") == [] and "leave --device out" in spec.problems("cpu")[0]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"devices": "cuda:0,cuda:1"}, "a model over 2 devices is not shown"),
        ({"loss": "fused"}, "a fused loss is of a library"),
        ({"optimizer_in_backward": True}, "an update within the backward pass is not shown"),
        ({"offload": "activations"}, "activations on the host are not shown"),
        ({"checkpointing": True, "keeps": "layers"}, "what checkpointing keeps is not shown"),
        ({"packing": True}, "packed rows are made by a data set"),
    ],
)
def test_what_no_plain_program_has_is_said_in_place_of_one(values: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        code(ModelSpec.model_validate({"path": "/", **values}), "cuda:0")


def test_what_is_said_beside_a_recipe_stays_when_the_spec_is_read_again() -> None:
    spec = ModelSpec.model_validate({"recipe": "torchtune", "checkpointing": False, "task": "qlora"})
    assert (spec.checkpointing, spec.loss, spec.keep_16_bits) == (False, "chunked", True)
    assert ModelSpec.model_validate(spec.model_dump(exclude_defaults=True)) == spec
