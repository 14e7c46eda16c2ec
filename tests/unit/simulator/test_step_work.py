"""What a dry run writes down of a step: the operations, their sizes, and what passes between host and device."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpudash.speed.work import CONVOLUTION, NORMALISATION, OPTIMIZER, PRODUCT, Operation, StepWork
from tests.programs import output_of
from tests.unit.simulator.step_works import BATCH, INPUTS, OUTPUTS

pytestmark = pytest.mark.process

FLOAT = 4
WEIGHT, BIAS, GIVEN, MADE = INPUTS * OUTPUTS, OUTPUTS, BATCH * INPUTS, BATCH * OUTPUTS
PARAMETERS = FLOAT * (WEIGHT + BIAS)


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """Of every program, from one process of dry runs."""
    found: dict[str, Any] = json.loads(output_of("unit.simulator.step_works").splitlines()[-1])
    return found


def work(told: dict[str, Any], name: str) -> StepWork:
    return StepWork.from_dict(told[name])


def named(found: StepWork, name: str) -> dict[Operation, int]:
    return {operation: count for operation, count in found.operations.items() if operation.name == name}


def test_the_training_step_of_a_linear_layer_is_two_products_a_sum_and_the_optimizers_pass_over_the_weights(
    told: dict[str, Any],
) -> None:
    found = work(told, "linear")
    flops = 2 * BATCH * INPUTS * OUTPUTS
    read, written = FLOAT * (WEIGHT + BIAS + GIVEN), FLOAT * MADE
    forward = Operation("addmm", PRODUCT, "float32", flops, read, written, (1, BATCH, OUTPUTS, INPUTS), phase="forward")
    assert named(found, "addmm") == {forward: 1}
    # of the weight alone: nobody asks for the batch's gradient, and that of a sum is one number, seen as many
    read, written = FLOAT * (1 + GIVEN), FLOAT * WEIGHT
    backward = Operation("mm", PRODUCT, "float32", flops, read, written, (1, OUTPUTS, INPUTS, BATCH), phase="backward")
    assert named(found, "mm") == {backward: 1}
    ((update, count),) = named(found, "_foreach_add_").items()
    assert (count, update.phase, update.read_bytes, update.written_bytes) == (
        1,
        "optimizer",
        2 * PARAMETERS,
        PARAMETERS,
    )
    assert {operation.phase for operation in found.operations} == {"forward", "backward", "optimizer"}


def test_views_and_what_only_makes_room_are_no_work(told: dict[str, Any]) -> None:
    names = {operation.name for operation in work(told, "linear").operations}
    assert names == {"addmm", "sum", "fill_", "mm", "_foreach_add_"}


def test_what_is_autocast_is_multiplied_in_halves_and_the_casts_are_copies(told: dict[str, Any]) -> None:
    found = work(told, "autocast")
    (product,) = named(found, "addmm")
    assert product.dtype == "bfloat16" and product.read_bytes == 2 * (WEIGHT + BIAS + GIVEN)
    casts = sorted((cast.read_bytes, cast.written_bytes) for cast in named(found, "copy_"))
    assert casts == sorted((FLOAT * size, 2 * size) for size in (WEIGHT, BIAS, GIVEN))


def test_copies_have_their_bytes_and_the_host_waits_for_those_that_block_and_for_numbers(told: dict[str, Any]) -> None:
    found = work(told, "copying")
    assert (found.copied_in_bytes, found.copied_out_bytes, found.copies) == (FLOAT * GIVEN, FLOAT * GIVEN, 2)
    assert found.synchronisations == 2 and not found.pinned
    assert (found.items, found.unit) == (BATCH, "samples")


def test_a_copy_into_memory_that_is_there_already_counts_as_any_other(told: dict[str, Any]) -> None:
    found = work(told, "copying_into")
    assert (found.copied_in_bytes, found.copied_out_bytes, found.copies) == (FLOAT * GIVEN, 0, 1)


def test_a_whole_training_has_the_steps_of_its_optimizer_and_the_evaluation_is_in_none_of_them(
    told: dict[str, Any],
) -> None:
    assert work(told, "whole_training") == work(told, "linear")


def test_a_convolution_of_float32_is_multiplied_as_tf32_unless_torch_is_told_otherwise(told: dict[str, Any]) -> None:
    (found,) = named(work(told, "convolution"), "convolution")
    assert (found.kind, found.dtype, found.shape) == (CONVOLUTION, "tf32", (2, 3, 4, 1, 9, 36))
    assert found.flops == 2 * 2 * 4 * 36 * 3 * 9


def test_a_fused_optimizer_is_one_operation_over_the_list_of_weights_and_a_fused_norm_is_over_none(
    told: dict[str, Any],
) -> None:
    found = work(told, "fused")
    ((update, count),) = named(found, "_fused_adamw_").items()
    assert (count, update.kind, update.shape, update.phase) == (1, OPTIMIZER, (3,), "optimizer")
    (norm,) = named(found, "_fused_rms_norm")
    assert (norm.kind, norm.shape) == (NORMALISATION, ())


def test_the_work_is_the_same_on_every_card(told: dict[str, Any]) -> None:
    assert work(told, "linear on a T4") == work(told, "linear")
    first, *others = map(StepWork.from_dict, told["cnn"])
    assert first.operations and all(other == first for other in others)


def test_a_step_of_a_workload_goes_through_its_batch_as_often_as_it_accumulates(told: dict[str, Any]) -> None:
    first = StepWork.from_dict(told["cnn"][0])
    assert (first.items, first.unit) == (8, "samples")


def test_ranks_exchange_as_many_bytes_as_their_gradients_have(told: dict[str, Any]) -> None:
    found = work(told, "ranks")
    written = sum(
        operation.written_bytes * count
        for operation, count in found.operations.items()
        if operation.phase == "optimizer"
    )
    assert found.ranks == 2 and found.items == 8 and 0 < found.exchanged_bytes <= written
