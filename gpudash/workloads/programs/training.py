"""Trains a small model, or runs it for inference and measures its latency.

`step_bytes` estimates what the first step allocates before there is a model to inspect; `audit` reports where
everything is.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpudash.specs import CPU_FLOPS, TrainingSpec
from gpudash.specs.training import IMAGE_SIDE
from gpudash.telemetry.records import Topic
from gpudash.telemetry.results.outcome import prediction_rows
from gpudash.units import format_bytes, listed
from gpudash.workloads.programs.batches import (
    Batch,
    Batches,
    Questions,
    batches_per_epoch,
    data,
    epoch_order,
    micro_batches,
    placed,
    same_device,
)
from gpudash.workloads.programs.epochs import Epochs
from gpudash.workloads.programs.training_step import InferenceStep, TrainingStep, build_model, optimizer_of, split_over
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import WorkloadError

WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def run(spec: TrainingSpec, context: Context) -> Mapping[str, Any]:
    """Train, or run for inference.

    Returns:
        ``steps_per_second, items_per_second, item``, ``unigram_entropy`` (nats; ``None`` for classes),
        ``most_frequent_share``, ``corpus`` (source, hash, bytes, vocabulary), ``parameters``; for a training
        ``epochs`` (list) and ``placement``; for inference ``latency_p50_seconds, latency_p95_seconds``,
        ``pretraining`` (steps) and ``predictions``, see `Questions.predictions`.

    Raises:
        WorkloadError: the loss is NaN or infinite and `spec.on_nan` says to stop.
        GuardRefused, Cancelled: between operations.
    """
    source = data(spec, context)
    context.keep(**source.facts, item=source.item, epochs=[])
    with deterministic(spec.deterministic):
        model = model_of(spec, source.outputs, context)
        context.keep(parameters=sum(parameter.numel() for parameter in model.parameters()))
        if spec.mode == "inference":
            pretrain(model, spec, source, context)
            # Pretrained on the CPU, and moved afterwards: only the inference is measured.
            model.to(context.device)
            make_interruptible(model, spec, context.device, context.check_stopped)
            result = infer(model, spec, source, context)
        else:
            result = _Trainer(spec, context, source, model).train()
    return {**context.kept, **result}


def model_of(spec: TrainingSpec, outputs: int, context: Context) -> nn.Module:
    """The freshly initialised model of ``spec`` on the CPU; its memory is announced before it is allocated."""
    # On `meta` a model takes no memory: its size is announced before it is allocated.
    with torch.device("meta"):
        size = sum(parameter.nbytes for parameter in build_model(spec, outputs).parameters())
    context.about_to_allocate(size, "cpu")
    if context.device.type != "cpu":
        for device in context.devices:
            context.about_to_allocate(size // len(context.devices), str(device))
    with torch.device(context.host):
        return build_model(spec, outputs)


class _Trainer:
    """One training, from the first step to the last."""

    def __init__(self, spec: TrainingSpec, context: Context, source: Batches, model: nn.Module) -> None:
        self._spec = spec
        self._context = context
        self._source = source
        self._model = model
        # A run that moves starts on the CPU.
        self._devices = (torch.device("cpu"),) if spec.move_at_epoch > 1 else context.devices
        if spec.is_split:
            split_over(model, spec, context.devices, context)
        else:
            self._model.to(self._device)
        # Before `spread`: a wrapper calls the layers, and hooks on the wrapper would see only the whole.
        make_interruptible(model, spec, self._device, context.check_stopped)
        # The optimizer gets the wrapper's parameters.
        self._model = model = context.spread(model)
        self._optimizer = optimizer_of(spec, model)
        self._take_step = TrainingStep(spec, model, self._optimizer, self._devices[-1], context)
        self._resident: list[Batch] | None = None
        self._audited = False
        self._to_audit: Batch | None = None
        self._reported_nan = False

    @property
    def _device(self) -> torch.device:
        """The device on which the model starts."""
        return self._devices[0]

    def train(self) -> dict[str, Any]:
        spec, context = self._spec, self._context
        weights = sum(parameter.nbytes for parameter in self._model.parameters())
        for device in self._devices:
            taken = step_bytes(spec, weights, self._source.outputs) // len(self._devices)
            context.about_to_allocate(taken, str(device))
        if spec.batches == "resident":
            self._make_resident()
        epochs = Epochs(context)
        context.begin_steps()
        step, began = 0, time.perf_counter()
        self._ended = began
        for epoch in range(1, spec.passes + 1):
            if epoch == spec.move_at_epoch:
                # Between two epochs, when no step is in progress.
                self._move()
            epochs.begin(epoch, ", ".join(map(str, self._devices)))
            for index in epoch_order(spec, epoch)[: spec.steps - step]:
                step += 1
                loss, accuracy = self._step(index, step)
                epochs.add(loss, accuracy)
            context.keep(epochs=epochs.end())
        seconds = time.perf_counter() - began
        return {
            "steps_per_second": step / seconds,
            "items_per_second": step * self._source.items / seconds,
            "epochs": context.kept["epochs"],
        }

    def _step(self, index: int, step: int) -> tuple[float, float]:
        context = self._context
        loss, right = self._take_step(self._batches(index))
        with context.stage("read loss"):
            # The numbers end the step: reading them waits for the device.
            read_loss, count = read_numbers(loss, right)
        accuracy = count / self._source.items
        if self._to_audit is not None:
            text, facts = audit(self._model, self._optimizer, self._to_audit, *self._devices)
            self._audited, self._to_audit = True, None
            self._context.note(Topic.PLACEMENT, text, **facts)
            self._context.keep(placement=facts)
        now = time.perf_counter()
        throughput = self._source.items / (now - self._ended)
        self._ended = now
        context.step(step, self._spec.steps, loss=read_loss, accuracy=accuracy, throughput=throughput)
        if not math.isfinite(read_loss):
            self._not_finite(read_loss, step)
        return read_loss, accuracy

    def _batches(self, index: int) -> Iterator[Batch]:
        """The micro-batches of a step on the device, each copied when it is requested."""
        if self._resident is None:
            whole = self._source.batch(index)
        else:
            whole = self._resident[index]
        for part in micro_batches(whole, self._spec.batch):
            if self._resident is not None:
                batch = part
            else:
                batch = self._placed("batch", part, *self._devices)
            # The latest batch is audited after its step, when the optimizer has its state.
            if not self._audited:
                self._to_audit = batch
            yield batch
            if self._spec.batches == "pingpong":
                self._placed("batch back", batch, torch.device("cpu"))

    def _placed(self, stage: str, batch: Batch, *devices: torch.device) -> Batch:
        """``batch`` on a device; for a split model the inputs on the first, the targets on the second with the
        outputs."""
        if self._spec.is_split:
            pairs = zip(batch, (devices[0], devices[-1]), strict=True)
            inputs, targets = (
                placed(f"{stage}, {what}", (tensor,), device, self._context)[0]
                for what, (tensor, device) in zip(("inputs", "targets"), pairs, strict=True)
            )
        else:
            inputs, targets = placed(stage, batch, devices[0], self._context)
        return inputs, targets

    def _make_resident(self) -> None:
        self._resident = self._all_placed(map(self._source.batch, range(batches_per_epoch(self._spec))))

    def _all_placed(self, batches: Iterable[Batch]) -> list[Batch]:
        """Every batch of the training set on the device, announced as one allocation."""
        size = batches_per_epoch(self._spec) * sum(tensor.nbytes for tensor in self._source.batch(0))
        self._context.about_to_allocate(size, str(self._device))
        there: list[Batch] = []
        for batch in batches:
            self._context.check_cancelled()
            there.append(self._placed("batches", batch, *self._devices))
        return there

    def _move(self) -> None:
        source, self._devices = self._device, self._context.devices
        if source != self._device:
            weights = sum(parameter.nbytes for parameter in self._model.parameters())
            # Both exist for a moment: announce what moves in addition to the step.
            self._context.about_to_allocate(step_bytes(self._spec, weights, self._source.outputs) + weights)
            with self._context.stage(
                "move model", from_device=str(source), to_device=str(self._device), copied=True
            ) as stage:
                stage.report(bytes=move(self._model, self._optimizer, self._device))
            self._take_step.move_to(self._device)
            if self._resident is not None:
                self._resident = self._all_placed(self._resident)
        # The placement is audited again after the move.
        self._audited = False

    def _not_finite(self, loss: float, step: int) -> None:
        said = loss_text(loss, step)
        if self._spec.on_nan == "stop":
            raise WorkloadError("nan", f"{said}.", NAN_REMEDY)
        if not self._reported_nan:
            self._reported_nan = True
            self._context.note(Topic.NAN, f"{said}; the run goes on as asked.", step=step)


NAN_REMEDY = "Lower --learning-rate or choose fp32; --on-nan continue goes on all the same."


def loss_text(loss: float, step: int) -> str:
    """A sentence without a full stop on a loss that is not a number."""
    return f"The loss is {'NaN' if math.isnan(loss) else 'infinite'} at step {step}"


def read_numbers(loss: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    """Loss and count as numbers; from a GPU in one copy, since each copy waits for it."""
    if loss.device.type == "cpu":
        return loss.item(), right.item()
    read_loss, count = torch.stack((loss.double(), right.double())).tolist()
    return read_loss, count


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use deterministic algorithms in the block; cuBLAS needs a fixed workspace for them (cuBLAS docs, 2.1.4)."""
    if not wanted:
        yield
        return
    workspace = os.environ.get(WORKSPACE_VARIABLE)
    # Before cuBLAS allocates its workspace at the first product.
    os.environ[WORKSPACE_VARIABLE] = workspace or ":4096:8"
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        if workspace is None:
            del os.environ[WORKSPACE_VARIABLE]


