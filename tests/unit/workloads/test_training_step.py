"""One optimizer step: the same loss and weights however it is cut up, checkpointed or rounded."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.records import StageFinished, StepFinished
from gpudash.workloads.programs.batches import Batch, ClassBatches, images, micro_batches, text_batch
from gpudash.workloads.programs.training import run, step_bytes
from gpudash.workloads.programs.training_step import InferenceStep, TrainingStep, build_model, optimizer_of
from tests.unit.workloads.conftest import Reported, context_on

MODELS = ["transformer", "mlp", "cnn"]
SMALL: dict[str, Any] = {"width": 16, "depth": 3, "batch": 8, "sequence": 16, "steps": 4}
OUTPUTS = 10


def spec_of(**values: Any) -> TrainingSpec:
    made = build(TrainingSpec, {**SMALL, **values})
    assert isinstance(made, TrainingSpec)
    return made


def batch_of(spec: TrainingSpec) -> Batch:
    """What a step of ``spec`` takes, whatever its number of micro-batches."""
    if spec.model == "transformer":
        text = torch.randint(OUTPUTS, (500,), generator=torch.Generator().manual_seed(1))
        return text_batch(text, spec.step_batch, spec.sequence, spec.seed, 0)
    context = context_on()
    return ClassBatches(spec, context).batch(0)


def stepped(spec: TrainingSpec, steps: int = 2) -> tuple[list[float], torch.Tensor]:
    """Losses of some steps on one batch, and all weights afterwards."""
    torch.manual_seed(spec.seed)
    model = build_model(spec, OUTPUTS)
    step = TrainingStep(spec, model, optimizer_of(spec, model), torch.device("cpu"))
    losses = [float(step(micro_batches(batch_of(spec), spec.batch))[0]) for _ in range(steps)]
    return losses, torch.cat([weight.detach().flatten() for weight in model.parameters()])


def losses_of(**values: Any) -> list[float]:
    """Losses of a whole run on the CPU."""
    told = Reported()
    context = context_on(reported=told)
    torch.manual_seed(0)
    run(spec_of(**values), context)
    context.flush()
    return [event.loss or math.nan for event in told if isinstance(event, StepFinished)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_checkpointing_changes_no_loss_and_no_weight(model: str, precision: str) -> None:
    plain = stepped(spec_of(model=model, precision=precision))
    again = stepped(spec_of(model=model, precision=precision, checkpointing=True))

    assert plain[0] == again[0] and plain[0][1] < plain[0][0]
    assert torch.equal(plain[1], again[1])


@pytest.mark.parametrize("model", MODELS)
def test_accumulated_micro_batches_are_one_larger_batch(model: str) -> None:
    whole = stepped(spec_of(model=model, batch=8, optimizer="momentum"))
    parts = stepped(spec_of(model=model, batch=2, accumulation=4, optimizer="momentum"))

    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    assert torch.allclose(parts[1], whole[1], atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_that_accumulates_takes_the_same_data_as_one_with_the_larger_batch(model: str) -> None:
    whole = losses_of(model=model, batch=8)

    assert losses_of(model=model, batch=2, accumulation=4) == pytest.approx(whole, rel=1e-3)
    assert losses_of(model=model, batch=2, accumulation=4, batches="resident") == pytest.approx(whole, rel=1e-3)


@settings(deadline=None, max_examples=25)
@given(
    model=st.sampled_from(MODELS),
    parts=st.integers(1, 5),
    rows=st.integers(1, 4),
    checkpointing=st.booleans(),
    depth=st.integers(1, 6),
)
def test_any_way_of_cutting_a_step_up_gives_its_loss(
    model: str, parts: int, rows: int, checkpointing: bool, depth: int
) -> None:
    common: dict[str, Any] = {"model": model, "depth": depth, "width": 8, "sequence": 8, "optimizer": "sgd"}
    whole = stepped(spec_of(**common, batch=rows * parts), 1)
    cut = stepped(spec_of(**common, batch=rows, accumulation=parts, checkpointing=checkpointing), 1)

    assert cut[0] == pytest.approx(whole[0], rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_checkpointing_keeps_less_for_the_backward_pass(model: str) -> None:
    def kept(checkpointing: bool) -> int:
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        spec = spec_of(model=model, depth=9, width=16, batch=64, checkpointing=checkpointing)
        made = build_model(spec, OUTPUTS)
        inputs = batch_of(spec)[0]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = made(inputs)
        assert logits.shape[-1] == OUTPUTS
        return sum(sizes.values())

    assert kept(True) < 0.75 * kept(False)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_outputs_under_autocast_have_its_type(precision: str, dtype: torch.dtype) -> None:
    spec = spec_of(model="cnn", precision=precision, mode="inference")

    logits = InferenceStep(spec, build_model(spec, OUTPUTS), torch.device("cpu"))(batch_of(spec)[0])

    assert logits.dtype == dtype and not logits.requires_grad


def test_only_fp16_scales_its_loss() -> None:
    for precision in ("fp32", "bf16", "fp16"):
        spec = spec_of(precision=precision)
        model = build_model(spec, OUTPUTS)
        step = TrainingStep(spec, model, optimizer_of(spec, model), torch.device("cpu"))
        assert step.scaler.is_enabled() == (precision == "fp16")


def test_a_step_of_fp16_whose_gradients_are_infinite_leaves_the_weights_and_halves_the_scale_which_moves_along() -> (
    None
):
    spec = spec_of(model="mlp", precision="fp16")
    model = build_model(spec, OUTPUTS)
    step = TrainingStep(spec, model, optimizer_of(spec, model), torch.device("cpu"))
    inputs, targets = batch_of(spec)
    before = copy.deepcopy(model.state_dict())

    step([(inputs * math.inf, targets)])

    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert step.scaler.get_scale() == 2.0**15
    step.move_to(torch.device("cpu"))
    assert step.scaler.get_scale() == 2.0**15


class PassesEverything:
    """In a dry run's place of a scaler."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def update(self) -> None:
        pass


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("values", [{}, {"checkpointing": True, "accumulation": 2}, {"precision": "fp16"}])
def test_a_step_reads_no_number_so_it_runs_on_tensors_that_have_none(model: str, values: dict[str, Any]) -> None:
    spec = spec_of(model=model, **values)
    batch = batch_of(spec)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = build_model(spec, OUTPUTS)
        step = TrainingStep(spec, made, optimizer_of(spec, made), torch.device("cpu"))
        step.scaler = PassesEverything()  # type: ignore[assignment]
        inputs, targets = (mode.from_tensor(tensor) for tensor in batch)
        for _ in range(2):
            loss, right = step(micro_batches((inputs, targets), spec.batch))
        answer = InferenceStep(spec, made, torch.device("cpu"))(inputs)

    assert loss.shape == right.shape == () and answer.shape[-1] == OUTPUTS


