"""One training step on any device: forward, backward, optimizer; and the models, written as anyone would.

No number is read from a tensor here, so the same code also runs on tensors without numbers in a dry run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpudash.specs import TrainingSpec
from gpudash.specs.training import COLOURS, FEATURES, HALVINGS, MOMENTUM
from gpudash.system.garbage import without_collection
from gpudash.workloads.programs.batches import Batch, placed
from gpudash.workloads.running.context import Context

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""`TrainingSpec.precision` → dtype of the forward pass under autocast."""

FORWARD, BACK = "activations across", "gradients back"
"""Stages of the two copies."""


class Observer(Protocol):
    """Notified of what a step is about to do. `Context` is one."""

    def stage(self, name: str) -> AbstractContextManager[Any]:
        """A context manager around stage ``name``: forward, backward, optimizer."""
        ...

    def check_cancelled(self) -> None:
        """Called between the stages; may raise to end the step."""
        ...

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        """Called before ``size`` bytes are kept from step to step; may raise to end the step."""
        ...


class Unobserved:
    """An observer that does nothing."""

    def stage(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def check_cancelled(self) -> None:
        pass

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        pass


class TrainingStep:
    """A training's step; call it once per step.

    Attributes:
        scaler: scales the loss for fp16, and does nothing for other precisions. A dry run replaces it, since numbers
            determine whether the real one lets the optimizer step.
        kept: losses and outputs kept on purpose, see `TrainingSpec.keep_intermediates`.
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
        """Run one optimizer step.

        Args:
            batches: `TrainingSpec.micro_batches` pairs of inputs and targets, each used before the next is requested.

        Returns:
            on the device, without graph: the mean loss (nats, a float) and how many targets were predicted correctly
            (an integer).
        """
        losses, counts = [], []
        for inputs, targets in batches:
            loss, right = self._gradients(inputs, targets)
            losses.append(loss)
            counts.append(right)
        # Between gradients and update: a run that stops here has a whole number of steps.
        self._observer.check_cancelled()
        with self._observer.stage("optimizer"):
            # The scaler skips the step if a gradient overflowed (fp16).
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
            share = loss
            # Gradients accumulate: each part counts by its share of the whole.
            if parts > 1:
                share = loss / parts
            self.scaler.scale(share).backward()  # type: ignore[no-untyped-call]
        if self._spec.keep_intermediates:
            # What is kept grows with every step, so the guard is asked first.
            observer.about_to_allocate(logits.nbytes, str(self._device))
            self.kept.append((loss, logits))
        return loss.detach(), right

    def move_to(self, device: torch.device) -> None:
        """Continue on ``device``, where the model and the optimizer's state were moved."""
        self._device = device
        self._autocast = autocast(self._spec, device)
        # The scale was adapted during training; a new scaler on the new device continues with it.
        state = self.scaler.state_dict()
        self.scaler = scaler_of(self._spec, device)
        self.scaler.load_state_dict(state)


class InferenceStep:
    """A model in ``eval()`` under ``no_grad``; call it once per batch of inputs."""

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


@without_collection()  # the first weight or optimizer of a process imports 800 modules of torch
def build_model(spec: TrainingSpec, outputs: int) -> nn.Module:
    """The freshly initialised model of ``spec``, on torch's default device.

    Args:
        outputs: number of different targets: the characters of the text, or the classes.
    """
    checkpointing = spec.checkpointing and spec.mode == "train"
    match spec.model:
        case "transformer":
            return Transformer(outputs, spec.width, spec.depth, spec.heads, spec.sequence, checkpointing)
        case "mlp":
            return Mlp(FEATURES, spec.width, spec.depth, outputs, checkpointing)
        case "cnn":
            return Cnn(COLOURS, spec.width, spec.depth, HALVINGS, outputs, checkpointing)


@without_collection()  # as above
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
    """Autocast for the forward pass, if `spec.precision` is 16-bit; may be entered repeatedly."""
    dtype = AUTOCAST.get(spec.precision)
    if dtype is not None:
        return torch.autocast(device.type, dtype)
    return nullcontext()


def scaler_of(spec: TrainingSpec, device: torch.device) -> torch.amp.GradScaler:
    """The scaler that prevents fp16's small gradients from becoming zero; for other precisions it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=spec.precision == "fp16")


class Block(nn.Module):
    """A pre-norm transformer block with causal attention. Input and output: (batch, sequence, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        transformed: torch.Tensor = x + self.feed_forward(self.norm_feed_forward(x))
        return transformed


Handover = Callable[[torch.Tensor], torch.Tensor]
"""Copies activations to the device with the rest of a model."""


def handed_over(activations: torch.Tensor, place: int, handover: tuple[int, Handover] | None) -> torch.Tensor:
    """The input of the layer at ``place``."""
    if handover is None or handover[0] != place:
        return activations
    return handover[1](activations)


def through_block(block: nn.Module, h: torch.Tensor, *, checkpointing: bool) -> torch.Tensor:
    """The output of one block; see `Transformer` for checkpointing.

    The loop over blocks belongs in the caller: in inference nothing else may keep the first block's input alive.
    """
    if not checkpointing:
        return cast("torch.Tensor", block(h))
    # No block draws random numbers, so the generator's state need not be saved for the recomputation.
    return cast("torch.Tensor", checkpoint(block, h, use_reentrant=False, preserve_rng_state=False))


class Transformer(nn.Module):
    """Predicts the next character. Input: (batch, sequence) of integers; output: (batch, sequence, vocabulary).

    With checkpointing only the input of each block is kept for the backward pass, which recomputes the block.

    Attributes:
        handover: for a split model, the index of a block and the function that its input goes through first.
    """

    def __init__(
        self, vocabulary: int, width: int, depth: int, heads: int, sequence: int, checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.handover: tuple[int, Handover] | None = None
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.characters(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for place, block in enumerate(self.blocks):
            h = handed_over(h, place, self.handover)
            h = through_block(block, h, checkpointing=self.checkpointing)
        logits: torch.Tensor = self.head(self.norm(h))
        return logits


class Mlp(nn.Module):
    """Classifies points. Input: (batch, features); output: (batch, classes).

    A layer keeps little more than its own input, so checkpointing saves memory only over several: it uses √depth
    groups of layers (Chen et al. 2016, arXiv:1604.06174).

    Attributes:
        handover: as in `Transformer`, with the index of a layer.
    """

    def __init__(self, features: int, width: int, depth: int, classes: int, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.handover: tuple[int, Handover] | None = None
        # Pairs of a layer and its ReLU: groups end after a ReLU.
        self.group = 2 * math.ceil(depth / max(2, math.isqrt(depth)))
        widths = [features, *[width] * depth]
        layers: list[nn.Module] = []
        for wide_in, wide_out in itertools.pairwise(widths):
            layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointing:
            for first in range(0, len(self.layers), self.group):
                x = handed_over(x, first, self.handover)
                layers = self.layers[first : first + self.group]
                x = checkpoint(layers, x, use_reentrant=False, preserve_rng_state=False)
            return x
        if self.handover is not None:
            place, hand_over = self.handover
            x = hand_over(self.layers[:place](x))
            return self.layers[place:](x)  # type: ignore[no-any-return]
        logits: torch.Tensor = self.layers(x)
        return logits


class Convolution(nn.Module):
    """A 3×3 convolution, normalised, and ReLU; added to its input unless it halves rows and columns.

    Each sample is normalised by itself (Wu & He 2018, arXiv:1803.08494), so gradients accumulated over several batches
    equal those of one large batch, and recomputing a layer changes nothing.
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.convolution = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(math.gcd(8, channels), channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm(self.convolution(x)))
        if self.stride > 1:
            return y
        return x + y


class Cnn(nn.Module):
    """Classifies images. Input: (batch, colours, rows, columns); output: (batch, classes).

    The first ``halvings`` blocks halve rows and columns. Checkpointing and ``handover`` as in `Transformer`.
    """

    def __init__(
        self, colours: int, channels: int, depth: int, halvings: int, classes: int, checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.handover: tuple[int, Handover] | None = None
        self.stem = nn.Conv2d(colours, channels, 3, padding=1)
        self.blocks = nn.ModuleList(Convolution(channels, 2 if block < halvings else 1) for block in range(depth))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.stem(x))
        for place, block in enumerate(self.blocks):
            h = handed_over(h, place, self.handover)
            h = through_block(block, h, checkpointing=self.checkpointing)
        logits: torch.Tensor = self.head(h.mean((2, 3)))
        return logits


class HandOver(torch.autograd.Function):
    """A copy to another device whose gradient is copied back; both are stages and transfers of the run."""

    @staticmethod
    def forward(ctx: Any, activations: torch.Tensor, device: torch.device, context: Context) -> torch.Tensor:
        ctx.source, ctx.context = activations.device, context
        return _copied(FORWARD, activations, device, context)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _copied(BACK, gradients[0], ctx.source, ctx.context), None, None


def split_over(model: nn.Module, spec: TrainingSpec, devices: Sequence[torch.device], context: Context) -> None:
    """Move the halves of ``model``, which is on the CPU, to two devices.

    Args:
        model: a model built by `build_model`.
        devices: for the first half and the second.
        context: called at every copy between them.
    """
    first, second = devices
    assert isinstance(model, (Transformer, Mlp, Cnn))
    place = spec.second_half
    # For a Sequential a slice is the second half; for others the blocks and what follows them.
    if isinstance(model, Mlp):
        behind: list[nn.Module] = [model.layers[place:]]
    else:
        if isinstance(model, Transformer):
            last = [model.norm, model.head]
        else:
            last = [model.head]
        behind = [*model.blocks[place:], *last]
    # By identity, since the same module may have several parents.
    there = {id(module) for part in behind for module in part.modules()}
    for module in model.modules():
        if next(module.children(), None) is None:  # all weights are in the leaves
            module.to(second if id(module) in there else first)

    def hand_over(activations: torch.Tensor) -> torch.Tensor:
        arrived: torch.Tensor = HandOver.apply(activations, second, context)  # type: ignore[no-untyped-call]
        return arrived

    model.handover = place, hand_over


def _copied(stage: str, tensor: torch.Tensor, device: torch.device, context: Context) -> torch.Tensor:
    (arrived,) = placed(stage, (tensor,), device, context)
    return arrived