WARM_UP = 3
"""How many first steps are left out of the latencies."""


PREDICTIONS_PERIOD_S = 5.0
"""Shortest time in seconds between two notes of predictions."""


def pretrain(model: nn.Module, spec: TrainingSpec, source: Batches, context: Context) -> None:
    """Train ``model`` on the CPU with ``spec.pretraining`` batches, in fp32 and with the optimizer's defaults.

    It leaves no gradients behind. A dry run skips it, because it changes numbers only.
    """
    context.keep(pretraining=spec.pretraining)
    # It changes only numbers: a dry run has none, and its memory stays as it is.
    if not spec.pretraining or context.host != "cpu":
        return
    plain = spec.model_copy(update={"mode": "train", "precision": "fp32", "accumulation": 1})
    device = torch.device("cpu")
    learn = TrainingStep(plain, model, optimizer_of(plain, model), device)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    context.about_to_allocate(step_bytes(plain, weights, source.outputs), "cpu")
    # The first text is kept for inference.
    if spec.model != "transformer":
        count = batches_per_epoch(spec)
    else:
        count = spec.pretraining + 1
    with context.stage("pretraining"):
        for index in range(1, spec.pretraining + 1):
            context.check_cancelled()
            learn([source.batch(index % count)])


def infer(model: nn.Module, spec: TrainingSpec, source: Batches, context: Context) -> dict[str, Any]:
    """Run ``spec.steps`` forward passes under ``eval()`` and ``no_grad``.

    Returns:
        ``steps_per_second, items_per_second``, ``latency_p50_seconds`` and ``latency_p95_seconds`` (from the batch on
        the CPU to the answer on the CPU; the first `WARM_UP` are left out if there are more).
    """
    answer = InferenceStep(spec, model, context.device, context)
    questions = source.questions()
    resident = spec.batches == "resident"
    if resident:
        questions.stay_at(_resident(questions.inputs, context))
    latencies: list[float] = []
    context.begin_steps()
    began = time.perf_counter()
    reported_s = -math.inf
    for step in range(1, spec.steps + 1):
        context.check_cancelled()
        requested_s = time.perf_counter()
        given = questions.inputs
        if resident:
            inputs = given
        else:
            inputs = placed("batch", (given,), context.device, context)[0]
        logits = answer(inputs)
        with context.stage("read output"):
            answers = logits.argmax(-1).cpu()
        answered_s = time.perf_counter()
        latencies.append(answered_s - requested_s)
        # Before the next input, which may be made from these answers.
        questions.answered(logits, answers)
        if step == spec.steps or answered_s - reported_s >= PREDICTIONS_PERIOD_S:
            reported_s = answered_s
            _report_predictions(questions, logits, step, context)
        context.step(step, spec.steps, throughput=source.items / latencies[-1])
    seconds = time.perf_counter() - began
    # A few answers are better measured with their warm-up than not at all.
    measured = torch.tensor(latencies[WARM_UP:] or latencies, dtype=torch.float64)
    return {
        "steps_per_second": spec.steps / seconds,
        "items_per_second": spec.steps * source.items / seconds,
        "latency_p50_seconds": float(measured.quantile(0.5)),
        "latency_p95_seconds": float(measured.quantile(0.95)),
    }


