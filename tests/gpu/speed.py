"""How long operations and steps take on a device, to hold predicted times against.

Two hundred operations of every kind, small to large; the host's time of each beside the device's; the steps of ten
models. The first call of each pays for kernels that are loaded and algorithms that are chosen, and is not counted.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.gpu.child import Report

Build = Callable[[torch.device], Callable[[], object]]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

ROUND_S = 0.02
"""Calls of an operation follow one another for about so long, so that what a measurement costs does not count."""

ROUNDS = 5

MOST_CALLS = 500


def _of(act: Callable[..., object], *sizes: tuple[int, ...], dtype: str = "fp32") -> Build:
    """An operation on random tensors, without gradients."""

    def build(device: torch.device) -> Callable[[], object]:
        values = [torch.randn(*size, device=device).to(DTYPES[dtype]) for size in sizes]
        return lambda: act(*values)

    return build


def _with_backward(act: Callable[..., torch.Tensor], *sizes: tuple[int, ...], dtype: str = "fp32") -> Build:
    """The same, and its backward pass."""

    def build(device: torch.device) -> Callable[[], object]:
        values = [torch.randn(*size, device=device).to(DTYPES[dtype]).requires_grad_() for size in sizes]
        result = act(*values)
        gradient = torch.ones_like(result)
        return lambda: torch.autograd.grad(act(*values), values, gradient)

    return build


def _products() -> Iterator[tuple[str, Build]]:
    square = [(size, size, size) for size in (64, 256, 1024, 2048, 4096)]
    flat = [(rows, 4096, 4096) for rows in (1, 8, 32, 128)]
    uneven = [(1000, 1000, 1000), (4096, 32000, 1024), (8192, 768, 3072), (197 * 64, 768, 768)]
    for m, n, k in (*square, *flat, *uneven):
        for dtype in DTYPES:
            yield f"mm {m}×{n}×{k} {dtype}", _of(torch.mm, (m, k), (k, n), dtype=dtype)
    for batch, m, n, k in ((16, 512, 512, 64), (192, 197, 64, 197), (512, 64, 64, 64)):
        yield f"bmm {batch}×{m}×{n}×{k} fp16", _of(torch.bmm, (batch, m, k), (batch, k, n), dtype="fp16")
    for rows in (128, 4096):
        yield (
            f"linear {rows}×3072×768 bf16, backward",
            _with_backward(functional.linear, (rows, 768), (3072, 768), (3072,), dtype="bf16"),
        )


def _convolutions() -> Iterator[tuple[str, Build]]:
    # Batch, channels in and out, height, kernel, stride, groups: as of ResNet, VGG, MobileNet, ResNeXt, ConvNeXt.
    shapes = (
        (64, 3, 64, 224, 7, 2, 1),
        (64, 64, 64, 56, 3, 1, 1),
        (64, 128, 128, 28, 3, 1, 1),
        (64, 512, 512, 7, 3, 1, 1),
        (64, 256, 64, 56, 1, 1, 1),
        (64, 1024, 2048, 14, 1, 2, 1),
        (8, 64, 64, 224, 3, 1, 1),
        (1, 256, 256, 14, 3, 1, 1),
        (64, 96, 96, 112, 3, 1, 96),
        (64, 384, 384, 14, 5, 1, 384),
        (64, 192, 192, 28, 7, 1, 192),
        (64, 256, 256, 28, 3, 1, 32),
    )
    for batch, channels, filters, height, kernel, stride, groups in shapes:
        for dtype, last in (("fp32", False), ("fp16", False), ("fp16", True)):
            name = f"conv {batch}×{channels}→{filters}, {height}², {kernel}×{kernel}/{stride}, {groups} groups, {dtype}"
            if last:
                name += ", channels last"
            yield name, _convolution((batch, channels, height), filters, kernel, stride, groups, dtype, last)


def _convolution(
    given: tuple[int, int, int], filters: int, kernel: int, stride: int, groups: int, dtype: str, last: bool
) -> Build:
    batch, channels, height = given

    def build(device: torch.device) -> Callable[[], object]:
        layout = torch.channels_last if last else torch.contiguous_format
        values = torch.randn(batch, channels, height, height, device=device, dtype=DTYPES[dtype])
        values = values.to(memory_format=layout)
        weight = torch.randn(filters, channels // groups, kernel, kernel, device=device, dtype=DTYPES[dtype])
        weight = weight.to(memory_format=layout)
        return lambda: functional.conv2d(values, weight, stride=stride, padding=kernel // 2, groups=groups)

    return build


def _attention() -> Iterator[tuple[str, Build]]:
    for heads, length, width in ((12, 197, 64), (12, 512, 64), (16, 1024, 64), (32, 2048, 128), (8, 8192, 128)):
        batch = max(1, 16384 // length)
        size = (batch, heads, length, width)
        for dtype in ("fp32", "fp16", "bf16"):
            yield (
                f"attention {batch}×{heads}×{length}×{width} {dtype}",
                _of(functional.scaled_dot_product_attention, size, size, size, dtype=dtype),
            )

    def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    for length in (512, 2048):
        size = (8, 16, length, 64)
        yield f"causal attention {length} bf16, backward", _with_backward(causal, size, size, size, dtype="bf16")


def _normalisations() -> Iterator[tuple[str, Build]]:
    for rows, width in ((128, 768), (12608, 768), (8192, 4096)):
        for dtype in ("fp32", "fp16"):
            yield (
                f"layer_norm {rows}×{width} {dtype}",
                _of(
                    lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b),
                    (rows, width),
                    (width,),
                    (width,),
                    dtype=dtype,
                ),
            )
        yield (
            f"layer_norm {rows}×{width} fp32, backward",
            _with_backward(
                lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b), (rows, width), (width,), (width,)
            ),
        )
    for batch, channels, height in ((64, 64, 112), (64, 256, 56), (64, 2048, 7)):
        yield (
            f"batch_norm {batch}×{channels}×{height}² fp32, backward",
            _with_backward(
                lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
                (batch, channels, height, height),
                (channels,),
                (channels,),
            ),
        )
        yield (
            f"group_norm {batch}×{channels}×{height}² fp16",
            _of(lambda x: functional.group_norm(x, 32), (batch, channels, height, height), dtype="fp16"),
        )


def _elementwise() -> Iterator[tuple[str, Build]]:
    acts: dict[str, Callable[..., object]] = {
        "add": lambda x: x + x,
        "mul by a number": lambda x: x * 0.5,
        "gelu": functional.gelu,
        "silu": functional.silu,
        "relu": functional.relu,
        "dropout": lambda x: functional.dropout(x, 0.1),
        "to fp16": lambda x: x.to(torch.float16),
        "transposed copy": lambda x: x.t().contiguous(),
    }
    for elements in (2**10, 2**18, 2**24, 2**27):
        for name, act in acts.items():
            yield f"{name}, {elements} elements fp32", _of(act, (elements // 256, 256))
        yield f"gelu, {elements} elements fp16", _of(functional.gelu, (elements // 256, 256), dtype="fp16")


def _reductions() -> Iterator[tuple[str, Build]]:
    acts: dict[str, Callable[..., object]] = {
        "sum": torch.sum,
        "mean of rows": lambda x: x.mean(-1),
        "sum of columns": lambda x: x.sum(0),
        "argmax": lambda x: x.argmax(-1),
        "cumsum": lambda x: x.cumsum(-1),
        "softmax": lambda x: x.softmax(-1),
        "log_softmax": lambda x: x.log_softmax(-1),
    }
    for rows, width in ((64, 1000), (4096, 1024), (4096, 32000)):
        for name, act in acts.items():
            yield f"{name} {rows}×{width} fp32", _of(act, (rows, width))


def _lookups() -> Iterator[tuple[str, Build]]:
    def embedding(rows: int, width: int, given: int, backward: bool) -> Build:
        def build(device: torch.device) -> Callable[[], object]:
            weight = torch.randn(rows, width, device=device, requires_grad=backward)
            places = torch.arange(given, device=device) * 7919 % rows
            if not backward:
                return lambda: functional.embedding(places, weight)
            gradient = torch.ones(given, width, device=device)
            return lambda: torch.autograd.grad(functional.embedding(places, weight), weight, gradient)

        return build

    for rows, width, given in ((32000, 768, 4096), (128256, 4096, 8192), (1000, 64, 256)):
        yield f"embedding {given} of {rows}×{width}", embedding(rows, width, given, backward=False)
        yield f"embedding {given} of {rows}×{width}, backward", embedding(rows, width, given, backward=True)

    def scatter(elements: int) -> Build:
        def build(device: torch.device) -> Callable[[], object]:
            values = torch.randn(elements, device=device)
            places = torch.arange(elements, device=device) * 7919 % 4096
            target = torch.zeros(4096, device=device)
            return lambda: target.scatter_add_(0, places, values)

        return build

    for elements in (2**14, 2**22):
        yield f"scatter_add {elements}", scatter(elements)
        yield f"sort {elements}", _of(lambda x: x.sort(), (elements,))
        yield f"topk 64 of {elements}", _of(lambda x: x.topk(64), (elements,))


def _recurrent() -> Iterator[tuple[str, Build]]:
    def layer(make: Callable[..., nn.Module], batch: int, length: int, width: int) -> Build:
        def build(device: torch.device) -> Callable[[], object]:
            module = make(width, width, batch_first=True).to(device).requires_grad_(False)
            values = torch.randn(batch, length, width, device=device)
            return lambda: module(values)

        return build

    for make, batch, length, width in ((nn.LSTM, 16, 64, 256), (nn.LSTM, 64, 128, 1024), (nn.GRU, 64, 128, 512)):
        yield f"{make.__name__} {batch}×{length}×{width} fp32", layer(make, batch, length, width)


def _optimizers() -> Iterator[tuple[str, Build]]:
    def optimizer(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], tensors: int, elements: int) -> Build:
        def build(device: torch.device) -> Callable[[], object]:
            parameters = [torch.randn(elements, device=device, requires_grad=True) for _ in range(tensors)]
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            made = make(parameters)
            return lambda: made.step()

        return build

    makes: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
        "SGD with momentum": lambda given: torch.optim.SGD(given, lr=1e-9, momentum=0.9),
        "AdamW": lambda given: torch.optim.AdamW(given, lr=1e-9),
        "AdamW, one by one": lambda given: torch.optim.AdamW(given, lr=1e-9, foreach=False),
        "fused AdamW": lambda given: torch.optim.AdamW(given, lr=1e-9, fused=True),
    }
    for tensors, elements in ((150, 2**16), (150, 2**20)):
        for name, make in makes.items():
            yield f"{name}, {tensors} of {elements}", optimizer(make, tensors, elements)


def _copies() -> Iterator[tuple[str, Build]]:
    def copy(size: int, pinned: bool, inward: bool) -> Build:
        def build(device: torch.device) -> Callable[[], object]:
            here = torch.empty(size, dtype=torch.uint8, pin_memory=pinned and device.type == "cuda")
            there = torch.empty(size, dtype=torch.uint8, device=device)
            if inward:
                return lambda: there.copy_(here)
            return lambda: here.copy_(there)

        return build

    for size in (2**12, 2**20, 2**26):
        for pinned in (False, True):
            memory = "pinned" if pinned else "pageable"
            yield f"copy of {size} bytes in, {memory}", copy(size, pinned, inward=True)
            yield f"copy of {size} bytes out, {memory}", copy(size, pinned, inward=False)


OPERATIONS: dict[str, Build] = dict(
    case
    for cases in (
        _products,
        _convolutions,
        _attention,
        _normalisations,
        _elementwise,
        _reductions,
        _lookups,
        _recurrent,
        _optimizers,
        _copies,
    )
    for case in cases()
)
"""By what is printed of them."""

SMALL_OPERATIONS = [
    name for name in OPERATIONS if name.startswith(("mm 64×", "gelu, 1024 ", "softmax 64×", "sort 16384"))
]
"""Of each some that a CPU does in a moment."""


def measure(device: torch.device, names: list[str], report: Report) -> None:
    """Report ``seconds`` and ``host_s`` of each operation, a call; or why it could not be measured."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = timed(OPERATIONS[name](device), device)
        except (RuntimeError, TypeError) as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    report("operations", found)


