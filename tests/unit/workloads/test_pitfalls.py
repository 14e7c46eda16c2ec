"""The mistakes are made for real; torch's meta device stands where a GPU would."""

from __future__ import annotations

import pytest
import torch

from gpudash.specs import PipelineSpec
from gpudash.telemetry.records import Note, StageFinished
from gpudash.workloads.programs.pipeline import PITFALLS, copied_leaf, leaf, mixed_devices, numpy, show, unassigned
from gpudash.workloads.running.context import Context
from tests.unit.workloads.conftest import Told

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


def test_a_pitfall_is_told_as_a_note_with_explanation_and_mend(context: Context, told: Told) -> None:
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
