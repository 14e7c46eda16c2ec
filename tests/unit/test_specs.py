"""Specs: what a workload may be asked, refused in words, and what a device cannot do."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash import specs
from gpudash.specs import (
    BUILT_IN,
    MatmulSpec,
    PipelineSpec,
    PressureSpec,
    Spec,
    TrainingSpec,
    TransferSpec,
    broken_entry_points,
    build,
    workloads,
)
from gpudash.units import GIB, MIB


@pytest.mark.parametrize("spec", BUILT_IN)
def test_defaults_and_presets_are_valid_and_run_on_the_cpu(spec: type[Spec]) -> None:
    assert build(spec, {}).problems("cpu") == []
    assert len(spec.presets) <= 3
    for preset in spec.presets:
        assert build(spec, {}, preset).problems("cpu") == []


@pytest.mark.parametrize("spec", BUILT_IN)
def test_every_field_has_one_line_of_help(spec: type[Spec]) -> None:
    for name, field in spec.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description
        assert not field.description.endswith("."), name


@pytest.mark.parametrize("spec", BUILT_IN)
def test_hidden_fields_depend_on_choices_that_exist(spec: type[Spec]) -> None:
    for field in spec.model_fields.values():
        extra: Any = field.json_schema_extra or {}
        for other, choices in extra.get("when", {}).items():
            for choice in choices:
                build(spec, {other: choice})


@pytest.mark.parametrize("spec", BUILT_IN)
def test_what_a_device_refuses_are_choices_that_exist(spec: type[Spec]) -> None:
    for (name, value), reason in spec.refusals("cpu").items():
        problems = build(spec, {name: value}).problems("cpu")
        assert problems == [f"--{name} {value}: {reason}"]
        assert "CUDA" in reason
    assert spec.refusals("cuda:0") == {}


@pytest.mark.parametrize("spec", BUILT_IN)
def test_a_spec_comes_back_from_its_own_json(spec: type[Spec]) -> None:
    for preset in (None, *spec.presets):
        made = build(spec, {}, preset)
        assert spec.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("spec", "values", "words"),
    [
        (PipelineSpec, {"rows": 0}, "--rows 0: at least 1"),
        (
            PipelineSpec,
            {"dtype": "float8"},
            "--dtype 'float8': choose one of float64, float32, float16, bfloat16, int64, int32",
        ),
        (PipelineSpec, {"colour": "red"}, "--colour there is no such field"),
        (PipelineSpec, {"size": "many"}, "--size 'many' is not a size"),
        (TransferSpec, {"blocks": "1MiB,lots"}, "--blocks 'lots' is not a size"),
        (TransferSpec, {"blocks": "1"}, "--blocks 1 B is outside 1 KiB to 16 GiB"),
        (TrainingSpec, {"steps": 2, "epochs": 3}, "--epochs 3 epochs need at least as many steps"),
        (TrainingSpec, {"move_at_epoch": 9}, "--move-at-epoch epoch 9 never comes"),
        (PressureSpec, {"rate": 0}, "--rate 0: above 0 /s"),
        (MatmulSpec, {"size": 1.5}, "--size 1.5: give a whole number"),
        (MatmulSpec, {"size": "many"}, "--size 'many': give a whole number"),
        (MatmulSpec, {"size": "70000"}, "--size 70000: at most 65536"),
        (PipelineSpec, {"size": "1TiB"}, "--size 1TiB: at most 256 GiB"),
        (PipelineSpec, {"size": 4}, "--size 4 B: at least 8 B"),
        (PressureSpec, {"cap": 2**41}, "--cap 2.00 TiB: at most 1 TiB"),
        (PipelineSpec, {"size": []}, "--size []: write a size, for example 512MiB or 8GiB"),
        (PipelineSpec, {"scalar": "much"}, "--scalar 'much': give a number"),
        (PipelineSpec, {"scalar": float("nan")}, "--scalar nan: give a finite number"),
        (PipelineSpec, {"scalar": -2e6}, "--scalar -2000000.0: at least -1000000"),
        (TrainingSpec, {"keep_intermediates": "perhaps"}, "--keep-intermediates 'perhaps': give true or false"),
        (TrainingSpec, {"sequence": 2}, "--sequence 2: at least 4 characters"),
        (TrainingSpec, {"accumulation": 0}, "--accumulation 0: at least 1"),
        (TrainingSpec, {"model": "rnn"}, "--model 'rnn': choose one of transformer, mlp, cnn"),
        (TrainingSpec, {"precision": "fp8"}, "--precision 'fp8': choose one of fp32, bf16, fp16"),
        (
            PressureSpec,
            {"pattern": "flood"},
            "--pattern 'flood': choose one of ramp, leak, sawtooth, fragmentation, spike",
        ),
        (PressureSpec, {"until": "full"}, "--until 'full': choose one of cap, oom"),
    ],
)
def test_a_wrong_value_is_refused_with_its_flag_and_what_is_allowed(
    spec: type[Spec], values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        build(spec, values)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_several_wrong_values_are_all_named() -> None:
    with pytest.raises(ValueError, match=r"--rows .*; --columns "):
        build(PipelineSpec, {"rows": 0, "columns": 0})


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="has no preset 'Huge'; it has Quick, Large, Half precision"):
        build(MatmulSpec, {}, "Huge")


def test_a_value_outweighs_the_preset() -> None:
    made = build(PipelineSpec, {"repeat": 2}, "Visible")
    assert isinstance(made, PipelineSpec)
    assert (made.repeat, made.size) == (2, 200 * MIB)


def test_the_default_pipeline_is_three_by_three() -> None:
    made = PipelineSpec()
    assert (made.shape, made.bytes, made.scalar) == ((3, 3), 36, 10.0)


@given(st.integers(8, 256 * GIB), st.sampled_from(["float64", "float32", "bfloat16"]))
def test_a_size_makes_the_largest_square_that_fits(size: int, dtype: Any) -> None:
    made = PipelineSpec(size=size, dtype=dtype)
    rows, columns = made.shape
    each = made.bytes // (rows * columns)
    assert rows == columns
    assert made.bytes <= size or rows == 1
    assert (rows + 1) ** 2 * each > size


@given(st.integers(8, 16384))
def test_the_heads_of_a_transformer_divide_its_width(width: int) -> None:
    heads = TrainingSpec(width=width).heads
    assert 1 <= heads <= max(1, width // 32)
    assert width % heads == 0


@given(depth=st.integers(1, 256), width=st.integers(8, 512), batch=st.integers(1, 64), parts=st.integers(1, 8))
def test_a_steps_samples_are_those_of_its_batches_and_only_training_has_several(
    depth: int, width: int, batch: int, parts: int
) -> None:
    made = TrainingSpec(model="cnn", depth=depth, width=width, batch=batch, accumulation=parts)
    assert made.step_batch == batch * parts
    assert made.model_copy(update={"mode": "inference"}).step_batch == batch
    assert len(made.sides) == depth and made.sides[0] == 8 and all(side == 4 for side in made.sides[1:])
    assert made.parameters == depth * 9 * width**2


def test_block_sizes_are_sorted_and_each_once() -> None:
    assert TransferSpec(blocks="4MiB, 1MiB,4096KiB").block_sizes == [MIB, 4 * MIB]


@pytest.mark.parametrize(
    "made",
    [
        PipelineSpec(size=64 * GIB),
        TransferSpec(blocks="16GiB"),
        MatmulSpec(size=65536),
        TrainingSpec(width=8192, batch=256),
    ],
)
def test_an_operation_longer_than_a_second_is_cautioned(made: Spec) -> None:
    assert len(made.cautions("cpu")) == 1
    assert type(made)().cautions("cpu") == []


PLUGIN = """
from gpudash.specs import Spec, field