def timed(call: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Seconds that a call takes on the device, and that the host takes to start it; medians of some rounds."""
    synchronise = _synchronising(device)
    call()
    began = time.perf_counter()
    call()
    synchronise()
    calls = max(1, min(MOST_CALLS, int(ROUND_S / max(time.perf_counter() - began, 1e-9))))
    seconds, host = [], []
    for _ in range(ROUNDS):
        synchronise()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        started = time.perf_counter()
        synchronise()
        seconds.append((time.perf_counter() - began) / calls)
        host.append((started - began) / calls)
    return {"seconds": statistics.median(seconds), "host_s": statistics.median(host), "calls": calls}


def _synchronising(device: torch.device) -> Callable[[], object]:
    if device.type == "cpu":
        return lambda: None
    module: Any = getattr(torch, device.type)
    return lambda: module.synchronize(device)


class _Block(nn.Module):
    """Of a transformer, as of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.before = nn.LayerNorm(width)
        self.projected = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        batch, length, width = values.shape
        parts = self.projected(self.before(values)).view(batch, length, 3, self._heads, width // self._heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return values + self.wide(self.after(values))


def _transformer(width: int, layers: int, words: int = 32000) -> nn.Module:
    blocks = [_Block(width, max(1, width // 64)) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(words, width), *blocks, nn.LayerNorm(width), nn.Linear(width, words))


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def _stage(channels: int, filters: int, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, filters, 3, stride=2, padding=1, bias=False, groups=groups),
        nn.BatchNorm2d(filters),
        nn.ReLU(inplace=True),
        nn.Conv2d(filters, filters, 3, padding=1, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU(inplace=True),
    ]


def _convolutional(width: int) -> nn.Module:
    stages = [
        *_stage(3, width),
        *_stage(width, 2 * width),
        *_stage(2 * width, 4 * width),
        *_stage(4 * width, 8 * width),
    ]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 1000))


def _images(batch: int, *size: int) -> Callable[[torch.device], torch.Tensor]:
    return lambda device: torch.randn(batch, *size, device=device)


def _words(batch: int, length: int) -> Callable[[torch.device], torch.Tensor]:
    return lambda device: torch.arange(batch * length, device=device).view(batch, length) % 32000


STEPS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.device], torch.Tensor], str, bool]] = {
    "perceptron, batch 64": (_perceptron, _images(64, 1, 28, 28), "fp32", True),
    "perceptron, batch 8192": (_perceptron, _images(8192, 1, 28, 28), "fp32", True),
    "convolutions 64 wide, batch 32": (lambda: _convolutional(64), _images(32, 3, 224, 224), "fp32", True),
    "convolutions 64 wide, batch 128, AMP": (lambda: _convolutional(64), _images(128, 3, 224, 224), "fp16", True),
    "convolutions 128 wide, batch 64, inference": (
        lambda: _convolutional(128),
        _images(64, 3, 224, 224),
        "fp16",
        False,
    ),
    "transformer 384 wide, 6 layers, 8×256": (lambda: _transformer(384, 6), _words(8, 256), "fp32", True),
    "transformer 768 wide, 12 layers, 8×512, AMP": (lambda: _transformer(768, 12), _words(8, 512), "bf16", True),
    "transformer 1024 wide, 24 layers, 4×1024, AMP": (lambda: _transformer(1024, 24), _words(4, 1024), "bf16", True),
    "transformer 768 wide, 12 layers, 1×512, inference": (lambda: _transformer(768, 12), _words(1, 512), "fp16", False),
    "transformer 2048 wide, 8 layers, 4×2048, AMP": (lambda: _transformer(2048, 8), _words(4, 2048), "bf16", True),
}
"""Module, what it is given, precision, and whether it is trained; by what is printed of them."""