def test_an_observer_is_told_of_every_stage_and_of_what_is_kept() -> None:
    seen: list[str] = []

    class Observer:
        def stage(self, name: str) -> Any:
            seen.append(name)
            return torch.enable_grad()

        def check_cancelled(self) -> None:
            pass

        def about_to_allocate(self, size: int, memory: str | None = None) -> None:
            seen.append(f"{size} of {memory}")

    spec = spec_of(model="mlp", batch=4, accumulation=2, keep_intermediates=True)
    model = build_model(spec, OUTPUTS)
    step = TrainingStep(spec, model, optimizer_of(spec, model), torch.device("cpu"), Observer())
    step(micro_batches(batch_of(spec), spec.batch))

    logits = f"{4 * OUTPUTS * 4} of cpu"
    assert seen == ["forward", "backward", logits, "forward", "backward", logits, "optimizer"]
    assert len(step.kept) == 2


def test_an_accumulating_run_tells_its_stages_per_micro_batch_and_its_throughput_per_item() -> None:
    told = Reported()
    context = context_on(reported=told)
    result = run(spec_of(model="cnn", batch=4, accumulation=3, batches="pingpong"), context)
    context.flush()

    counts: dict[str, int] = {}
    for event in told:
        if isinstance(event, StageFinished):
            counts[event.name] = counts.get(event.name, 0) + event.count
    per_batch = {"batch", "forward", "backward", "batch back"}
    assert {name: counts[name] for name in per_batch} == dict.fromkeys(per_batch, 12)
    assert counts["optimizer"] == counts["read loss"] == 4
    assert result["items_per_second"] == pytest.approx(12 * result["steps_per_second"])
    assert result["placement"]["groups"]["batches"]["cpu"]["count"] == 2


