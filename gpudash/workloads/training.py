"""Training a small model, or running it for inference."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpudash.specs import TrainingSpec
from gpudash.workloads.batches import Batch, Batches, batches_per_epoch, data, epoch_order, micro_batches, placed
from gpudash.workloads.context import Context
from gpudash.workloads.endings import WorkloadError
from gpudash.workloads.epochs import Epochs
from gpudash.workloads.inference import infer
from gpudash.workloads.interruption import make_interruptible
from gpudash.workloads.placement import audit, move
from gpudash.workloads.training_size import step_bytes
from gpudash.workloads.training_step import TrainingStep, build_model, optimizer_of

WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def run(spec: TrainingSpec, context: Context) -> Mapping[str, Any]:
    """Train, or run for inference.

    Returns:
        ``steps_per_second, items_per_second, item``, ``unigram_entropy`` (nats; ``None`` for classes),
        ``most_frequent_share``, ``corpus`` (source, hash, bytes, vocabulary), ``parameters``; of a training
        ``epochs`` (list) and ``placement``; of inference ``latency_p50_seconds, latency_p95_seconds``.

    Raises:
        WorkloadError: when the loss is NaN or infinite and `spec.on_nan` says to stop.
        GuardRefused, Cancelled: between operations.
    """
    source = data(spec, context)
    context.keep(**source.facts, item=source.item, epochs=[])
    with deterministic(spec.deterministic):
        model = model_of(spec, source.outputs, context)
        context.keep(parameters=sum(parameter.numel() for parameter in model.parameters()))
        if spec.mode == "inference":
            model.to(context.device)
            make_interruptible(model, spec, context.device, context.check_stopped)
            result = infer(model, spec, source, context)
        else:
            result = _Trainer(spec, context, source, model).train()
    return {**context.kept, **result}


def model_of(spec: TrainingSpec, outputs: int, context: Context) -> nn.Module:
    """The model of ``spec`` on the CPU, freshly initialised; its memory announced before it is taken."""
    with torch.device("meta"):
        size = sum(parameter.nbytes for parameter in build_model(spec, outputs).parameters())
    context.about_to_allocate(size, "cpu")
    if context.device.type != "cpu":
        context.about_to_allocate(size)
    with torch.device(context.host):
        return build_model(spec, outputs)


class _Trainer:
    """One training, from the first step to the last."""

    def __init__(self, spec: TrainingSpec, context: Context, source: Batches, model: nn.Module) -> None:
        self._spec = spec
        self._context = context
        self._source = source
        self._model = model
        self._device = torch.device("cpu") if spec.move_at_epoch > 1 else context.device
        self._model.to(self._device)
        make_interruptible(model, spec, self._device, context.check_stopped)
        self._model = model = context.spread(model)
        self._optimizer = optimizer_of(spec, model)
        self._take_step = TrainingStep(spec, model, self._optimizer, self._device, context)
        self._resident: list[Batch] | None = None
        self._audited = False
        self._to_audit: Batch | None = None
        self._told_nan = False

    def train(self) -> dict[str, Any]:
        spec, context = self._spec, self._context
        weights = sum(parameter.nbytes for parameter in self._model.parameters())
        context.about_to_allocate(step_bytes(spec, weights, self._source.outputs), str(self._device))
        if spec.batches == "resident":
            self._make_resident()
        epochs = Epochs(context)
        context.begin_steps()
        step, began = 0, time.perf_counter()
        self._ended = began
        for epoch in range(1, spec.passes + 1):
            if epoch == spec.move_at_epoch:
                self._move()
            epochs.begin(epoch, str(self._device))
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
            read_loss, count = read_numbers(loss, right)
        accuracy = count / self._source.items
        if self._to_audit is not None:
            self._audit(self._to_audit)
        now = time.perf_counter()
        throughput = self._source.items / (now - self._ended)
        self._ended = now
        context.step(step, self._spec.steps, loss=read_loss, accuracy=accuracy, throughput=throughput)
        if not math.isfinite(read_loss):
            self._not_finite(read_loss, step)
        return read_loss, accuracy

    def _batches(self, index: int) -> Iterator[Batch]:
        """The micro-batches of a step on the device, each there by the time it is asked for."""
        whole = self._source.batch(index) if self._resident is None else self._resident[index]
        for part in micro_batches(whole, self._spec.batch):
            batch = part if self._resident is not None else self._placed("batch", part, self._device)
            if not self._audited:
                self._to_audit = batch
            yield batch
            if self._spec.batches == "pingpong":
                self._placed("batch back", batch, torch.device("cpu"))

    def _placed(self, stage: str, batch: Batch, device: torch.device) -> Batch:
        inputs, targets = placed(stage, batch, device, self._context)
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
            there.append(self._placed("batches", batch, self._device))
        return there

    def _move(self) -> None:
        source, self._device = self._device, self._context.device
        if source != self._device:
            weights = sum(parameter.nbytes for parameter in self._model.parameters())
            self._context.about_to_allocate(step_bytes(self._spec, weights, self._source.outputs) + weights)
            with self._context.stage(
                "move model", from_device=str(source), to_device=str(self._device), copied=True
            ) as stage:
                stage.tell(bytes=move(self._model, self._optimizer, self._device))
            self._take_step.move_to(self._device)
            if self._resident is not None:
                self._resident = self._all_placed(self._resident)
        self._audited = False

    def _audit(self, batch: Batch) -> None:
        words, facts = audit(self._model, self._optimizer, batch, self._device)
        self._audited, self._to_audit = True, None
        self._context.note("placement", words, **facts)
        self._context.keep(placement=facts)

    def _not_finite(self, loss: float, step: int) -> None:
        what = "NaN" if math.isnan(loss) else "infinite"
        if self._spec.on_nan == "stop":
            raise WorkloadError(
                "nan",
                f"The loss is {what} at step {step}.",
                "Lower --learning-rate or choose fp32; --on-nan continue goes on all the same.",
            )
        if not self._told_nan:
            self._told_nan = True
            self._context.note("nan", f"The loss is {what} at step {step}; the run goes on as asked.", step=step)


def read_numbers(loss: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    """Loss and count as numbers; from a GPU in one copy, since each waits for it."""
    if loss.device.type == "cpu":
        return loss.item(), right.item()
    read_loss, count = torch.stack((loss.double(), right.double())).tolist()
    return read_loss, count


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Deterministic algorithms for the block; cuBLAS needs its workspace fixed for them (cuBLAS docs, 2.1.4)."""
    if not wanted:
        yield
        return
    asked = os.environ.get(WORKSPACE_VARIABLE)
    os.environ[WORKSPACE_VARIABLE] = asked or ":4096:8"
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        if asked is None:
            del os.environ[WORKSPACE_VARIABLE]
