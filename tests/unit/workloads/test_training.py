from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.records import EpochFinished, Note, StageFinished, StepFinished, Topic, Transfer
from gpudash.workloads.programs.batches import batches_per_epoch, classes, data, epoch_order, placed
from gpudash.workloads.programs.epochs import observation
from gpudash.workloads.programs.text import corpus
from gpudash.workloads.programs.training import audit, make_interruptible, model_of, move, run
from gpudash.workloads.programs.training_step import Mlp, Transformer
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import Cancelled, GuardRefused, WorkloadError
from tests.unit.workloads.conftest import Reported, context_on

SMALL: dict[str, Any] = {"width": 16, "depth": 2, "batch": 4, "sequence": 16, "steps": 6}
MLP: dict[str, Any] = {"model": "mlp", "width": 32, "depth": 2, "batch": 32, "steps": 60}


def trained(told: Reported, context: Context, **values: Any) -> tuple[dict[str, Any], list[StepFinished]]:
    torch.manual_seed(values.get("seed", 0))
    result = run(build(TrainingSpec, values), context)  # type: ignore[arg-type]
    context.flush()
    return dict(result), [event for event in told if isinstance(event, StepFinished)]


def test_a_transformer_tells_loss_accuracy_and_throughput_of_every_step(context: Context, told: Reported) -> None:
    result, steps = trained(told, context, **SMALL)

    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert all(step.loss is not None and step.accuracy is not None and step.throughput for step in steps)
    assert steps[0].loss == pytest.approx(math.log(result["corpus"]["vocabulary"]), rel=0.2)
    assert result["items_per_second"] == pytest.approx(result["steps_per_second"] * 64)
    assert result["item"] == "character"


def test_the_stages_of_a_step_are_told(context: Context, told: Reported) -> None:
    trained(told, context, **SMALL)

    names = [event.name for event in told if isinstance(event, StageFinished)]
    assert list(dict.fromkeys(names)) == ["batch", "forward", "backward", "optimizer", "read loss"]
    counts = sum(e.count for e in told if isinstance(e, StageFinished) and e.name == "forward")
    assert counts == 6


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_every_optimizer_lowers_the_loss(context: Context, told: Reported, optimizer: str) -> None:
    rate = 0.003 if optimizer.startswith("adam") else 0.1
    _, steps = trained(told, context, **MLP, optimizer=optimizer, learning_rate=rate)

    losses = [step.loss or math.nan for step in steps]
    assert sum(losses[-10:]) / 10 < 0.8 * losses[0]


def test_a_learning_rate_of_nothing_teaches_nothing(context: Context, told: Reported) -> None:
    _, steps = trained(told, context, **MLP, learning_rate=0)

    losses = [step.loss or math.nan for step in steps]
    assert sum(losses[-10:]) / 10 == pytest.approx(sum(losses[:10]) / 10, rel=0.1)


@pytest.mark.parametrize(
    "values",
    [SMALL, MLP, {**SMALL, "precision": "bf16"}, {**SMALL, "model": "cnn", "precision": "fp16", "checkpointing": True}],
)
def test_the_same_seed_gives_the_same_losses_bit_for_bit(values: dict[str, Any]) -> None:
    def losses(seed: int) -> list[float | None]:
        told = Reported()
        context = context_on(reported=told)
        return [step.loss for step in trained(told, context, **values, seed=seed)[1]]

    assert losses(3) == losses(3) != losses(4)


@pytest.mark.parametrize(
    ("model", "batches"),
    [("transformer", "resident"), ("transformer", "pingpong"), ("mlp", "pingpong"), ("cnn", "resident")],
)
def test_where_the_batches_live_changes_no_loss(model: str, batches: str) -> None:
    def losses(batches: str) -> list[float | None]:
        told = Reported()
        context = context_on(reported=told)
        return [step.loss for step in trained(told, context, **{**SMALL, "model": model}, batches=batches)[1]]

    assert losses(batches) == losses("moved")