SMALL_STEPS = ["perceptron, batch 64"]


def step_of(name: str, device: torch.device) -> Callable[[], object]:
    """A step of one of `STEPS` on ``device``."""
    make, given, precision, trained = STEPS[name]
    module, values = make().to(device), given(device)
    autocast = torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32")
    if not trained:
        module.eval()

        def infer() -> object:
            with torch.no_grad(), autocast:
                return module(values)

        return infer
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-9)

    def train() -> object:
        optimizer.zero_grad()
        with autocast:
            answer = module(values)
            targets = torch.zeros(answer.shape[:-1], dtype=torch.int64, device=device)
            loss = functional.cross_entropy(answer.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return train


def measure_steps(device: torch.device, names: list[str], report: Report) -> None:
    """Report ``seconds`` and ``host_s`` of a step of each model; or why it could not be measured."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = timed(step_of(name, device), device)
        except RuntimeError as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        report("steps", found)


def follow(_device: None, names: Mapping[str, list[str]], report: Report) -> None:
    """Report the work of a call of each of ``names["operations"]`` and of a step of each of ``names["steps"]``."""
    from gpudash.simulator.dry_run.dry_run import DryRun

    dry = DryRun()
    engine = dry.backend.engine

    def work(build: Build) -> dict[str, Any]:
        def run(_tracker: object) -> None:
            call = build(torch.device("sim", 0))
            # Twice: the first step of an optimizer makes its state.
            for _ in range(2):
                if engine.work_log is not None:
                    engine.work_log.begin_steps()
                call()
                if engine.work_log is not None:
                    engine.work_log.end_step()

        found = dry.record(run, trusting=True).work
        if found is None:
            return {"error": "no step was followed"}
        return found.to_dict()

    builds = {name: OPERATIONS[name] for name in names["operations"]}
    builds |= {name: functools.partial(step_of, name) for name in names["steps"]}
    for name, build in builds.items():
        report(name, work(build))