class MySpec(Spec):
    name = "mine"
    title = "Mine"
    summary = "Does something."
    run = "mine:run"
    amount: int = field(1, "How much")
"""


MISTAKES = {
    "": "holds no subclass of gpudash.specs.Spec; derive one from it.",
    "raise SyntaxError('not\\ntoday')": "does not import (SyntaxError: not today); correct or uninstall the package.",
    "class Other: name = 'other'": "holds no subclass of gpudash.specs.Spec (Other is none); derive one from it.",
    PLUGIN + PLUGIN.split("\n\n")[-1].replace("class ", "class Second"): "holds 2 specs (",
    "from gpudash.specs import Spec\nclass Bare(Spec):\n    name = 'bare'": "Bare has no text as title, summary, run;",
    PLUGIN.replace("'mine'", "'training'").replace('"mine"', '"training"'): "there is a workload 'training' already;",
    PLUGIN + "    verbose: bool = False\n": "has a field 'verbose', which is a flag of every command; rename it.",
}
"""Content of a plug-in's module → what is said of it."""


def plug_in(monkeypatch: pytest.MonkeyPatch, folder: Path, *contents: str) -> None:
    """Install a package for each content of a module."""
    points = []
    for number, content in enumerate(contents):
        name = f"gpudash_test_{abs(hash(content))}_{number}"
        (folder / f"{name}.py").write_text(content)
        points.append(EntryPoint(name=f"plug{number}", value=name, group=specs.ENTRY_POINTS))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(specs, "installed", lambda: points)


@pytest.mark.parametrize("content", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_in_a_plug_in_is_one_sentence_and_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    plug_in(monkeypatch, tmp_path, content, PLUGIN)
    assert list(workloads()) == [*(spec.name for spec in BUILT_IN), "mine"]
    (told,) = broken_entry_points()
    assert told.startswith("The workload plug0 is left out: ") and told.endswith(".") and "\n" not in told
    assert MISTAKES[content] in told


def test_of_two_plug_ins_of_the_same_name_the_first_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, tmp_path, PLUGIN, PLUGIN)
    assert workloads()["mine"].__module__.endswith("_0")
    (told,) = broken_entry_points()
    assert told.startswith("The workload plug1 is left out: there is a workload 'mine' already;")
