"""A training run as a plain PyTorch program. Its losses are those of the run, bit for bit on the same CPU."""

from __future__ import annotations

import inspect
from typing import Any

from gpudash.specs import TrainingSpec
from gpudash.workloads.batches import batches_per_epoch, text_batch
from gpudash.workloads.classes import CLASSES, FEATURES, SPREAD, classes
from gpudash.workloads.models import Block, Mlp, Transformer
from gpudash.workloads.text import LEFT_OUT, LIMIT
from gpudash.workloads.training import MOMENTUM


def training_code(spec: TrainingSpec, device: str) -> list[str]:
    """The lines of the program."""
    imports = ["import itertools", "import pathlib", "import sysconfig", "import time", ""]
    used: list[Any] = [Block, Transformer, text_batch] if spec.model == "transformer" else [Mlp, classes]
    sources = [line for part in used for line in ("", "", *inspect.getsource(part).rstrip().splitlines())]
    constants = [] if spec.model == "transformer" else [f"FEATURES, CLASSES, SPREAD = {FEATURES}, {CLASSES}, {SPREAD}"]
    return [
        *imports,
        "import torch",
        "from torch import nn",
        "from torch.nn import functional",
        "",
        "Batch = tuple[torch.Tensor, torch.Tensor]",
        *constants,
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
        f"    return text_batch(text, {spec.batch}, {spec.sequence}, {spec.seed}, index)",
        "",
        "",
        f"model = Transformer(len(set(data)), {spec.width}, {spec.depth}, {spec.heads}, {spec.sequence})",
    ]


def _classes(spec: TrainingSpec) -> list[str]:
    return [
        f"points, labels = classes({batches_per_epoch(spec) * spec.batch}, {spec.seed})",
        "",
        "",
        "def batch(index):",
        f"    part = slice(index * {spec.batch}, (index + 1) * {spec.batch})",
        "    return points[part], labels[part]",
        "",
        "",
        f"model = Mlp(FEATURES, {spec.width}, {spec.depth}, CLASSES)",
    ]


def _forward(spec: TrainingSpec, indent: str, *more: str) -> list[str]:
    lines = ["logits = model(inputs)", *more]
    if spec.precision == "fp32":
        return [f"{indent}{line}" for line in lines]
    return [f"{indent}with torch.autocast(device.type, torch.bfloat16):", *(f"{indent}    {line}" for line in lines)]


def _inference(spec: TrainingSpec) -> list[str]:
    return [
        "model.eval()",
        "seconds = []",
        "with torch.no_grad():",
        f"    for step in range({spec.steps}):",
        f"        inputs = batch(step % {batches_per_epoch(spec)})[0]",
        "        began = time.perf_counter()",
        "        inputs = inputs.to(device)",
        *_forward(spec, "        "),
        "        logits.argmax(-1).cpu()",
        "        seconds.append(time.perf_counter() - began)",
        'print(f"median latency {sorted(seconds)[len(seconds) // 2]:.6f} s")',
    ]


def _training(spec: TrainingSpec, device: str) -> list[str]:
    count = batches_per_epoch(spec)
    optimizer = {
        "sgd": f"torch.optim.SGD(model.parameters(), lr={spec.learning_rate!r})",
        "momentum": f"torch.optim.SGD(model.parameters(), lr={spec.learning_rate!r}, momentum={MOMENTUM})",
        "adam": f"torch.optim.Adam(model.parameters(), lr={spec.learning_rate!r})",
        "adamw": f"torch.optim.AdamW(model.parameters(), lr={spec.learning_rate!r})",
    }[spec.optimizer]
    moving = [
        f"    if epoch == {spec.move_at_epoch}:  # the model, then the optimizer's state after its parameters",
        f'        device = torch.device("{device}")',
        "        state = optimizer.state_dict()",
        "        model.to(device)",
        "        optimizer.load_state_dict(state)",
    ]
    resident = spec.batches == "resident"
    place = "resident[index]" if resident else "(tensor.to(device) for tensor in batch(index))"
    return [
        f"optimizer = {optimizer}",
        *(
            [f"resident = [[tensor.to(device) for tensor in batch(index)] for index in range({count})]"]
            if resident
            else []
        ),
        *(["kept = []"] if spec.keep_intermediates else []),
        "step = 0",
        f"for epoch in range(1, {spec.passes + 1}):",
        *(moving if spec.move_at_epoch else []),
        f"    generator = torch.Generator().manual_seed({spec.seed} * 1_000_003 + epoch)",
        f"    for index in torch.randperm({count}, generator=generator).tolist()[: {spec.steps} - step]:",
        "        step += 1",
        f"        inputs, targets = {place}",
        *_forward(spec, "        ", "loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())"),
        "        loss.backward()",
        "        optimizer.step()",
        "        optimizer.zero_grad(set_to_none=True)",
        *(["        kept.append((loss, logits))"] if spec.keep_intermediates else []),
        *(["        inputs.cpu(), targets.cpu()"] if spec.batches == "pingpong" else []),
        "        accuracy = (logits.detach().argmax(-1) == targets).float().mean()",
        '        print(f"{step} {loss.item()!r} {accuracy.item():.4f}")',
    ]