def test_a_cnn_learns_to_tell_its_images_apart() -> None:
    told = Reported()
    context = context_on(reported=told)
    torch.manual_seed(0)
    run(spec_of(model="cnn", width=32, batch=16, steps=60), context)
    context.flush()

    accuracies = [event.accuracy or 0.0 for event in told if isinstance(event, StepFinished)]
    assert sum(accuracies[:5]) / 5 < 0.4 and sum(accuracies[-10:]) / 10 > 0.85


@given(seed=st.integers(0, 2**31 - 1), side=st.integers(1, 20))
@settings(max_examples=20)
def test_generated_images_are_the_same_for_a_seed_and_of_the_size_asked_for(seed: int, side: int) -> None:
    pixels, labels = images(7, side, seed)
    again, _ = images(7, side, seed)

    assert pixels.shape == (7, 3, side, side) and labels.shape == (7,) and torch.equal(pixels, again)


def test_inference_takes_no_notice_of_what_only_training_has() -> None:
    spec = spec_of(mode="inference", accumulation=4, checkpointing=True)

    assert spec.micro_batches == 1 and spec.step_batch == spec.batch
    assert not build_model(spec, OUTPUTS).checkpointing


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_of_a_steps_memory_is_near_what_the_step_saves(model: str, checkpointing: bool) -> None:
    spec = spec_of(model=model, depth=16, width=32, batch=64, sequence=64, checkpointing=checkpointing, optimizer="sgd")
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    made = build_model(spec, OUTPUTS)
    inputs = batch_of(spec)[0]
    weights = sum(weight.nbytes for weight in made.parameters())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made(inputs)

    known = {tensor.untyped_storage().data_ptr() for tensor in (inputs, *made.parameters())}
    saved = sum(size for place, size in sizes.items() if place not in known)
    estimate = step_bytes(spec, weights, OUTPUTS) - weights
    assert saved < estimate
    assert checkpointing or estimate < 2.5 * saved


@pytest.mark.parametrize("model", MODELS)
def test_the_cost_the_spec_tells_of_a_forward_pass_is_that_of_the_models_layers(model: str) -> None:
    spec = spec_of(model=model, width=96, depth=6, batch=4)
    made = build_model(spec, OUTPUTS)

    with FlopCounterMode(display=False) as counter:
        made(batch_of(spec)[0])

    assert spec.forward_flops == pytest.approx(counter.get_total_flops(), rel=0.15)


@pytest.mark.parametrize("model", MODELS)
def test_the_hidden_weights_the_spec_tells_are_most_of_the_models(model: str) -> None:
    spec = spec_of(model=model, width=128, depth=12)
    weights = sum(weight.numel() for weight in build_model(spec, OUTPUTS).parameters())

    assert spec.parameters == pytest.approx(weights, rel=0.1)


def test_fp16_where_the_cpu_computes_is_cautioned_about() -> None:
    spec = spec_of(precision="fp16")

    assert "bf16 is faster" in spec.cautions("cpu")[0] and "bf16 is faster" in spec.cautions("sim:0")[0]
    assert spec.cautions("cuda:0") == spec_of(precision="bf16").cautions("cpu") == []
