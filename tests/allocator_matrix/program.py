"""What a configuration runs, on whatever device it is given: the same code on CUDA and in a dry run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.allocator_matrix import models
from tests.allocator_matrix.configurations import Configuration
from tests.allocator_matrix.models import Attention, Blocks

STEPS = 3

BACKENDS = {
    "math": [SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH],
}

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Task(NamedTuple):
    """A model, and what it learns from.

    Attributes:
        model: on no device yet, or on the one that was asked for.
        batch: makes the model's inputs and the target, on the host.
        loss: of the model's result and the target.
    """

    model: nn.Module
    batch: Callable[[], tuple[list[torch.Tensor], torch.Tensor]]
    loss: Loss


def build(one: Configuration, device: torch.device) -> Callable[[], object]:
    """The model of a configuration on ``device``, and a function that takes one step of it."""
    with _backends(one):
        task = TASKS[one.family](one, device)
        model = task.model.to(device)
        if one.precision == "pure_bf16":
            model = model.to(torch.bfloat16)
        step = _training(one, task, model, device) if one.mode == "train" else _inference(one, task, model, device)

    def stepping() -> None:
        with _backends(one):
            step()

    return stepping


@contextmanager
def _backends(one: Configuration) -> Iterator[None]:
    """Around backward passes too, in which blocks may be computed again."""
    with ExitStack() as stack:
        if one.attention != "default":
            stack.enter_context(sdpa_kernel(BACKENDS[one.attention]))
        if one.family == "lstm":
            # what cuDNN's LSTM takes is known to cuDNN only
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


def _training(one: Configuration, task: Task, model: nn.Module, device: torch.device) -> Callable[[], object]:
    optimizer = _optimizer(one, model)
    scaler = torch.amp.GradScaler(device.type, enabled=one.precision == "fp16")
    model.train()

    def step() -> None:
        for _ in range(one.accumulation):
            inputs, target = _moved(one, task, device)
            with _autocast(one, device):
                loss = task.loss(model(*inputs), target) / one.accumulation
            scaler.scale(loss).backward()
        if one.clipping:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=one.set_to_none)

    return step


def _inference(one: Configuration, task: Task, model: nn.Module, device: torch.device) -> Callable[[], object]:
    model.eval()
    without = torch.no_grad if one.mode == "no_grad" else torch.inference_mode

    def step() -> None:
        with without():
            inputs, _target = _moved(one, task, device)
            with _autocast(one, device):
                functional.softmax(model(*inputs), -1).argmax(-1)

    return step


def _moved(one: Configuration, task: Task, device: torch.device) -> tuple[list[torch.Tensor], torch.Tensor]:
    inputs, target = task.batch()
    inputs, target = [values.to(device) for values in inputs], target.to(device)
    if one.precision == "pure_bf16":
        inputs = [values.bfloat16() if values.is_floating_point() else values for values in inputs]
    return inputs, target


def _autocast(one: Configuration, device: torch.device) -> AbstractContextManager[Any]:
    dtype = DTYPES.get(one.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def _optimizer(one: Configuration, model: nn.Module) -> torch.optim.Optimizer:
    how: dict[str, Any] = {"foreach": one.implementation == "foreach", "fused": one.implementation == "fused"}
    weights = list(model.parameters())
    if one.optimizer in ("sgd", "momentum"):
        return torch.optim.SGD(weights, 0.1, momentum=0.9 if one.optimizer == "momentum" else 0.0, **how)
    made = torch.optim.Adam if one.optimizer == "adam" else torch.optim.AdamW
    return made(weights, 1e-3, **how)


def _choice(one: Configuration, small: Any, odd: Any, large: Any) -> Any:
    return {"small": small, "odd": odd, "large": large}[one.size]


def _of_tokens(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def _tokens(vocabulary: int, batch: int, length: int) -> Callable[[], tuple[list[torch.Tensor], torch.Tensor]]:
    def made() -> tuple[list[torch.Tensor], torch.Tensor]:
        return [torch.zeros(batch, length, dtype=torch.long)], torch.zeros(batch, length, dtype=torch.long)

    return made


def _decoder(one: Configuration, device: torch.device) -> Task:
    vocabulary, width, depth, heads, length, batch = _choice(
        one, (5000, 256, 4, 4, 128, 8), (10_007, 408, 3, 6, 193, 5), (32_000, 768, 6, 12, 512, 8)
    )

    def block() -> nn.Module:
        return models.Block(Attention(width, heads, is_causal=True, dropout=0.1), width, 4 * width, 0.1)

    with device:
        blocks = Blocks([block() for _ in range(depth)], one.checkpointing)
        model = models.LanguageModel(vocabulary, width, length, blocks, nn.LayerNorm(width), tied=True)
    return Task(model, _tokens(vocabulary, batch, length), _of_tokens)


def _llama(one: Configuration, device: torch.device) -> Task:
    vocabulary, width, depth, heads, kv_heads, inner, length, batch = _choice(
        one,
        (4096, 256, 4, 8, 2, 688, 128, 8),
        (9001, 384, 3, 6, 3, 1000, 250, 3),
        (16_000, 1024, 6, 16, 4, 2816, 512, 4),
    )

    def block() -> nn.Module:
        attention = Attention(width, heads, kv_heads=kv_heads, is_causal=True, turned=True, bias=False)
        return models.Gated(attention, width, inner)

    with device:
        blocks = Blocks([block() for _ in range(depth)], one.checkpointing)
        model = models.LanguageModel(vocabulary, width, length, blocks, nn.RMSNorm(width), tied=False)
    return Task(model, _tokens(vocabulary, batch, length), _of_tokens)


def _bert(one: Configuration, device: torch.device) -> Task:
    vocabulary, width, depth, heads, length, batch = _choice(
        one, (5000, 256, 4, 4, 128, 16), (7919, 320, 3, 5, 171, 6), (30_522, 768, 6, 12, 256, 16)
    )
    blocks = Blocks(
        [models.Block(Attention(width, heads, dropout=0.1), width, 4 * width, 0.1) for _ in range(depth)],
        one.checkpointing,
    )

    def batch_of() -> tuple[list[torch.Tensor], torch.Tensor]:
        present = torch.ones(batch, length, dtype=torch.bool)
        return [torch.ones(batch, length, dtype=torch.long), present], torch.zeros(batch, length, dtype=torch.long)

    return Task(models.Bert(vocabulary, width, length, blocks), batch_of, _of_tokens)


def _images(batch: int, side: int, classes: int) -> Callable[[], tuple[list[torch.Tensor], torch.Tensor]]:
    def made() -> tuple[list[torch.Tensor], torch.Tensor]:
        return [torch.zeros(batch, 3, side, side)], torch.zeros(batch, dtype=torch.long)

    return made


def _vit(one: Configuration, _device: torch.device) -> Task:
    side, patch, width, depth, heads, batch = _choice(
        one, (128, 16, 192, 4, 3, 32), (112, 14, 240, 3, 5, 9), (224, 16, 768, 6, 12, 16)
    )
    blocks = Blocks([models.Block(Attention(width, heads), width, 4 * width) for _ in range(depth)], one.checkpointing)
    return Task(models.Vit(side, patch, width, 1000, blocks), _images(batch, side, 1000), functional.cross_entropy)


def _cnn(one: Configuration, device: torch.device) -> Task:
    widths, depth, side, batch = _choice(
        one, ([32, 64, 128], 2, 96, 32), ([24, 52, 100, 200], 1, 75, 13), ([64, 128, 256, 512], 2, 176, 32)
    )
    with device:
        model = models.Cnn(widths, depth, 1000, one.checkpointing)
    return Task(model, _images(batch, side, 1000), functional.cross_entropy)


def _unet(one: Configuration, _device: torch.device) -> Task:
    widths, side, batch = _choice(one, ([32, 64, 128], 64, 8), ([24, 48, 96, 160], 56, 5), ([64, 128, 256, 512], 96, 8))

    def batch_of() -> tuple[list[torch.Tensor], torch.Tensor]:
        return [torch.zeros(batch, 3, side, side)], torch.zeros(batch, 3, side, side)

    return Task(models.Unet(widths, one.checkpointing), batch_of, lambda out, target: (out - target).square().mean())


def _lstm(one: Configuration, device: torch.device) -> Task:
    vocabulary, width, depth, length, batch = _choice(
        one, (5000, 256, 2, 24, 32), (6007, 300, 1, 19, 20), (20_000, 1024, 2, 32, 64)
    )
    with device:
        model = models.Recurrent(vocabulary, width, depth)
    return Task(model, _tokens(vocabulary, batch, length), _of_tokens)


def _mlp(one: Configuration, device: torch.device) -> Task:
    width, depth, batch = _choice(one, (512, 4, 1024), (900, 3, 777), (4096, 6, 8192))

    def batch_of() -> tuple[list[torch.Tensor], torch.Tensor]:
        return [torch.zeros(batch, width)], torch.zeros(batch, dtype=torch.long)

    with device:
        model = models.Mlp(width, depth, 1000, 0.1, one.checkpointing)
    return Task(model, batch_of, functional.cross_entropy)


TASKS: dict[str, Callable[[Configuration, torch.device], Task]] = {
    "decoder": _decoder,
    "llama": _llama,
    "bert": _bert,
    "vit": _vit,
    "cnn": _cnn,
    "unet": _unet,
    "lstm": _lstm,
    "mlp": _mlp,
}
