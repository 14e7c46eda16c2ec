"""Several devices as a training names them."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.specs import ComparisonSpec, TrainingSpec, build
from gpudash.specs.base import MOST_DEVICES, several_devices


def spec_of(**values: Any) -> TrainingSpec:
    found = build(TrainingSpec, values)
    assert isinstance(found, TrainingSpec)
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpu", "only one device"),
        ("cuda:0,cuda:0", "cuda:0 is given twice"),
        ("gpu7,cpu", "'gpu7' is not a device"),
        ("cpu,,cpu", "'' is not a device"),
        ("cpu,cuda:0", "Gloo on the CPU, NCCL on GPUs"),
        ("sim:0,cuda:0", "simulated GPUs and real ones"),
        ("sim:0,cpu", "cpu and sim:0 cannot train together"),
        (",".join(["cpu"] * (MOST_DEVICES + 1)), f"at most {MOST_DEVICES} ranks"),
    ],
)
def test_devices_that_cannot_train_together_are_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="--devices ") as refusal:
        spec_of(devices=text)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_ranks_run_on_simulated_gpus(parallel: str) -> None:
    spec = spec_of(devices="sim:0,sim:1", parallel=parallel)
    assert spec.run_problems("sim:0") == [] and spec.rank_devices == ("sim:0", "sim:1")


def test_devices_keep_their_order_and_only_cpu_may_be_repeated() -> None:
    assert several_devices("") == () and several_devices("cuda:1, cuda:0") == ("cuda:1", "cuda:0")
    assert spec_of(devices=" cpu , cpu ").devices == "cpu,cpu"


@pytest.mark.parametrize(("batch", "nearest"), [(30, "28 and 32 do"), (3, "4 does"), (7, "4 and 8 do")])
def test_a_global_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(batch: int, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"{batch} does not divide among 4 ranks; {nearest}"):
        spec_of(devices="cpu,cpu,cpu,cpu", global_batch=batch)


@pytest.mark.parametrize(
    ("values", "words"),
    [({"mode": "inference"}, "train together"), ({"move_at_epoch": 2}, "cannot move")],
)
def test_what_only_one_device_can_do_is_refused_on_several(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec_of(devices="cpu,cpu", **values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"devices": "sim:0"}, "is only one device"),
        ({"devices": "sim:0,sim:1,sim:2"}, "a model is split over two devices, and 3 are named; name two"),
        ({"devices": "cpu,cpu"}, "cpu,cpu is one device; a model is split over two"),
        ({"depth": 1}, "a model of one layer cannot be split"),
        ({"mode": "inference"}, "train together"),
        ({"move_at_epoch": 2}, "cannot move"),
        ({"global_batch": 8}, "global-batch 8: a model that is split by hand has no ranks"),
        ({"slow_rank": 0.2}, "slow-rank 0.2: a model that is split by hand has no ranks"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as told:
        spec_of(**{"devices": "sim:0,sim:1", "parallel": "split", **values})
    assert "\n" not in str(told.value)


def test_a_split_model_runs_on_simulated_gpus_and_has_no_ranks() -> None:
    spec = spec_of(devices="sim:0,sim:1", parallel="split", batch=8)
    assert spec.run_problems("sim:0") == [] and spec.is_split and spec.own_device == "sim:0"
    assert (spec.rank_devices, spec.world_size, spec.rank_batch) == ((), 1, 8)


@pytest.mark.parametrize("name", ["dp", "DataParallel", "data_parallel"])
def test_data_parallel_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match="drives all GPUs from one process"):
        spec_of(parallel=name)


def test_a_rank_and_the_joined_run_have_their_share_of_the_batch() -> None:
    each = spec_of(devices="cpu,cpu", batch=16)
    assert (each.rank_spec.batch, each.joined_spec.batch) == (16, 32)
    shared = spec_of(devices="cpu,cpu,cpu,cpu", batch=16, global_batch=32, slow_rank=0.2, parallel="fsdp")
    assert (shared.rank_spec.batch, shared.joined_spec.batch, shared.world_size) == (8, 32, 4)
    assert shared.rank_spec.device_names == () and shared.rank_spec.parallel == "ddp"
    alone = spec_of(batch=16)
    assert (alone.rank_spec.batch, alone.joined_spec.batch, alone.own_device) == (16, 16, None)


def test_a_device_beside_those_named_is_a_problem() -> None:
    spec = spec_of(devices="cuda:0,cuda:1")
    assert spec.own_device == "cuda:0" and not spec.problems("cuda:1")
    assert spec.problems("cpu") == ["--device cpu: the run takes place on cuda:0,cuda:1; leave --device out"]


def test_a_run_on_several_devices_is_not_compared() -> None:
    with pytest.raises(ValueError, match="is not compared"):
        build(ComparisonSpec, {"devices": "cpu,cuda:0", "fields": {"devices": "cpu,cpu"}})
