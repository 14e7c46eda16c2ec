"""A training run as a plain PyTorch program. Its losses are those of the run, bit for bit on the same CPU."""

from __future__ import annotations

import inspect
from typing import Any

from gpudash.specs import TrainingSpec
from gpudash.specs.training import HALVINGS, IMAGE_SIDE
from gpudash.workloads.batches import batches_per_epoch, text_batch
from gpudash.workloads.classes import CLASSES, COLOURS, CONTRAST, FEATURES, SPREAD, TILE, classes, images
from gpudash.workloads.models import Block, Cnn, Convolution, Mlp, Transformer
from gpudash.workloads.text import LEFT_OUT, LIMIT
from gpudash.workloads.training_step import AUTOCAST, MOMENTUM

_USED: dict[str, list[Any]] = {
    "transformer": [Block, Transformer, text_batch],
    "mlp": [Mlp, classes],
    "cnn": [Convolution, Cnn, images],
}
_CONSTANTS = {
    "transformer": [],
    "mlp": [f"FEATURES, CLASSES, SPREAD = {FEATURES}, {CLASSES}, {SPREAD}"],
    "cnn": [f"COLOURS, CLASSES, CONTRAST, TILE = {COLOURS}, {CLASSES}, {CONTRAST}, {TILE}"],
}
"""What the sources of `_USED` need."""


def training_code(spec: TrainingSpec, device: str) -> list[str]:
    """The lines of the program."""
    imports = ["import itertools", "import math", "import pathlib", "import sysconfig", "import time", ""]
    sources = [line for part in _USED[spec.model] for line in ("", "", *inspect.getsource(part).rstrip().splitlines())]
    return [
        *imports,
        "import torch",
        "from torch import nn",
        "from torch.nn import functional",
        "from torch.utils.checkpoint import checkpoint",
        "",
        "Batch = tuple[torch.Tensor, torch.Tensor]",
        *_CONSTANTS[spec.model],
        *sources,
        "",
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f"torch.manual_seed({spec.seed})",
        *(
            ["torch.use_deterministic_algorithms(True)  # on CUDA also set CUBLAS_WORKSPACE_CONFIG=:4096:8"]
            if spec.deterministic
            else []
        ),
        f'device = torch.device("{"cpu" if spec.move_at_epoch > 1 else device}")',
        *(_text(spec) if spec.model == "transformer" else _classes(spec)),
        "model.to(device)",
        *(_inference(spec) if spec.mode == "inference" else _training(spec, device)),
    ]


def _text(spec: TrainingSpec) -> list[str]:
    return [
        'library = pathlib.Path(sysconfig.get_path("stdlib"))',
        f"left_out = set({sorted(LEFT_OUT)!r})",
        'names = [path.relative_to(library) for path in library.rglob("*.py")]',
        "names = sorted(name.as_posix() for name in names if not left_out & set(name.parts))",
        "data = bytearray()",
        "for name in names:",
        "    data += (library / name).read_bytes()",
        f"    if len(data) >= {LIMIT}:",
        "        break",
        f"data = data[:{LIMIT}]",
        "number = torch.zeros(256, dtype=torch.int64)",
        "number[torch.tensor(sorted(set(data)))] = torch.arange(len(set(data)))",
        "text = number[torch.frombuffer(data, dtype=torch.uint8).to(torch.int64)]",
        "",
        "",
        "def batch(index):",
        f"    return text_batch(text, {spec.step_batch}, {spec.sequence}, {spec.seed}, index)",
        "",
        "",
        (
            f"model = Transformer(len(set(data)), {spec.width}, {spec.depth}, {spec.heads}, "
            f"{spec.sequence}{_checkpointing(spec)})"
        ),
    ]


def _classes(spec: TrainingSpec) -> list[str]:
    samples = batches_per_epoch(spec) * spec.step_batch
    if spec.model == "cnn":
        drawn = f"images({samples}, {IMAGE_SIDE}, {spec.seed})"
        model = f"Cnn(COLOURS, {spec.width}, {spec.depth}, {HALVINGS}, CLASSES{_checkpointing(spec)})"
    else:
        drawn = f"classes({samples}, {spec.seed})"
        model = f"Mlp(FEATURES, {spec.width}, {spec.depth}, CLASSES{_checkpointing(spec)})"
    return [
        f"points, labels = {drawn}",
        "",
        "",
        "def batch(index):",
        f"    part = slice(index * {spec.step_batch}, (index + 1) * {spec.step_batch})",
        "    return points[part], labels[part]",
        "",
        "",
        f"model = {model}",
    ]


def _checkpointing(spec: TrainingSpec) -> str:
    return ", checkpointing=True" if spec.checkpointing and spec.mode == "train" else ""


