"""What is made of the dry runs of a spec: the largest batch, and the alternatives."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, WORKSPACE, Trace
from gpudash.memory.predicting.architecture import USUAL_WORKSPACE_BYTES, Architecture
from gpudash.memory.predicting.estimate import Alternative, Estimate, Target, judge
from gpudash.memory.predicting.memory_timeline import MemoryTimeline
from gpudash.memory.predicting.rank_estimates import of_ranks
from gpudash.specs import TrainingSpec
from gpudash.units import GIB, MIB
from gpudash.workloads.predicting import device_fit, own_code_process
from gpudash.workloads.predicting import estimate as predicting
from gpudash.workloads.predicting.device_fit import unchanged
from gpudash.workloads.predicting.model_estimate import FollowedCode
from gpudash.workloads.predicting.own_code_process import OwnCode
from tests.unit.memory.example_traces import holes

WEIGHT_BYTES = 64 * MIB
PER_ITEM = 32 * MIB


def training(spec: TrainingSpec, *_: Any, **__: Any) -> Trace:
    """Weights that are made twice and held once, a workspace, and activations by the batch."""
    trace = Trace(followed=3)
    for size, category in (
        (WEIGHT_BYTES, WEIGHTS),
        (WEIGHT_BYTES, WEIGHTS),
        (USUAL_WORKSPACE_BYTES, WORKSPACE),
        (PER_ITEM * spec.rank_batch, ACTIVATIONS),
    ):
        trace.sizes.append(size)
        trace.categories.append(category)
    trace.events.extend(array("q", [1, -1, 2, 3, 4]))
    return trace


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dry runs that take no time."""
    monkeypatch.setattr(predicting, "trace_of", training)
    monkeypatch.setattr(predicting, "flops_of", lambda spec, *_: 4 if spec.checkpointing else 3)


def predicted(target: Target, elsewhere: tuple[Target, ...] = (), **fields: Any) -> Estimate:
    question = predicting.Question(TrainingSpec(**fields), target, None, elsewhere)
    return list(predicting.estimate(question, None))[-1]  # type: ignore[arg-type]


def named(found: Estimate, words: str) -> Alternative:
    return next(alternative for alternative in found.alternatives if words in alternative.change)


SMALL = Target("sim:0", 2 * GIB, 2 * GIB)
LARGE = Target("sim:0", 24 * GIB, 24 * GIB)


def test_the_largest_batch_that_fits_is_found() -> None:
    beside = WEIGHT_BYTES + 10 * MIB
    assert predicted(SMALL, batch=8).largest_batch_size == (2 * GIB - beside) // PER_ITEM


def test_the_largest_batch_that_may_be_asked_for_is_marked_as_such() -> None:
    vast = Target("sim:0", 2**20 * GIB, 2**20 * GIB)
    found = predicted(vast, batch=8)
    assert (found.largest_batch_size, found.largest_batch_capped) == (65536, True)
    assert not predicted(SMALL, batch=8).largest_batch_capped


def test_the_largest_batch_is_found_by_few_dry_runs_although_memory_grows_by_whole_segments() -> None:
    followed: list[int] = []

    def tried(size: int) -> device_fit.Sized:
        followed.append(size)
        trace = training(TrainingSpec(batch=size))
        for block in range(40):  # as many small blocks, which segments of 20 MiB are shared by
            trace.sizes.append(size * 60_000)
            trace.categories.append(ACTIVATIONS)
            trace.events.append(5 + block)
        return device_fit.Sized.of(size, trace, LARGE)

    found = device_fit.largest(tried, 2, 65536, LARGE)
    assert found is not None and found.fits and not tried(found.size + 1).fits
    assert len(set(followed)) <= 6


def test_no_largest_batch_is_named_when_the_tries_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_fit, "MOST_TRIES", 1)
    assert predicted(SMALL, batch=1024).largest_batch_size is None


def test_a_batch_without_an_upper_bound_is_searched_as_well() -> None:
    class Boundless(TrainingSpec):
        batch: int = 8

    question = predicting.Question(Boundless(), SMALL)
    found = list(predicting.estimate(question, None))[-1]  # type: ignore[arg-type]
    assert found.largest_batch_size == predicted(SMALL, batch=8).largest_batch_size


def test_a_price_says_what_it_rests_on() -> None:
    found = predicted(SMALL, batch=128)
    accumulated, checkpointed = named(found, "accumulated over 4"), named(found, "activation checkpointing")
    assert (accumulated.slowdown, accumulated.slowdown_from) == (1.0, "the same products in smaller batches")
    assert (checkpointed.slowdown, checkpointed.slowdown_from) == (4 / 3, "FLOPs of the dry run")
    assert named(found, "bf16 autocast").slowdown_from == ""


def test_a_run_that_fits_is_not_offered_over_several_gpus() -> None:
    found = predicted(SMALL, (Target("sim:1", 2 * GIB, 2 * GIB),), batch=8)
    assert all(alternative.ranks is None for alternative in found.alternatives)


def test_what_does_not_fit_is_offered_over_the_gpus_there_are() -> None:
    found = predicted(Target("cuda:0", 2 * GIB, 2 * GIB), (Target("cuda:1", 2 * GIB, 2 * GIB),), batch=64)
    spread = named(found, "DDP over cuda:0, cuda:1")
    assert (spread.ranks, spread.fits, spread.changes_training) == (2, True, False)
    assert spread.fields == {"devices": "cuda:0,cuda:1", "parallel": "ddp", "global_batch": 64}


