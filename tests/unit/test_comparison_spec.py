"""The spec of a comparison, and its flags."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.cli.terminal.output import RequestError
from gpudash.cli.terminal.workload_flags import with_nested
from gpudash.specs import ComparisonSpec, MatmulSpec, PipelineSpec, Spec, TrainingSpec, build


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"workload": "pressure"}, "--workload 'pressure': memory pressure is paced by a clock"),
        ({"workload": "comparison"}, "--workload 'comparison': a comparison cannot be compared with itself"),
        ({"workload": "transfer"}, "--workload 'transfer': a transfer is already measured between"),
        ({"workload": "nothing"}, "--workload 'nothing': choose one of training"),
        ({"devices": "cpu"}, "--devices 'cpu': two are compared, not 1"),
        ({"devices": "cpu,gpu"}, "--devices 'gpu' is not a device"),
        ({"devices": "cpu,sim:0"}, "--devices sim:0 is simulated: its arithmetic is done on the CPU"),
        ({"devices": "sim:1,cuda:0"}, "--devices sim:1 is simulated"),
        (
            {"devices": "cuda:0,rtx4090"},
            "--devices rtx4090 is predicted, beside a CPU that is measured; write cpu,rtx4090",
        ),
        ({"devices": "rtx4090,h100"}, "--devices rtx4090 is predicted, beside a CPU"),
        ({"fields": {"batch": 0}}, "--batch 0: at least 1"),
        ({"fields": {"colour": 1}}, "--colour there is no such field"),
        ({"fields": {"seed": 1}}, "--seed 1: give it to the comparison, for both devices"),
        ({"fields": {"move_at_epoch": 2}}, "--move-at-epoch 2: a run that moves"),
        ({"confidence": 1.0}, "--confidence 1.0: at most 0.999"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r".*") as refused:
        build(ComparisonSpec, {"devices": "cpu,cpu", **values})
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_a_recorded_comparison_can_be_asked_again() -> None:
    spec = build(ComparisonSpec, {"devices": "cpu,cuda:1", "seed": 3, "fields": {"model": "mlp", "batch": 8}})
    assert build(ComparisonSpec, json.loads(json.dumps(spec.model_dump(mode="json")))) == spec


def test_seed_and_threads_hold_for_the_workload_on_both_devices() -> None:
    spec = ComparisonSpec(devices="cpu,cpu", seed=3, threads=2, fields={"model": "mlp"})
    assert spec.chosen == TrainingSpec(model="mlp", seed=3, threads=2)
    assert spec.predicted == spec.chosen


@pytest.mark.parametrize(
    ("devices", "own"),
    [("cpu,cuda:0", "cuda:0"), ("cuda:1,cpu", "cuda:1"), ("cpu,cpu", "cpu"), ("cuda:0,cuda:1", "cuda:1")],
)
def test_the_run_counts_as_one_of_the_gpu(devices: str, own: str) -> None:
    assert ComparisonSpec(devices=devices).own_device == own


def test_a_card_that_is_not_here_is_predicted_beside_the_cpu_which_alone_runs() -> None:
    spec = ComparisonSpec(devices="cpu,RTX 4090")
    assert spec.card is not None
    assert (spec.card.key, spec.measured, spec.own_device) == ("rtx4090", ("cpu",), "cpu")
    assert spec.problems("cpu") == []
    assert ComparisonSpec(devices="cpu,cuda:0").card is None


def test_another_device_than_the_two_is_refused() -> None:
    spec = ComparisonSpec(devices="cpu,cpu")
    assert spec.problems("cpu") == []
    assert spec.problems("cuda:0") == ["--device cuda:0: a comparison runs on cpu and cpu; leave --device out"]


def test_what_one_of_the_devices_cannot_do_is_refused() -> None:
    spec = ComparisonSpec(devices="cpu,cuda:0", workload="pipeline", fields={"move": "pinned"})
    assert any("--move pinned" in problem for problem in spec.problems("cuda:0"))


def test_the_flags_of_the_chosen_workload_are_flags_of_the_comparison() -> None:
    words = ["--model", "mlp", "--batch=8", "--checkpointing", "--learning-rate", "0.1"]
    found = with_nested(ComparisonSpec, words, {"devices": "cpu,cpu"}, None)
    fields = {"model": "mlp", "batch": 8, "checkpointing": True, "learning_rate": 0.1}
    assert found == {"devices": "cpu,cpu", "fields": fields}
    sized = with_nested(ComparisonSpec, ["--size", "8MiB"], {"workload": "pipeline"}, None)
    assert sized["fields"] == {"size": 8 << 20}


def test_a_presets_fields_are_kept_beside_those_that_are_given() -> None:
    assert with_nested(ComparisonSpec, ["--batch", "4"], {}, "Small")["fields"] == {"model": "mlp", "batch": 4}
    assert with_nested(ComparisonSpec, ["--rows", "4"], {"workload": "pipeline"}, "Small")["fields"] == {"rows": 4}


def test_a_workload_without_nested_fields_is_left_as_it_is() -> None:
    assert with_nested(PipelineSpec, [], {"rows": 4}, None) == {"rows": 4}


def test_a_word_that_is_no_flag_is_refused() -> None:
    with pytest.raises(RequestError, match="'mlp' is no flag"):
        with_nested(ComparisonSpec, ["mlp"], {}, None)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--devices", "cpu,sim:0"], "sim:0 is simulated"),
        (["--devices", "cpu,cpu", "--batch", "x"], "--batch 'x': give a whole number"),
        (["--devices", "cpu,cpu", "--colour", "1"], "Unknown option: --colour"),
        (["--devices", "cpu,cpu", "--workload", "matmul", "--batch", "8"], "Unknown option: --batch"),
        (["--workload", "pressure"], "memory pressure is paced"),
    ],
)
def test_a_wrong_flag_is_one_sentence_and_exit_2(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "comparison", *flags, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert sentence in error["message"]
    assert "\n" not in error["message"]


def test_the_help_does_not_show_the_field_that_holds_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "comparison", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--devices" in told and "--fields" not in told


def test_no_field_of_a_workload_hides_behind_one_of_the_comparisons_own() -> None:
    own = set(ComparisonSpec.model_fields) - set(Spec.model_fields)
    for workload in (TrainingSpec, MatmulSpec, PipelineSpec):
        # both have devices, and a run on several of them is not compared: a comparison's are its own two
        assert own & set(workload.model_fields) <= {"devices"}, workload.name
