"""The pipeline, step by step, and the mistakes that are made for real; torch's meta device stands where a GPU would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.specs import PipelineSpec, build
from gpudash.telemetry.records import Note, StageFinished, StepFinished
from gpudash.workloads.programs.pipeline import (
    PITFALLS,
    SAME_DEVICE,
    copied_leaf,
    filled,
    leaf,
    mixed_devices,
    numpy,
    run,
    show,
    unassigned,
)
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import Cancelled
from tests.unit.workloads.conftest import Reported, context_on


def stages(context: Context, told: Reported) -> list[StageFinished]:
    context.flush()
    return [event for event in told if isinstance(event, StageFinished)]


def test_the_default_adds_ten_to_one_to_nine(context: Context, told: Reported) -> None:
    result = run(PipelineSpec(), context)

    assert result["values"] == result["expected"] == [[11, 12, 13], [14, 15, 16], [17, 18, 19]]
    assert result["equal"] is True and result["original_unchanged"] is True and result["same_object"] is True
    assert [stage.name for stage in stages(context, told)] == ["create", "move", "operate", "return"]


def test_on_the_cpu_moving_says_that_nothing_was_copied(context: Context, told: Reported) -> None:
    run(PipelineSpec(), context)

    move = stages(context, told)[1]
    assert move.remark == SAME_DEVICE == "same device: torch returned the same tensor, 0 bytes copied"
    assert move.copied is False and move.bytes_per_second is None and move.bytes == 0 and move.same_object is True


def test_every_stage_tells_what_its_tensor_is(context: Context, told: Reported) -> None:
    run(PipelineSpec(), context)

    for stage in stages(context, told):
        assert stage.shape == (3, 3) and stage.dtype == "float32" and stage.device == "cpu"
        assert stage.is_cuda is False and stage.is_leaf is True and stage.bytes is not None
        assert stage.first_values is not None and len(stage.first_values) == 9
        assert stage.same_object is (stage.name in ("move", "return")) and stage.copied is False and stage.remark


def test_a_stage_that_makes_a_tensor_elsewhere_says_so(context: Context, told: Reported) -> None:
    run(PipelineSpec(move="direct"), context)

    (direct,) = (stage for stage in stages(context, told) if stage.name == "create on device")
    assert direct.remark == "a new tensor in the memory of cpu: nothing to move" and direct.same_object is False
    assert direct.bytes == 36 and direct.device == "cpu" and direct.is_leaf is True and direct.first_values


def test_pinning_says_that_it_copies_within_the_host(
    context: Context, told: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)

    run(PipelineSpec(move="pinned"), context)

    (pin,) = (stage for stage in stages(context, told) if stage.name == "pin")
    assert pin.copied is True and pin.same_object is False and pin.bytes == 36 and pin.shape == (3, 3)
    assert pin.remark == "copied into page-locked memory, shape and device unchanged"


def test_a_move_with_another_type_copies_on_the_same_device(context: Context, told: Reported) -> None:
    result = run(PipelineSpec(move="to_dtype"), context)

    move = stages(context, told)[1]
    assert move.copied is True and move.dtype == "float64" and move.bytes == 72 and result["same_object"] is False
    assert result["equal"] is True and result["original_unchanged"] is True


def test_creating_directly_tells_both_times(context: Context, told: Reported) -> None:
    result = run(PipelineSpec(move="direct"), context)

    note = next(event for event in told if isinstance(event, Note) and event.topic == "direct")
    assert note.details["created_on_device_seconds"] > 0 and note.details["created_and_moved_seconds"] > 0
    assert result["equal"] and "create on device" in [stage.name for stage in stages(context, told)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operation", ["add", "multiply"])
def test_a_scalar_that_half_precision_cannot_hold_is_compared_as_torch_uses_it(
    context: Context, dtype: str, operation: str
) -> None:
    values = {"rows": 50, "columns": 70, "dtype": dtype, "fill": "random", "operation": operation, "scalar": 0.1}

    result = run(build(PipelineSpec, values), context)  # type: ignore[arg-type]

    assert result["equal"] is True and result["expected"] == result["values"][: len(result["expected"])]


@settings(max_examples=60, deadline=None)
@given(
    values=st.fixed_dictionaries(
        {
            "rows": st.integers(1, 40),
            "columns": st.integers(1, 40),
            "dtype": st.sampled_from(["float64", "float32", "float16", "bfloat16", "int64", "int32"]),
            "fill": st.sampled_from(["count", "ones", "random"]),
            "move": st.sampled_from(["to", "to_dtype", "to_other", "direct"]),
            "operation": st.sampled_from(["add", "multiply", "matmul", "relu"]),
            "back": st.sampled_from(["cpu", "to_cpu"]),
            "scalar": st.sampled_from([5.0, -3.0, 0.1]),
            "seed": st.integers(0, 5),
        }
    )
)
def test_every_combination_gives_what_is_expected_and_leaves_the_original_alone(values: dict[str, Any]) -> None:
    try:
        spec = build(PipelineSpec, values)
    except ValueError:
        assert values["dtype"].startswith("int") and values["scalar"] == 0.1
        return
    told = Reported()
    context = context_on(reported=told)

    result = run(spec, context)  # type: ignore[arg-type]

    assert result["equal"] is True and result["original_unchanged"] is True
    assert result["same_object"] is (spec.model_dump()["move"] != "to_dtype" or values["dtype"] == "float64")


def test_a_wrong_result_is_called_unequal(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpudash.workloads.programs import pipeline

    monkeypatch.setattr(pipeline, "_return", lambda spec, context, tensor: tensor + 1)

    assert run(PipelineSpec(), context)["equal"] is False


def test_an_original_that_was_written_to_is_told(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpudash.workloads.programs import pipeline

    monkeypatch.setattr(pipeline, "operated", lambda spec, tensor: tensor.add_(spec.scalar))

    assert run(PipelineSpec(), context)["original_unchanged"] is False


def test_a_large_result_is_reported_by_its_first_values(context: Context) -> None:
    result = run(PipelineSpec(rows=40, columns=50, fill="random"), context)

    assert len(result["values"]) == len(result["expected"]) == 9 and result["checked"] == 2000 and result["equal"]


def test_a_large_product_is_checked_by_its_first_rows(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpudash.workloads.programs import pipeline

    monkeypatch.setattr(pipeline, "CHECK_FLOPS", 2 * 60 * 60 * 7)
    result = run(PipelineSpec(rows=60, columns=60, operation="matmul"), context)

    assert result["checked"] == 7 * 60 and result["equal"] is True


def test_counting_restarts_where_the_type_could_not_hold_the_next_number(context: Context) -> None:
    spec = PipelineSpec(rows=1, columns=600, dtype="bfloat16")

    numbers = filled(spec, torch.device("cpu"), context).reshape(-1).tolist()

    assert numbers == [index % 256 + 1 for index in range(600)]


def test_a_fill_longer_than_one_operation_goes_on_counting(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpudash.workloads.programs import pipeline

    monkeypatch.setattr(pipeline, "CHUNK", 10)

    assert filled(PipelineSpec(rows=5, columns=5), torch.device("cpu"), context).reshape(-1).tolist() == list(
        range(1, 26)
    )


def test_repetitions_are_steps_and_are_counted_in_the_stages(context: Context, told: Reported) -> None:
    run(PipelineSpec(repeat=5), context)

    moves = [stage for stage in stages(context, told) if stage.name == "move"]
    assert sum(stage.count for stage in moves) == 5
    steps = [event for event in told if isinstance(event, StepFinished)]
    assert steps[-1].step == steps[-1].steps == 5


def test_stop_takes_effect_between_two_operations(context: Context, told: Reported) -> None:
    told.requests.stop.set()

    with pytest.raises(Cancelled):
        run(PipelineSpec(), context)


def test_large_allocations_are_announced_before_they_are_made(told: Reported) -> None:
    asked: list[tuple[int, str]] = []
    context = context_on(
        reported=told,
        refuse=lambda *announced: asked.append(announced),  # type: ignore[func-returns-value]
    )
    run(PipelineSpec(rows=100, columns=100), context)

    assert asked.count((40_000, "cpu")) >= 2


def test_a_size_takes_the_place_of_rows_and_columns(context: Context, told: Reported) -> None:
    run(PipelineSpec(size=4000, repeat=1), context)

    assert stages(context, told)[0].shape == (31, 31)


@pytest.mark.parametrize(
    ("values", "field"),
    [({"dtype": "int64", "scalar": 0.5}, "--scalar"), ({"rows": 0}, "--rows"), ({"size": "200 potatoes"}, "--size")],
)
def test_values_that_cannot_be_run_are_refused_by_name(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        build(PipelineSpec, values)


def test_cuda_refuses_products_of_integers_before_the_run() -> None:
    assert "int64" in PipelineSpec(operation="matmul", dtype="int64").problems("cuda:0")[0]
    assert PipelineSpec(operation="matmul", dtype="int64").problems("cpu") == []


META = torch.device("meta")


def test_a_moved_leaf_is_no_leaf_and_the_gradient_lands_on_the_original() -> None:
    found = copied_leaf(lambda original: original.to(torch.float64))

    assert found.facts["copy_is_leaf"] is False and found.facts["copy_has_gradient"] is False
    assert found.facts["original_has_gradient"] is True and found.facts["gradient_device"] == "cpu"
    assert found.message is not None and "not a leaf Tensor" in found.message


def test_numpy_on_a_device_is_told_in_torchs_own_words() -> None:
    with pytest.raises((TypeError, RuntimeError)) as raised:
        torch.ones(3, device=META).numpy()

    assert numpy(META).message == str(raised.value)


def test_mixed_devices_are_told_in_torchs_own_words() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.ones(3) + torch.ones(3, device=META)

    assert mixed_devices(META).message == str(raised.value)


def test_an_unassigned_move_leaves_the_tensor_where_it_was() -> None:
    found = unassigned(META)

    assert found.facts["device_after"] == "cpu" and found.message == mixed_devices(META).message


def test_where_torch_lets_a_mistake_pass_no_message_is_made_up() -> None:
    cpu = torch.device("cpu")

    assert mixed_devices(cpu).message is None and numpy(cpu).message is None and leaf(cpu).message is None


def test_a_pitfall_is_told_as_a_note_with_explanation_and_mend(context: Context, told: Reported) -> None:
    context.device = META
    details = show("numpy", context)

    (note,) = [event for event in told if isinstance(event, Note)]
    assert note.topic == "pitfall" and note.details == details and details["pitfall"] == "numpy"
    assert details["message"] in note.text and details["explanation"] in note.text and details["remedy"] in note.text
    context.flush()
    (stage,) = [event for event in told if isinstance(event, StageFinished)]
    assert stage.device == "meta" and stage.is_cuda is False and stage.remark == f"torch: {details['message']}"


def test_every_pitfall_of_the_spec_can_be_shown_and_none_runs_on_the_cpu() -> None:
    choices = set(PipelineSpec.model_json_schema()["properties"]["pitfall"]["enum"]) - {"none"}

    assert choices == set(PITFALLS)
    assert all(PipelineSpec(pitfall=name).problems("cpu") for name in choices)
    assert not any(PipelineSpec(pitfall=name).problems("cuda:0") for name in choices)