def test_epochs_have_means_times_and_a_word_each(context: Context, told: Reported) -> None:
    result, steps = trained(told, context, **{**SMALL, "steps": 7, "epochs": 3})

    epochs = [event for event in told if isinstance(event, EpochFinished)]
    assert [epoch.epoch for epoch in epochs] == [1, 2, 3] == [row["epoch"] for row in result["epochs"]]
    assert epochs[0].loss == pytest.approx(sum(step.loss or 0 for step in steps[:3]) / 3)
    assert all(epoch.device == "cpu" and epoch.observation for epoch in epochs)


def test_keeping_intermediates_announces_what_it_keeps(told: Reported) -> None:
    def asked(**values: Any) -> int:
        sizes: list[int] = []
        context = context_on(
            reported=told,
            refuse=lambda size, memory: sizes.append(size),  # type: ignore[func-returns-value]
        )
        run(TrainingSpec(**SMALL, **values), context)
        return sum(sizes)

    vocabulary = len(corpus().vocabulary)
    assert asked(keep_intermediates=True) - asked() == 6 * 4 * 16 * vocabulary * 4


def test_memory_is_announced_before_the_model_is_made(told: Reported) -> None:
    context = context_on(reported=told, refuse=lambda size, memory: f"no {size}")

    with pytest.raises(GuardRefused) as refusal:
        model_of(TrainingSpec(width=16384, depth=256), 96, context)
    assert refusal.value.requested_bytes > 2**40


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_resident_batches_are_announced_and_copied_once_as_a_told_stage(
    told: Reported, mode: Literal["train", "inference"]
) -> None:
    asked: list[tuple[int, str]] = []
    context = context_on(
        reported=told,
        refuse=lambda *announced: asked.append(announced),  # type: ignore[func-returns-value]
    )
    trained(told, context, **SMALL, mode=mode, batches="resident")

    stages = [event for event in told if isinstance(event, StageFinished) and event.name.startswith("batch")]
    count = 2 if mode == "train" else 1
    assert {stage.name for stage in stages} == {"batches"} and sum(stage.count for stage in stages) == count
    assert all(stage.from_device == stage.to_device == "cpu" and stage.bytes == 0 for stage in stages)
    inputs = 4 * 16 * 8
    assert (2 * count * inputs if mode == "train" else inputs, "cpu") in asked


def test_a_batch_that_is_copied_to_another_device_is_a_transfer_of_its_bytes(context: Context, told: Reported) -> None:
    inputs = torch.ones(4, 16)
    there = placed("batches", (inputs, inputs), torch.device("meta"), context)
    context.flush()

    assert [tensor.device.type for tensor in there] == ["meta", "meta"]
    (stage,) = (event for event in told if isinstance(event, StageFinished))
    assert (stage.name, stage.bytes, stage.copied) == ("batches", 2 * 4 * 16 * 4, True)
    (transfer,) = (event for event in told if isinstance(event, Transfer))
    assert (transfer.direction, transfer.bytes) == ("h2d", 2 * 4 * 16 * 4)


def test_resident_batches_that_move_with_the_model_are_announced_and_told(told: Reported) -> None:
    from gpudash.workloads.programs import training

    asked: list[tuple[int, str]] = []
    context = context_on(
        "meta",
        reported=told,
        refuse=lambda *announced: asked.append(announced),  # type: ignore[func-returns-value]
    )
    spec = TrainingSpec(**SMALL, batches="resident", move_at_epoch=2)
    source = data(spec, context)
    trainer = training._Trainer(spec, context, source, model_of(spec, source.outputs, context))
    trainer._make_resident()
    trainer._move()
    context.flush()

    whole = 2 * 2 * 4 * 16 * 8
    assert [announced for announced in asked if announced[0] == whole] == [(whole, "cpu"), (whole, "meta")]
    assert sum(event.bytes for event in told if isinstance(event, Transfer) and event.to_device == "meta") > whole
    assert trainer._resident is not None and trainer._resident[0][0].device.type == "meta"