def _report_predictions(questions: Questions, logits: torch.Tensor, step: int, context: Context) -> None:
    if context.host != "cpu":
        return  # a dry run has no numbers to report
    with torch.no_grad():
        found = questions.predictions(logits)
    context.keep(predictions=found)
    text = "; ".join(f"{what}: {value}" for what, value in prediction_rows({"predictions": found}))
    context.note(Topic.PREDICTIONS, f"Step {step}: {text}.", step=step, predictions=found)


def _resident(inputs: torch.Tensor, context: Context) -> torch.Tensor:
    """``inputs`` on the run's device, where they stay."""
    context.about_to_allocate(inputs.nbytes)
    return placed("batches", (inputs,), context.device, context)[0]


GPU_FLOPS = 1e12
"""Deliberately low estimate of a GPU's float32 FLOP/s; only decides whether to check for Stop within a batch."""

COMPUTING_ON_THE_CPU = ("cpu", "sim")
"""Device types that compute on the CPU: the CPU itself and the simulated GPU."""

SHORT_BATCH_S = 0.1
"""Batches expected to take fewer seconds are not interrupted: half of what Stop may take; costs µs per layer."""


def make_interruptible(model: nn.Module, spec: TrainingSpec, device: torch.device, check: Callable[[], None]) -> None:
    """Call ``check`` after every layer, forward and backward, if a batch is expected to take long.

    Args:
        check: raises to end the step.
    """
    flops = GPU_FLOPS
    if device.type in COMPUTING_ON_THE_CPU:
        flops = CPU_FLOPS
    # Backward costs twice as much as forward (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    # Forward and backward pass together cost three times the forward pass.
    if 3 * spec.forward_flops / flops <= SHORT_BATCH_S:
        return

    def after_backward(_gradient: torch.Tensor) -> None:
        check()

    def after_forward(_layer: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        check()
        # Only if there will be a gradient: other tensors reject hooks.
        if output.requires_grad:
            output.register_hook(after_backward)  # type: ignore[no-untyped-call]

    for layer in model.modules():
        # Leaves only: a container's hook would run together with that of its last layer.
        if next(layer.children(), None) is None:
            layer.register_forward_hook(after_forward)


OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""How many tensors of a parameter's size each optimizer keeps for it."""

BLOCK_ACTIVATIONS = 17
"""Values, in multiples of the width, that a block's backward pass keeps per character: both norms' inputs and outputs
(4), query, key and value (3), attention's output and its projection (2), the feed-forward's hidden layer before and
after GELU (8)."""

CONVOLUTION_ACTIVATIONS = 3
"""Values, in multiples of the width, that a CNN's block keeps per output pixel: the convolution's output, ReLU's
result and the sum."""

LAYER_ACTIVATIONS = 2
"""Values, in multiples of the width, that an MLP's layer takes per sample: the product and ReLU's result."""


def step_bytes(spec: TrainingSpec, weights_bytes: int, outputs: int) -> int:
    """Estimate what the first step allocates: gradients, optimizer state, activations; in bytes.

    Autocast keeps half of the activations in 16 bits and a copy of the weights in 16 bits; checkpointing keeps each
    layer's input and, while its gradients are computed, one layer's activations.
    """
    layers = _layer_values(spec)
    kept = sum(layers)
    if spec.checkpointing and layers:
        kept = _checkpointed_values(spec, layers)
    # A transformer outputs one row per character, the others one per sample.
    rows = spec.batch * (spec.sequence if spec.model == "transformer" else 1)
    stem = 0
    if spec.model == "cnn":
        stem = IMAGE_SIDE**2 * spec.width
    # Half of the activations in 16 bits: 4 and 2 bytes, 3 on average.
    each = 3
    if spec.precision == "fp32":
        each = 4
    activations = spec.batch * (kept + stem) * each + 4 * rows * 3 * outputs
    if spec.precision == "fp32":
        casts = 0
    else:
        casts = weights_bytes // 2
    return (1 + OPTIMIZER_STATES[spec.optimizer]) * weights_bytes + casts + activations


def _layer_values(spec: TrainingSpec) -> list[int]:
    """Values that each hidden layer keeps per sequence or sample."""
    if spec.model == "cnn":
        return [CONVOLUTION_ACTIVATIONS * spec.width * side**2 for side in spec.sides]
    if spec.model == "mlp":
        return [LAYER_ACTIVATIONS * spec.width] * spec.depth
    return [BLOCK_ACTIVATIONS * spec.width * spec.sequence] * spec.depth


def _checkpointed_values(spec: TrainingSpec, layers: list[int]) -> int:
    """Values kept per sequence or sample with checkpointing: inputs of the layers, or of an MLP's groups of layers."""
    if spec.model == "mlp":
        groups = max(2, math.isqrt(spec.depth))
        return groups * spec.width + -(-spec.depth // groups) * layers[0]
    if spec.model == "cnn":
        inputs = [IMAGE_SIDE**2, *(side**2 for side in spec.sides)]
        return spec.width * sum(inputs[1:-1]) + max(layers)
    # The inputs of all blocks, and one block's activations while its gradients are computed.
    return spec.depth * spec.width * spec.sequence + layers[0]


GROUPS = ("parameters", "buffers", "optimizer state", "batches")


def audit(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, batch: Iterable[torch.Tensor], *devices: torch.device
) -> tuple[str, dict[str, Any]]:
    """Report where parameters, buffers, optimizer state and the latest batch are.

    torch deliberately keeps single numbers of the optimizer's state, such as Adam's step count, on the CPU; they are
    counted but are not strays.

    Returns:
        a sentence, and ``groups`` (group → device → ``count, bytes``), ``strays`` (names of tensors on none of
        ``devices``) and ``device``, the devices separated by commas.
    """
    groups: dict[str, dict[str, dict[str, int]]] = {group: {} for group in GROUPS}
    strays: list[str] = []
    for group, name, tensor in _everything(model, optimizer, batch):
        place = groups[group].setdefault(str(tensor.device), {"count": 0, "bytes": 0})
        place["count"] += 1
        place["bytes"] += tensor.nbytes
        # torch deliberately keeps Adam's step count on the CPU (torch/optim/adam.py, `capturable`).
        single = group == "optimizer state" and tensor.numel() == 1
        if not any(same_device(tensor.device, device) for device in devices) and not single:
            strays.append(f"{group}: {name} on {tensor.device}")
    where = ",".join(map(str, devices))
    return _placement_text(groups, strays, where), {"groups": groups, "strays": strays, "device": where}


def move(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Move the model and the optimizer's state to ``device``.

    The state goes through torch's own ``load_state_dict``, which puts each tensor on its parameter's device. If moving
    a module creates new parameters, as between different device types, the optimizer gets those.

    Returns:
        number of bytes moved.
    """
    # Taken before the move: it refers to parameters by index.
    state = optimizer.state_dict()
    size = sum(tensor.nbytes for _, _, tensor in _everything(model, optimizer, ()))
    before = list(map(id, model.parameters()))
    model.to(device)
    # By identity: moving between different device types creates new parameters in the same order.
    moved = dict(zip(before, model.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["params"] = [moved[id(parameter)] for parameter in group["params"]]
    # State of the old parameters would remain beside the new one.
    optimizer.state.clear()
    optimizer.load_state_dict(state)
    return size


def _everything(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, batch: Iterable[torch.Tensor]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        yield "parameters", name, parameter
    for name, buffer in model.named_buffers():
        yield "buffers", name, buffer
    for weight, state in optimizer.state.items() if optimizer is not None else ():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield "optimizer state", f"{names.get(id(weight), 'unknown')}.{key}", value
    for index, tensor in enumerate(batch):
        yield "batches", ("inputs", "targets")[index] if index < 2 else str(index), tensor


def _placement_text(groups: dict[str, dict[str, dict[str, int]]], strays: list[str], where: str) -> str:
    if strays:
        return f"Not on {where}: {listed(strays, 3)}."
    there = []
    for group, places in groups.items():
        if places:
            size = sum(place["bytes"] for place in places.values())
            there.append(f"{group} {format_bytes(size)}")
    return f"All on {where}: {', '.join(there)}."
