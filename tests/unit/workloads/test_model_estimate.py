"""What is made of the dry runs of a model: largest sizes, what would fit at which price, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from gpudash.memory.allocator.trace import ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE, WEIGHTS, Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Alternative, Estimate, ModelFacts, Target
from gpudash.memory.predicting.prediction import price
from gpudash.specs import ModelSpec
from gpudash.specs.changes import RECIPE_NAMES, changes
from gpudash.units import GIB, MIB
from gpudash.workloads.predicting.model_estimate import SAVINGS_S, SEARCHED_S, FollowedCode, estimates
from gpudash.workloads.predicting.savings import promising

CARD = Target("sim:0", 2 * GIB, 2 * GIB)
FORWARD = 100
"""FLOPs of a sample's forward pass."""


class Follower:
    """Follows a model that is made up: 1 GiB of weights, of which a shard has its part, and 512 MiB for each sample of
    1024 tokens.

    Attributes:
        processor_s: that it has had.
        costs: processor time of each dry run.
    """

    def __init__(self, costs: float = 0.0) -> None:
        self.processor_s = 0.0
        self.costs = costs

    def follow(self, what: Mapping[str, Any], _architecture: Architecture) -> FollowedCode:
        self.processor_s += self.costs
        asked = what["model"]
        sequence = asked["sequence"] or 1024
        kept = 512 * MIB * asked["batch"] * sequence // 1024
        shards = asked["devices"].count(",") + 1 if asked["parallel"] == "fsdp" else 1
        trace = Trace(followed=2)
        for size, category in (
            (GIB // 4 if asked["task"] == "qlora" else GIB // shards, WEIGHTS),
            (kept // 8 if asked["checkpointing"] else kept, ACTIVATIONS),
        ):
            trace.sizes.append(size)
            trace.categories.append(category)
            trace.events.append(len(trace.sizes))
        passes = {"train": 3, "lora": 2, "qlora": 2, "infer": 1}[asked["task"]] + asked["checkpointing"]
        offloaded = {"pinned_bytes": GIB, "to_device_bytes": GIB} if asked["offload"] != "none" else {}
        facts = ModelFacts(
            "Made", 8, GIB, "bfloat16", sequence, 8192, flops=FORWARD * passes * asked["batch"], **offloaded
        )
        return FollowedCode(trace, (), facts)


def predicted(follower: Follower, card: Target = CARD, **fields: Any) -> list[Estimate]:
    spec = ModelSpec(path="/", **{"batch": 4, **fields})
    return list(estimates(spec, follower, card))  # type: ignore[arg-type]  # made, and needs no torch


@pytest.fixture(scope="module")
def ways() -> dict[str, Alternative]:
    return {way.change: way for way in predicted(Follower())[-1].alternatives}


def test_the_largest_batch_and_the_longest_sequence_are_searched() -> None:
    found = predicted(Follower(), batch=1)[-1]
    assert (found.largest_batch_size, found.largest_sequence, found.untried) == (2, 2048, ())


def test_no_size_is_tried_where_the_weights_alone_are_too_many() -> None:
    follower = Follower(costs=1.0)
    small = Target("sim:0", GIB // 2, GIB // 2)
    coming = estimates(ModelSpec(path="/", batch=4), follower, small)  # type: ignore[arg-type]
    found = next(found for found in coming if found.largest_sequence is not None)
    assert (found.largest_batch_size, found.largest_sequence, follower.processor_s) == (0, 0, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("activation checkpointing", "+33 % time, from FLOPs of the dry run"),
        ("batch 1, accumulated over 4", "same time, from the same products in smaller batches"),
        ("batch 2", "may change convergence"),
        ("fused AdamW", "the same update in one kernel"),
        ("activations on the host (save_on_cpu)", "1.00 GiB of the host's memory"),
        ("weights and optimizer on the host (FSDP2), and checkpointing", "+33 % time"),
        ("weights and optimizer on the host (FSDP2)", "the CPU updates the weights"),
        ("QLoRA", "weights rounded to 4 bits"),
        ("LoRA and checkpointing", "same time, from FLOPs of the dry run; adapters of rank 16 learn"),
        ("8-bit AdamW and checkpointing", "+33 % time, from FLOPs of the dry run; its state is rounded to 8 bits"),
        ("Adafactor and checkpointing", "it keeps means of rows and columns"),
    ],
)
def test_each_change_of_a_model_says_its_price(change: str, words: str, ways: dict[str, Alternative]) -> None:
    assert words in price(ways[change])


def test_unpacking_weights_is_no_product_so_that_no_time_is_told(ways: dict[str, Alternative]) -> None:
    assert ways["QLoRA and checkpointing"].slowdown is None


def test_every_change_that_is_tried_has_a_price() -> None:
    for fields in ({}, {"attention": "eager", "precision": "fp32"}, {"task": "lora"}, {"task": "infer"}):
        spec = ModelSpec.model_validate({"path": "/", "batch": 4, **fields})
        found = {way.change: way for way in predicted(Follower(), **fields)[-1].alternatives}
        assert [change.label for change in changes(spec) if not price(found[change.label])] == []


def test_what_is_still_to_be_looked_for_is_named_until_it_was() -> None:
    coming = [found.untried for found in predicted(Follower())]
    assert coming[0][:3] == ("the largest batch", "the longest sequence", "activation checkpointing")
    assert [len(left) for left in coming] == sorted((len(left) for left in coming), reverse=True)
    assert coming[-1] == ()


@pytest.mark.parametrize("batch", [1, 4])
def test_what_a_change_comes_to_is_reported_with_the_estimate_that_has_it_last(batch: int) -> None:
    reported: list[Estimate] = []
    drawn: dict[str, int | None] = {}
    spec = ModelSpec(path="/", batch=batch)
    follower = Follower()
    for found in estimates(
        spec,
        follower,  # type: ignore[arg-type]  # made, and needs no torch
        CARD,
        followed=lambda _trace, _target, found: reported.append(found),
    ):
        if reported and found.alternatives:
            drawn[found.alternatives[-1].change] = reported[-1].needed_bytes
        reported.clear()
    tried = {way.change: way.needed_bytes for way in found.alternatives if way.fields}
    assert drawn == tried
    assert bool(tried) is (batch == 4), "what would only save something is not drawn"


def test_processor_time_that_is_used_up_ends_the_search_and_what_it_left_out_is_named() -> None:
    found = predicted(Follower(costs=SEARCHED_S + 1))[-1]
    assert (found.largest_batch_size, found.largest_sequence) == (None, None)
    assert found.untried == ("the largest batch", "the longest sequence")
    assert found.alternatives, "what would fit is tried all the same"


def test_what_recipes_would_save_is_said_though_it_fits_and_what_saves_nothing_is_left_out() -> None:
    found = predicted(Follower(), batch=1)[-1]
    assert found.has_room and not found.alternatives
    named = [saving.change for saving in found.savings]
    assert named == ["torchtune's recipe", "Unsloth's recipe", "activation checkpointing", "selective checkpointing"]
    assert {saving.saved_bytes for saving in found.savings} == {448 * MIB}
    assert [saving.fields.get("keep_16_bits") for saving in found.savings] == [None] * 4, "of QLoRA alone"
    assert "--recipe torchtune: checkpointing, cross entropy in chunks" in price(found.savings[0])


def test_a_change_of_what_has_little_memory_at_the_peak_is_not_followed() -> None:
    parts = {"weights": GIB, "optimizer state": 2 * GIB, "activations": MIB}
    found = Estimate(workload="model", device="sim:0", peak_allocated_bytes=3 * GIB, by_category=parts)
    labels = [change.label for change in promising(ModelSpec(path="/"), found)]
    assert "8-bit AdamW" in labels and "activation checkpointing" not in labels
    assert predicted(Follower(), batch=1, task="infer")[-1].savings == ()


def test_savings_end_with_their_time_and_what_was_not_tried_of_them_is_named() -> None:
    found = predicted(Follower(costs=SAVINGS_S), batch=1)[-1]
    assert [saving.change for saving in found.savings] == ["torchtune's recipe"]
    assert "activation checkpointing" in found.untried


def test_where_it_does_not_fit_the_savings_are_those_of_what_was_tried_for_it() -> None:
    found = predicted(Follower())[-1]
    tried = {way.change: way.needed_bytes for way in found.alternatives}
    assert found.savings and not found.has_room and found.needed_bytes is not None
    for saving in found.savings:
        assert saving.saved_bytes == found.needed_bytes - (tried[saving.change] or 0)


class DetailedFollower(Follower):
    """With logits, gradients and an optimizer's state too, so that each flag has a size of its own."""

    LOGITS: ClassVar = {"full": 700, "chunked": 90, "fused": 40}
    STATES: ClassVar = {"adamw": 640, "adamw_fused": 600, "adamw8bit": 170, "paged_adamw8bit": 20, "sgd": 1}
    KEPT: ClassVar = {"nothing": 50, "products": 310, "layers": 390}

    def follow(self, what: Mapping[str, Any], _architecture: Architecture) -> FollowedCode:
        asked = what["model"]
        parts = {
            WEIGHTS: 300 if asked["keep_16_bits"] and asked["task"] != "train" else 460,
            GRADIENTS: 30 if asked["optimizer_in_backward"] else 410,
            OPTIMIZER_STATE: self.STATES[asked["optimizer"]],
            ACTIVATIONS: self.LOGITS[asked["loss"]] + (self.KEPT[asked["keeps"]] if asked["checkpointing"] else 900),
        }
        if asked["offload"] == "activations":
            parts[ACTIVATIONS] //= 3
        trace = Trace(followed=2)
        for number, (category, size) in enumerate(parts.items(), 1):
            trace.sizes.append(size * MIB)
            trace.categories.append(category)
            trace.events.append(number)
        return FollowedCode(trace, (), ModelFacts("Made", 8, GIB, "bfloat16", 1024, 8192, flops=FORWARD))


FLAGS: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": "adamw8bit"},
    {"optimizer": "adamw_fused", "loss": "fused"},
    {"checkpointing": True, "keeps": "products"},
    {"checkpointing": True, "keeps": "layers", "loss": "chunked", "optimizer": "sgd"},
    {"task": "lora", "optimizer": "paged_adamw8bit"},
    {"task": "qlora", "checkpointing": True, "keep_16_bits": True},
    {"optimizer_in_backward": True, "offload": "activations"},
)


@pytest.mark.parametrize("flags", FLAGS)
def test_each_saving_is_what_is_needed_without_its_flag_less_what_is_needed_with_it(flags: dict[str, Any]) -> None:
    def asked(**more: Any) -> Estimate:
        return predicted(DetailedFollower(), Target("sim:0", 8 * GIB, 8 * GIB), **{**flags, **more})[-1]

    found = asked()
    assert found.savings and found.needed_bytes is not None
    for saving in found.savings:
        recipe = next((name for name in RECIPE_NAMES if RECIPE_NAMES[name] == saving.change), None)
        changed = asked(**saving.fields) if recipe is None else asked(recipe=recipe)
        assert changed.needed_bytes is not None
        assert saving.saved_bytes == found.needed_bytes - changed.needed_bytes, saving.change


def on_two(*, rooms: tuple[int, int] = (2 * GIB, 2 * GIB), **fields: Any) -> Estimate:
    """The whole answer for a rank on each of two cards with so much room."""
    ranks = [Target(f"sim:{number}", room, room) for number, room in enumerate(rooms)]
    spec = ModelSpec(path="/", **{"batch": 4, "devices": "sim:0,sim:1", **fields})
    return list(estimates(spec, Follower(), ranks[0], (), ranks))[-1]  # type: ignore[arg-type]


def test_of_several_ranks_the_one_with_least_room_decides() -> None:
    found = on_two(batch=1, rooms=(4 * GIB, 2 * GIB))
    assert (found.strategy, found.deciding_rank, found.device) == ("ddp", 1, "sim:1")
    assert [rank.peak_allocated_bytes for rank in found.ranks] == [GIB + 512 * MIB] * 2
    assert (found.largest_batch_size, found.largest_global_batch) == (2, 4)


def test_shards_are_a_way_out_for_copies() -> None:
    found = on_two(batch=3)
    assert found.fits is False
    shards = next(way for way in found.alternatives if way.change == "FSDP2 instead of DDP")
    assert (shards.fits, shards.fields) == (True, {"parallel": "fsdp"})
    assert "gathered before they are used" in price(shards)
    assert {way.ranks for way in found.alternatives} == {None}, "there are several already"


ROOM = 9 * GIB // 4


def spread(cards: int = 1, **fields: Any) -> list[Alternative]:
    """Ways out over several GPUs of a model that does not fit one."""
    there = [Target(f"sim:{number}", ROOM, ROOM) for number in range(cards)]
    found = list(estimates(ModelSpec(path="/", **fields), Follower(), there[0], there[1:]))[-1]  # type: ignore[arg-type]
    return [way for way in found.alternatives if way.ranks is not None]


def test_a_batch_is_shared_out_over_the_gpus_that_are_there() -> None:
    (found,) = spread(2, batch=4)
    assert (found.change, found.fits) == ("DDP over sim:0, sim:1 (SIMULATED)", True)
    assert found.fields == {"devices": "sim:0,sim:1", "parallel": "ddp", "batch": 2}
    assert "same global batch" in price(found)


def test_accumulated_passes_are_shared_out_where_the_batch_is_not() -> None:
    (found,) = spread(2, batch=3, accumulation=4)
    assert found.fields == {"devices": "sim:0,sim:1", "parallel": "fsdp", "accumulation": 2}


def test_a_batch_that_cannot_be_shared_out_is_said_to_grow() -> None:
    (found,) = spread(batch=3)
    assert (found.change, found.fits, found.fields) == ("2 × 2.25 GiB with FSDP2", True, {})
    assert price(found) == (
        "takes 2 GPUs, time not predicted; a step learns from 2 times as many samples; may change convergence"
    )


@pytest.mark.parametrize("fields", [{"task": "infer", "batch": 8}, {"optimizer": "adafactor", "batch": 3}])
def test_what_cannot_be_sharded_is_no_way_out(fields: dict[str, Any]) -> None:
    assert spread(**fields) == []