RANKS = (Target("cuda:0", 4 * GIB, 4 * GIB), Target("cuda:1", 2 * GIB, 2 * GIB))


def test_the_rank_with_least_memory_decides_and_the_batches_are_those_of_a_rank_and_of_all() -> None:
    spec = TrainingSpec(devices="cuda:0,cuda:1", global_batch=128)
    found = list(predicting.estimate(predicting.Question(spec, RANKS[0], None, (), RANKS), None))[-1]  # type: ignore[arg-type]
    alone = predicted(RANKS[1], batch=64)
    assert (found.deciding_rank, found.device, found.fits) == (1, "cuda:1", False)
    assert [rank.fits for rank in found.ranks] == [True, False]
    assert found.largest_batch_size == alone.largest_batch_size
    assert found.largest_global_batch == 2 * (alone.largest_batch_size or 0)
    smaller = next(one for one in found.alternatives if one.change.endswith("on each rank"))
    assert smaller.fields == {"global_batch": found.largest_global_batch}
    assert named(found, "FSDP2 instead of DDP").fields == {"parallel": "fsdp"}
    assert not [one for one in found.alternatives if one.device is not None]


def test_a_card_that_is_named_has_room_for_the_margin_too() -> None:
    exact, uncertain = (predicted(Target("cuda:0", GIB, GIB, margin_ratio=m), batch=104) for m in (0.0, 0.2))
    assert uncertain.minimum_capacity_bytes == exact.minimum_capacity_bytes
    assert named(exact, "a card").change == "a card with 4 GiB"
    assert named(uncertain, "a card").change == "a card with 6 GiB"


class Following:
    """A Python in which the code asked for the same every time."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def follow(self, what: Mapping[str, Any], _architecture: Architecture) -> FollowedCode:
        return FollowedCode(replace(self._trace, followed=what["steps"]), ("mine.py:3: it is finite",))


def test_code_of_one_s_own_is_told_what_would_let_it_fit_as_it_is() -> None:
    follower: Any = Following(training(TrainingSpec(batch=104)))
    code, other = OwnCode("mine:build", 4), Target("sim:1", 8 * GIB, 8 * GIB)
    found = own_code_process.estimate(code, follower, SMALL, [other])
    assert (found.workload, found.fits, ", 4 steps followed" in found.method) == ("mine:build", False, True)
    assert found.assumptions == ("mine.py:3: it is finite",)
    assert [one.change for one in found.alternatives if one.fits] == ["on sim:1", "a card with 4 GiB"]
    alone = own_code_process.estimate(code, follower, SMALL, [other], alternatives=False)
    assert alone.alternatives == ()


def test_code_and_models_of_one_s_own_are_told_with_their_timeline_where_it_is_asked_for() -> None:
    follower: Any = Following(training(TrainingSpec(batch=104)))
    query = {
        "id": 3,
        "callable": "mine:build",
        "steps": 4,
        "target": {"device": "sim:0", "capacity_bytes": 2 * GIB, "free_bytes": 2 * GIB},
        "timeline": True,
    }
    first, *others, last = own_code_process._answers(query, follower)
    timeline = MemoryTimeline.from_json(first["timeline"])
    held = timeline.in_use + timeline.overhead + int(timeline.reserved.max())
    assert held == timeline.in_use + first["estimate"]["needed_bytes"]
    assert all("timeline" not in answer for answer in (*others, last)) and last["final"]
    del query["timeline"]
    assert all("timeline" not in answer for answer in own_code_process._answers(query, follower))


def test_the_run_is_followed_on_the_card_that_it_is_to_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[Architecture] = []

    def trace(spec: TrainingSpec, *_given: Any, architecture: Architecture) -> Trace:
        followed.append(architecture)
        return training(spec)

    monkeypatch.setattr(predicting, "trace_of", trace)
    hopper, ada = Architecture((9, 0), 132), Architecture((8, 9), 128)
    target, other = replace(SMALL, architecture=hopper), Target("sim:1", GIB, GIB, architecture=ada)
    predicted(target, (other, Target("cpu", GIB, GIB)), batch=1024)
    assert set(followed) == {hopper, ada}


def test_on_the_cpu_there_are_no_workspaces() -> None:
    trace = training(TrainingSpec(batch=1))
    assert judge(trace, Target("sim:0"), "x").by_category[WORKSPACE] == USUAL_WORKSPACE_BYTES
    assert WORKSPACE not in judge(trace, Target("cpu"), "x").by_category


def test_a_run_as_it_is_may_fit_with_other_segments_on_another_device_or_a_larger_card() -> None:
    trace = holes()
    target, other = Target("sim:0", GIB, 100 * MIB), Target("sim:1", GIB, GIB)
    told = list(unchanged(lambda _target: trace, target, judge(trace, target, "mine:build"), [other]))
    assert [(one.allocator, one.device, one.fits) for one in told] == [
        ("expandable_segments:True", None, True),
        ("", "sim:1", True),
        ("", None, True),
    ]
    assert told[-1].change == "a card with 4 GiB"
    both = of_ranks([target, other], "ddp", lambda one: judge(trace, one, "mine:build"))
    assert [one.change for one in unchanged(lambda _target: trace, target, both, [])][-1] == "2 cards with 4 GiB each"
    settings = AllocatorSettings(expandable_segments=True)
    grown = Target("sim:0", GIB, 100 * MIB, settings=settings)
    assert not list(unchanged(lambda _target: trace, grown, judge(trace, grown, "mine:build"), []))