def test_the_hosts_memory_for_a_batch_of_text_is_asked_for_on_any_device(told: Reported) -> None:
    context = context_on(
        "meta", reported=told, refuse=lambda size, memory: f"{memory} has no {size}" if size > 2**33 else None
    )

    with pytest.raises(GuardRefused, match="cpu has no"):
        data(TrainingSpec(batch=65536, sequence=8192), context)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_told_and_ends_the_run(
    context: Context, told: Reported, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    _break_loss(monkeypatch, loss)

    with pytest.raises(WorkloadError, match=r"The loss is (NaN|infinite) at step 1") as error:
        trained(told, context, **MLP)
    steps = [event for event in told if isinstance(event, StepFinished)]
    assert len(steps) == 1 and steps[0].loss is not None and not math.isfinite(steps[0].loss)
    assert error.value.kind == "nan" and "--on-nan continue" in error.value.remedy


def test_a_loss_that_is_no_number_may_be_gone_on_with_and_is_told_once(
    context: Context, told: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break_loss(monkeypatch, math.nan)

    result, steps = trained(told, context, **MLP, on_nan="continue")

    assert len(steps) == 60 and all(math.isnan(step.loss or 0) for step in steps)
    assert len([event for event in told if isinstance(event, Note) and event.topic == "nan"]) == 1
    assert math.isnan(result["epochs"][0]["loss"]) and "no finite loss" in result["epochs"][0]["observation"]


def _break_loss(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    whole = functional.cross_entropy
    monkeypatch.setattr(functional, "cross_entropy", lambda *given: whole(*given) * value)


def test_a_learning_rate_that_blows_up_ends_in_words_through_the_worker(bench: Any) -> None:
    ending = bench.run("training", **{**MLP, "depth": 8}, optimizer="sgd", learning_rate=100)

    assert ending.kind == "RunFailed" and ending.error == "nan" and ending.result["parameters"]


def test_the_placement_audit_says_that_everything_is_on_the_device(context: Context, told: Reported) -> None:
    result, _ = trained(told, context, **SMALL)

    (note,) = [event for event in told if isinstance(event, Note) and event.topic == "placement"]
    assert note.text.startswith("All on cpu: parameters") and note.details["strays"] == []
    groups = result["placement"]["groups"]
    assert groups["parameters"]["cpu"]["bytes"] == 4 * result["parameters"]
    assert groups["optimizer state"]["cpu"]["bytes"] >= 8 * result["parameters"]
    assert groups["batches"]["cpu"]["count"] == 2


def test_a_stray_parameter_is_named() -> None:
    model = Mlp(4, 8, 1, 2)
    model.layers[0].to("meta")

    words, facts = audit(model, None, (torch.ones(2, 4),), torch.device("cpu"))

    assert words.startswith("Not on cpu: parameters: layers.0.weight on meta")
    assert [stray.split(": ")[1] for stray in facts["strays"]] == ["layers.0.weight on meta", "layers.0.bias on meta"]


def test_moving_takes_the_optimizers_state_along_and_leaves_its_step_count() -> None:
    model = Mlp(4, 8, 1, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

    size = move(model, optimizer, torch.device("meta"))

    words, facts = audit(model, optimizer, (), torch.device("meta"))
    assert facts["strays"] == [] and words.startswith("All on meta")
    assert facts["groups"]["optimizer state"]["cpu"]["count"] == 4
    assert size >= 3 * sum(parameter.nbytes for parameter in model.parameters())


def test_moving_at_an_epoch_needs_another_device_and_an_epoch_that_comes() -> None:
    assert "needs a CUDA device" in TrainingSpec(move_at_epoch=2).problems("cpu")[0]
    assert TrainingSpec(move_at_epoch=2).problems("cuda:0") == TrainingSpec(move_at_epoch=2).problems("sim:0") == []
    with pytest.raises(ValueError, match="epoch 4 never comes"):
        build(TrainingSpec, {"move_at_epoch": 4})


def test_fewer_steps_than_the_default_epochs_are_a_run_and_more_epochs_than_steps_are_refused() -> None:
    assert TrainingSpec(steps=1).passes == 1
    with pytest.raises(ValueError, match="need at least as many steps"):
        build(TrainingSpec, {"steps": 2, "epochs": 3})


def test_inference_tells_latency_and_throughput_and_no_loss(context: Context, told: Reported) -> None:
    result, steps = trained(told, context, **{**SMALL, "steps": 12}, mode="inference")

    assert 0 < result["latency_p50_seconds"] <= result["latency_p95_seconds"]
    assert result["items_per_second"] > 0 and result["epochs"] == []
    assert len(steps) == 12 and all(step.loss is None and step.throughput for step in steps)


@pytest.mark.parametrize("batches", ["moved", "resident"])
def test_inference_on_text_shows_what_it_writes_on(context: Context, told: Reported, batches: str) -> None:
    values = {**SMALL, "steps": 12, "batches": batches, "pretraining": 30, "learning_rate": 0.03}
    result, _ = trained(told, context, **values, mode="inference")
    spec = build(TrainingSpec, {**values, "mode": "inference"})
    assert isinstance(spec, TrainingSpec)
    first = data(spec, context).batch(0)[0].tolist()
    vocabulary = corpus().vocabulary

    assert result["pretraining"] == 30
    assert [told["prompt"] for told in result["predictions"]] == [
        bytes(vocabulary[number] for number in row).decode(errors="replace") for row in first
    ]
    assert all(len(told["text"]) == 12 for told in result["predictions"])
    notes = [event for event in told if isinstance(event, Note) and event.topic == Topic.PREDICTIONS]
    assert notes[-1].details == {"step": 12, "predictions": result["predictions"]}


def test_what_is_written_on_is_the_likeliest_character_after_what_stands_there(
    context: Context, told: Reported
) -> None:
    values = {**SMALL, "steps": 3, "mode": "inference"}
    results = [trained(told, context, **values, batches=batches)[0] for batches in ("moved", "resident")]
    spec = build(TrainingSpec, values)
    assert isinstance(spec, TrainingSpec)
    source = data(spec, context)
    torch.manual_seed(0)
    model = model_of(spec, source.outputs, context).eval()
    window, expected = source.batch(0)[0], b""
    for _ in range(3):
        newest = model(window)[:, -1:].argmax(-1)
        expected += bytes([corpus().vocabulary[int(newest[0, 0])]])
        window = torch.cat((window[:, 1:], newest), 1)

    for result in results:
        assert result["predictions"][0]["text"] == expected.decode(errors="replace")


@pytest.mark.parametrize("batches", ["moved", "resident"])
def test_inference_of_classes_shows_the_class_and_how_sure(context: Context, told: Reported, batches: str) -> None:
    values = {**MLP, "steps": 5, "batches": batches, "mode": "inference"}
    learnt, _ = trained(told, context, **values, pretraining=60)
    random, _ = trained(told, context, **values)

    for result in (learnt, random):
        assert len(result["predictions"]) == 4
        assert all(0.1 <= told["probability"] <= 1 for told in result["predictions"])
    assert all(told["class"] == told["expected"] for told in learnt["predictions"])
    assert max(told["probability"] for told in random["predictions"]) < 0.5


def test_stop_takes_effect_within_a_long_step(context: Context, told: Reported) -> None:
    spec = TrainingSpec(width=256, depth=4, batch=64, sequence=64)
    model = Transformer(10, 32, 2, 1, 8)
    layers: list[str] = []

    def check() -> None:
        layers.append("seen")
        context.check_stopped()

    make_interruptible(model, spec, torch.device("cpu"), check)
    loss = model(torch.zeros(1, 8, dtype=torch.int64)).sum()
    forward = len(layers)
    told.requests.stop.set()

    with pytest.raises(Cancelled):
        loss.backward()
    assert forward > 10 and len(layers) == forward + 1
    with pytest.raises(Cancelled):
        model(torch.zeros(1, 8, dtype=torch.int64))
    assert len(layers) == forward + 2


def test_a_short_step_is_not_looked_into(context: Context) -> None:
    model = Mlp(4, 8, 1, 2)
    make_interruptible(model, TrainingSpec(**MLP), torch.device("cpu"), lambda: pytest.fail("looked"))

    model(torch.ones(1, 4)).sum().backward()


def test_determinism_is_asked_for_during_the_run_only(context: Context, told: Reported) -> None:
    seen: list[bool] = []
    step = context.step
    context.step = lambda *given, **named: (  # type: ignore[method-assign]
        seen.append(torch.are_deterministic_algorithms_enabled()),
        step(*given, **named),
    )
    trained(told, context, **SMALL, deterministic=True)

    assert seen == [True] * 6 and not torch.are_deterministic_algorithms_enabled()


@settings(max_examples=40)
@given(steps=st.integers(1, 200), epochs=st.integers(1, 20), seed=st.integers(0, 2**31 - 1))
def test_epochs_together_have_exactly_the_steps_asked_for(steps: int, epochs: int, seed: int) -> None:
    spec = TrainingSpec(steps=steps, epochs=min(epochs, steps), seed=seed)

    order = [epoch_order(spec, epoch) for epoch in range(1, spec.passes + 1)]

    assert sum(len(part) for part in order) >= steps > sum(len(part) for part in order) - spec.passes
    assert all(sorted(part) == list(range(batches_per_epoch(spec))) for part in order)


@pytest.mark.parametrize(
    ("device", "loss", "seconds", "lost", "words"),
    [
        ("cpu", 1.0, 1.0, 0, "loss fell by 50 %"),
        ("cpu", 2.01, 1.0, 0, "loss stayed where it was"),
        ("cpu", 3.0, 2.0, 0, "loss rose by 50 %; took 2.0 s instead of 1.0 s"),
        ("cuda:0", 1.0, 0.25, 0, "moved from cpu to cuda:0: 4.0× as fast"),
        ("cuda:0", 1.0, 2.0, 0, "moved from cpu to cuda:0: 2.0× slower"),
        ("sim:0", 1.0, 2.0, 0, "moved from cpu to sim:0 (SIMULATED), where times are the CPU's"),
        ("cpu", math.nan, 1.0, 5, "5 steps had no finite loss"),
    ],
)
def test_an_epoch_is_observed_against_the_one_before(
    device: str, loss: float, seconds: float, lost: int, words: str
) -> None:
    before = EpochFinished(time_s=0, epoch=1, device="cpu", loss=2.0, accuracy=0.1, seconds=1.0, observation="")

    assert observation(before, device, loss, seconds, lost) == words
    assert observation(None, "cpu", 1.0, 1.0, 0) == "first epoch, with the warm-up"


def test_no_speed_of_a_simulated_gpu_is_told_of_an_epoch() -> None:
    before = EpochFinished(time_s=0, epoch=1, device="sim:0", loss=2.0, accuracy=0.1, seconds=1.0, observation="")
    assert observation(before, "sim:0", 1.0, 9.0, 0) == "loss fell by 50 %"
    back = observation(before, "cpu", 1.0, 0.1, 0)
    assert back == "moved from sim:0 (SIMULATED) to cpu, where times are the CPU's"


def test_the_generated_classes_can_be_told_apart_and_are_the_same_for_a_seed() -> None:
    points, labels = classes(500, 1)
    again, _ = classes(500, 1)

    assert points.shape == (500, 32) and set(labels.tolist()) == set(range(10)) and torch.equal(points, again)


def test_the_default_run_learns_more_than_how_often_each_character_occurs(context: Context, told: Reported) -> None:
    result, steps = trained(told, context, steps=70)

    losses = sorted(step.loss or math.nan for step in steps[-20:])
    assert losses[10] <= 0.55 * (steps[0].loss or 0) and losses[10] < result["unigram_entropy"]
    accuracies = [step.accuracy or 0 for step in steps[-20:]]
    assert sum(accuracies) / 20 > result["most_frequent_share"]