def _forward(spec: TrainingSpec, *more: str) -> list[str]:
    lines = ["logits = model(inputs)", *more]
    if spec.precision == "fp32":
        return lines
    return [f"with torch.autocast(device.type, {AUTOCAST[spec.precision]}):", *_indented(lines)]


def _indented(lines: list[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" for line in lines]


def _inference(spec: TrainingSpec) -> list[str]:
    return [
        "model.eval()",
        "seconds = []",
        "with torch.no_grad():",
        f"    for step in range({spec.steps}):",
        f"        inputs = batch(step % {batches_per_epoch(spec)})[0]",
        "        began = time.perf_counter()",
        "        inputs = inputs.to(device)",
        *_indented(_forward(spec), 2),
        "        logits.argmax(-1).cpu()",
        "        seconds.append(time.perf_counter() - began)",
        'print(f"median latency {sorted(seconds)[len(seconds) // 2]:.6f} s")',
    ]


def _training(spec: TrainingSpec, device: str) -> list[str]:
    count = batches_per_epoch(spec)
    resident = spec.batches == "resident"
    return [
        f"optimizer = {_optimizer(spec)}",
        *(["scaler = torch.amp.GradScaler(device.type)"] if spec.precision == "fp16" else []),
        *(
            [f"resident = [[tensor.to(device) for tensor in batch(index)] for index in range({count})]"]
            if resident
            else []
        ),
        *(["kept = []"] if spec.keep_intermediates else []),
        "step = 0",
        f"for epoch in range(1, {spec.passes + 1}):",
        *(_moving(spec, device) if spec.move_at_epoch else []),
        f"    generator = torch.Generator().manual_seed({spec.seed} * 1_000_003 + epoch)",
        f"    for index in torch.randperm({count}, generator=generator).tolist()[: {spec.steps} - step]:",
        "        step += 1",
        *_indented(_step(spec), 2),
    ]


def _optimizer(spec: TrainingSpec) -> str:
    name, more = {
        "sgd": ("SGD", ""),
        "momentum": ("SGD", f", momentum={MOMENTUM}"),
        "adam": ("Adam", ""),
        "adamw": ("AdamW", ""),
    }[spec.optimizer]
    return f"torch.optim.{name}(model.parameters(), lr={spec.learning_rate!r}{more})"


def _moving(spec: TrainingSpec, device: str) -> list[str]:
    scaler = [
        "        scale = scaler.state_dict()",
        "        scaler = torch.amp.GradScaler(device.type)",
        "        scaler.load_state_dict(scale)",
    ]
    return [
        f"    if epoch == {spec.move_at_epoch}:  # the model, then the optimizer's state after its parameters",
        f'        device = torch.device("{device}")',
        "        state = optimizer.state_dict()",
        "        model.to(device)",
        "        optimizer.load_state_dict(state)",
        *(scaler if spec.precision == "fp16" else []),
    ]


def _step(spec: TrainingSpec) -> list[str]:
    """One optimizer step: the gradients of one batch, or of several that add up."""
    whole = "resident[index]" if spec.batches == "resident" else "batch(index)"
    moved = [] if spec.batches == "resident" else ["inputs, targets = inputs.to(device), targets.to(device)"]
    update = ["scaler.step(optimizer)", "scaler.update()"] if spec.precision == "fp16" else ["optimizer.step()"]
    gradients = [*moved, *_gradients(spec)]
    if spec.micro_batches == 1:
        return [
            f"inputs, targets = {whole}",
            *gradients,
            *update,
            "optimizer.zero_grad(set_to_none=True)",
            "accuracy = (logits.detach().argmax(-1) == targets).float().mean()",
            'print(f"{step} {loss.item()!r} {accuracy.item():.4f}")',
        ]
    return [
        "losses, right = [], []",
        f"parts = (tensor.split({spec.batch}) for tensor in {whole})",
        "for inputs, targets in zip(*parts):",
        *_indented(gradients),
        "    losses.append(loss.detach())",
        "    right.append((logits.detach().argmax(-1) == targets).float().mean())",
        *update,
        "optimizer.zero_grad(set_to_none=True)",
        "loss, accuracy = torch.stack(losses).mean(), torch.stack(right).mean()",
        'print(f"{step} {loss.item()!r} {accuracy.item():.4f}")',
    ]


def _gradients(spec: TrainingSpec) -> list[str]:
    """Forward and backward pass of one batch."""
    share = f"(loss / {spec.micro_batches})" if spec.micro_batches > 1 else "loss"
    scaled = f"scaler.scale({share})" if spec.precision == "fp16" else share
    return [
        *_forward(spec, "loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())"),
        f"{scaled}.backward()",
        *(["kept.append((loss, logits))"] if spec.keep_intermediates else []),
        *(["inputs.cpu(), targets.cpu()"] if spec.batches == "pingpong" else []),
    ]
