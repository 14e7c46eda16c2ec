"""One step of a training, on any device: forward, backward, optimizer.

No number is read from a tensor here, so the same code may run on tensors that hold none, as a dry run's.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from gpudash.specs import TrainingSpec
from gpudash.specs.training import COLOURS, FEATURES, HALVINGS, MOMENTUM
from gpudash.workloads.programs.batches import Batch
from gpudash.workloads.programs.models import Cnn, Mlp, Transformer

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""`TrainingSpec.precision` → type of the forward pass under autocast."""


class Observer(Protocol):
    """Who is told what a step is about to do. `Context` is one."""

    def stage(self, name: str) -> AbstractContextManager[Any]:
        """Entered for the time of stage ``name``: forward, backward, optimizer."""
        ...

    def check_cancelled(self) -> None:
        """Called between the stages; may raise to end the step."""
        ...

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        """Called before ``size`` bytes are kept from step to step; may raise to end the step."""
        ...


class Unobserved:
    """An observer that lets everything pass."""

    def stage(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def check_cancelled(self) -> None:
        pass

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        pass


class TrainingStep:
    """A training's step, called once for each.

    Attributes:
        scaler: scales the loss of fp16, and lets everything pass for the other precisions. A dry run puts another in
            its place, since whether the real one lets the optimizer step depends on numbers.
        kept: losses and outputs kept on purpose, `TrainingSpec.keep_intermediates`.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        observer: Observer | None = None,
    ) -> None:
        self.scaler = scaler_of(spec, device)
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._spec = spec
        self._model = model
        self._optimizer = optimizer
        self._device = device
        self._observer: Observer = observer or Unobserved()
        self._autocast = autocast(spec, device)

    def __call__(self, batches: Iterable[Batch]) -> tuple[torch.Tensor, torch.Tensor]:
        """One optimizer step.

        Args:
            batches: `TrainingSpec.micro_batches` pairs of inputs and targets, each used before the next is asked for.

        Returns:
            on the device, without graph: the mean loss (nats, a float) and how many targets were predicted right (an
            integer).
        """
        losses, counts = [], []
        for inputs, targets in batches:
            loss, right = self._gradients(inputs, targets)
            losses.append(loss)
            counts.append(right)
        self._observer.check_cancelled()
        with self._observer.stage("optimizer"):
            self.scaler.step(self._optimizer)
            self.scaler.update()
            self._optimizer.zero_grad(set_to_none=True)
        if len(losses) == 1:
            return losses[0], counts[0]
        return torch.stack(losses).mean(), torch.stack(counts).sum()

    def _gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward and backward pass of one batch, whose share is added to the gradients."""
        observer, parts = self._observer, self._spec.micro_batches
        observer.check_cancelled()
        with observer.stage("forward"):
            with self._autocast:
                logits = self._model(inputs)
                loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
            right = (logits.detach().argmax(-1) == targets).sum()
        observer.check_cancelled()
        with observer.stage("backward"):
            share = loss / parts if parts > 1 else loss
            self.scaler.scale(share).backward()  # type: ignore[no-untyped-call]
        if self._spec.keep_intermediates:
            observer.about_to_allocate(logits.nbytes, str(self._device))
            self.kept.append((loss, logits))
        return loss.detach(), right

    def move_to(self, device: torch.device) -> None:
        """Go on on ``device``, where the model and the optimizer's state have been moved to."""
        self._device = device
        self._autocast = autocast(self._spec, device)
        state = self.scaler.state_dict()
        self.scaler = scaler_of(self._spec, device)
        self.scaler.load_state_dict(state)


class InferenceStep:
    """A model in ``eval()`` under ``no_grad``, called once for each batch of inputs."""

    def __init__(
        self, spec: TrainingSpec, model: nn.Module, device: torch.device, observer: Observer | None = None
    ) -> None:
        self._model = model.eval()
        self._observer: Observer = observer or Unobserved()
        self._autocast = autocast(spec, device)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs for ``inputs``, on the device."""
        with self._observer.stage("forward"), torch.no_grad(), self._autocast:
            logits: torch.Tensor = self._model(inputs)
        return logits


def build_model(spec: TrainingSpec, outputs: int) -> nn.Module:
    """The model of ``spec``, freshly initialised, on torch's default device.

    Args:
        outputs: how many different targets there are: the characters of the text, or the classes.
    """
    checkpointing = spec.checkpointing and spec.mode == "train"
    match spec.model:
        case "transformer":
            return Transformer(outputs, spec.width, spec.depth, spec.heads, spec.sequence, checkpointing)
        case "mlp":
            return Mlp(FEATURES, spec.width, spec.depth, outputs, checkpointing)
        case "cnn":
            return Cnn(COLOURS, spec.width, spec.depth, HALVINGS, outputs, checkpointing)


def optimizer_of(spec: TrainingSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of ``spec`` for the weights of ``model``."""
    weights = model.parameters()
    match spec.optimizer:
        case "sgd":
            return torch.optim.SGD(weights, lr=spec.learning_rate)
        case "momentum":
            return torch.optim.SGD(weights, lr=spec.learning_rate, momentum=MOMENTUM)
        case "adam":
            return torch.optim.Adam(weights, lr=spec.learning_rate)
        case "adamw":
            return torch.optim.AdamW(weights, lr=spec.learning_rate)


def autocast(spec: TrainingSpec, device: torch.device) -> AbstractContextManager[Any]:
    """Where the forward pass runs in 16 bits, if `spec.precision` says so; may be entered again and again."""
    dtype = AUTOCAST.get(spec.precision)
    return torch.autocast(device.type, dtype) if dtype is not None else nullcontext()


def scaler_of(spec: TrainingSpec, device: torch.device) -> torch.amp.GradScaler:
    """What keeps fp16's small gradients from becoming zero; for other precisions it changes nothing."""
    return torch.amp.GradScaler(device.type, enabled=spec.precision == "fp16")
