"""What single operations ask of the allocator, on a GPU and in a dry run."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.gpu.child import Report, asked
from tests.gpu.prediction import card_of
from tests.gpu.recording import differences, followed, unpacked

Step = Callable[[], object]
Build = Callable[[torch.device], Step]

BF16 = torch.bfloat16
FP16 = torch.float16
FP32 = torch.float32


def _module(make: Callable[[], nn.Module], *size: int, dtype: torch.dtype = FP32, backward: bool = True) -> Build:
    """A module's forward pass on random values and, unless told otherwise, its backward pass."""

    def build(device: torch.device) -> Step:
        module = make().to(device, dtype)
        values = torch.randn(*size, device=device, dtype=dtype, requires_grad=backward)

        def step() -> object:
            with torch.set_grad_enabled(backward):
                result = module(values)
            if backward:
                result.backward(torch.ones_like(result))
                values.grad = None
                module.zero_grad(set_to_none=True)
            return result

        return step

    return build


def _function(act: Callable[..., torch.Tensor], *sizes: tuple[int, ...], dtype: torch.dtype = FP32) -> Build:
    """A function of random values, forward and backward."""

    def build(device: torch.device) -> Step:
        values = [torch.randn(*size, device=device, dtype=dtype, requires_grad=True) for size in sizes]

        def step() -> object:
            result = act(*values)
            result.backward(torch.ones_like(result))
            for value in values:
                value.grad = None
            return result

        return step

    return build


def _plain(act: Callable[..., object], *sizes: tuple[int, ...], dtype: torch.dtype = FP32) -> Build:
    """A function of random values without gradients."""

    def build(device: torch.device) -> Step:
        values = [torch.randn(*size, device=device, dtype=dtype) for size in sizes]
        return lambda: act(*values)

    return build


def _embedding(device: torch.device) -> Step:
    module = nn.Embedding(10_000, 512).to(device)
    indices = torch.zeros(64, 128, dtype=torch.int64, device=device)

    def step() -> object:
        result = module(indices)
        result.backward(torch.ones_like(result))
        module.zero_grad(set_to_none=True)
        return result

    return step


def _cross_entropy(dtype: torch.dtype) -> Build:
    def build(device: torch.device) -> Step:
        logits = torch.randn(4096, 10_000, device=device, dtype=dtype, requires_grad=True)
        targets = torch.zeros(4096, dtype=torch.int64, device=device)

        def step() -> object:
            loss = functional.cross_entropy(logits, targets)
            loss.backward()
            logits.grad = None
            return loss

        return step

    return build


def _optimizer(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Build:
    def build(device: torch.device) -> Step:
        weights = [nn.Parameter(torch.randn(512, 512 + 8 * n, device=device)) for n in range(8)]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer = kind(weights, lr=0.001, **options)
        return lambda: optimizer.step()

    return build


def _clipping(device: torch.device) -> Step:
    weights = [nn.Parameter(torch.randn(512, 512 + 8 * n, device=device)) for n in range(8)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return lambda: nn.utils.clip_grad_norm_(weights, 1.0)


def _autocast(dtype: torch.dtype) -> Build:
    def build(device: torch.device) -> Step:
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024), nn.LayerNorm(1024)).to(device)
        values = torch.randn(256, 1024, device=device)

        def step() -> object:
            with torch.autocast(device.type, dtype):
                loss = model(values).square().mean()
            loss.backward()
            model.zero_grad(set_to_none=True)
            return loss

        return step

    return build


OPERATIONS: dict[str, Build] = {
    "linear": _module(lambda: nn.Linear(1024, 4096), 512, 1024),
    "linear_no_bias": _module(lambda: nn.Linear(1024, 4096, bias=False), 512, 1024),
    "linear_3d_bf16": _module(lambda: nn.Linear(1024, 4096), 8, 512, 1024, dtype=BF16),
    "linear_inference": _module(lambda: nn.Linear(1024, 4096), 512, 1024, backward=False),
    "matmul_fp32": _plain(torch.matmul, (2048, 2048), (2048, 2048)),
    "matmul_bf16": _plain(torch.matmul, (4096, 4096), (4096, 4096), dtype=BF16),
    "matmul_fp16_backward": _function(torch.matmul, (1024, 2048), (2048, 512), dtype=FP16),
    "bmm": _function(torch.bmm, (64, 128, 64), (64, 64, 128)),
    "einsum": _function(lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), (4, 16, 128, 64), (4, 16, 128, 64)),
    "layer_norm": _module(lambda: nn.LayerNorm(1024), 8, 512, 1024),
    "layer_norm_bf16": _module(lambda: nn.LayerNorm(1024), 8, 512, 1024, dtype=BF16),
    "rms_norm": _module(lambda: nn.RMSNorm(1024), 8, 512, 1024),
    "group_norm": _module(lambda: nn.GroupNorm(8, 64), 16, 64, 32, 32),
    "batch_norm": _module(lambda: nn.BatchNorm2d(64), 16, 64, 32, 32),
    "batch_norm_bf16": _module(lambda: nn.BatchNorm2d(64), 16, 64, 32, 32, dtype=BF16),
    "softmax": _function(lambda x: functional.softmax(x, -1), (64, 128, 128)),
    "log_softmax": _function(lambda x: functional.log_softmax(x, -1), (4096, 1000)),
    "gelu": _function(functional.gelu, (4096, 1024)),
    "gelu_tanh": _function(lambda x: functional.gelu(x, approximate="tanh"), (4096, 1024)),
    "silu": _function(functional.silu, (4096, 1024)),
    "relu_inplace": _function(lambda x: functional.relu(x * 1, inplace=True), (4096, 1024)),
    "dropout": _function(lambda x: functional.dropout(x, 0.1, training=True), (4096, 1024)),
    "embedding": _embedding,
    "cross_entropy": _cross_entropy(FP32),
    "cross_entropy_bf16": _cross_entropy(BF16),
    "conv2d": _module(lambda: nn.Conv2d(32, 64, 3, padding=1), 16, 32, 64, 64),
    "conv2d_bf16": _module(lambda: nn.Conv2d(32, 64, 3, padding=1), 16, 32, 64, 64, dtype=BF16),
    "conv2d_stride": _module(lambda: nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False), 16, 64, 64, 64),
    "conv2d_1x1": _module(lambda: nn.Conv2d(64, 256, 1), 16, 64, 32, 32),
    "conv2d_patches": _function(
        lambda x, w, b: functional.conv2d(x, w, b, stride=16).flatten(2).transpose(1, 2).contiguous(),
        *((16, 3, 224, 224), (384, 3, 16, 16), (384,)),
    ),
    "conv1d": _module(lambda: nn.Conv1d(64, 128, 3, padding=1), 16, 64, 400),
    "conv_transpose2d": _module(lambda: nn.ConvTranspose2d(64, 32, 2, stride=2), 8, 64, 32, 32),
    "conv3d": _module(lambda: nn.Conv3d(16, 32, 3, padding=1), 2, 16, 16, 32, 32),
    "max_pool2d": _module(lambda: nn.MaxPool2d(2), 16, 64, 64, 64),
    "adaptive_avg_pool2d": _module(lambda: nn.AdaptiveAvgPool2d(1), 16, 64, 64, 64),
    "mean": _function(lambda x: x.mean(), (4096, 1024)),
    "sum_axis": _function(lambda x: x.sum(-1), (4096, 1024)),
    "cat": _function(lambda a, b: torch.cat((a, b), -1), (4096, 512), (4096, 512)),
    "where_mask": _function(lambda x: torch.where(x > 0, x, 0.0), (4096, 1024)),
    "index_select": _plain(lambda x: x[torch.zeros(512, dtype=torch.int64, device=x.device)], (4096, 1024)),
    "sort": _plain(lambda x: torch.sort(x, -1), (1024, 4096)),
    "topk": _plain(lambda x: torch.topk(x, 50, -1), (1024, 4096)),
    "cumsum": _plain(lambda x: torch.cumsum(x, -1), (1024, 4096)),
    "argmax_item": _plain(lambda x: (x.argmax(-1) == 0).float().mean(), (4096, 1000)),
    "lstm": _module(lambda: _First(nn.LSTM(128, 256, batch_first=True)), 16, 32, 128),
    "mha": _module(lambda: _Self(nn.MultiheadAttention(512, 8, batch_first=True)), 8, 128, 512),
    "encoder_layer": _module(lambda: nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 8, 128, 512),
    "autocast_bf16": _autocast(BF16),
    "autocast_fp16": _autocast(FP16),
    "sgd_momentum": _optimizer(torch.optim.SGD, momentum=0.9),
    "adam_foreach": _optimizer(torch.optim.Adam, foreach=True),
    "adamw_default": _optimizer(torch.optim.AdamW),
    "adamw_single": _optimizer(torch.optim.AdamW, foreach=False),
    "adamw_fused": _optimizer(torch.optim.AdamW, fused=True),
    "clip_grad_norm": _clipping,
}


class _First(nn.Module):
    """The first result of a module that has several."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(values)[0]
        return result


class _Self(nn.Module):
    """Attention of values to themselves."""

    def __init__(self, inner: nn.MultiheadAttention) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(values, values, values, need_weights=False)[0]
        return result


BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}

SHAPES: dict[str, tuple[tuple[int, int, int, int], torch.dtype, bool]] = {
    "fp32": ((4, 8, 512, 64), FP32, False),
    "bf16": ((4, 8, 1024, 64), BF16, False),
    "bf16_causal": ((2, 16, 2048, 128), BF16, True),
    "fp16_odd": ((2, 8, 500, 40), FP16, False),
    "fp16_wide": ((2, 8, 512, 256), FP16, True),
}
"""Batch, heads, length and width of query, key and value; their type; whether attention is causal."""


Shape = tuple[tuple[int, int, int, int], torch.dtype, bool]


def _attention(backend: SDPBackend | None, shape: Shape) -> Build:
    size, dtype, causal = shape

    def build(device: torch.device) -> Step:
        parts = [torch.randn(*size, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]

        def step() -> object:
            if backend is None:
                result = functional.scaled_dot_product_attention(*parts, is_causal=causal)
            else:
                with sdpa_kernel([backend]):
                    result = functional.scaled_dot_product_attention(*parts, is_causal=causal)
            result.backward(torch.ones_like(result))
            for part in parts:
                part.grad = None
            return result

        return step

    return build


ATTENTION: dict[str, Build] = {
    f"sdpa_{name}_{called}": _attention(backend, shape)
    for called, shape in SHAPES.items()
    for name, backend in ({"chosen": None} | BACKENDS).items()
}

CUDNN_ATTENTION: dict[str, Build] = {
    f"sdpa_cudnn_{batch}x{heads}x{length}x{width}_{dtype}{'_causal' * causal}": _attention(
        SDPBackend.CUDNN_ATTENTION, ((batch, heads, length, width), getattr(torch, dtype), causal)
    )
    for batch, heads, length in ((1, 8, 128), (4, 12, 512), (2, 16, 2048), (1, 32, 8192))
    for width in (64, 128)
    for dtype in ("float16", "bfloat16")
    for causal in (False, True)
}
"""cuDNN's attention alone, over more sizes."""


def follow(device: torch.device, argument: Mapping[str, Any], tell: Report) -> None:
    """Follow the operations named in ``argument["names"]``: the first step of each, and one when all is warm."""
    known = OPERATIONS | ATTENTION | CUDNN_ATTENTION
    for name in argument["names"]:
        try:
            step = known[name](device)
            first = followed(device, step, argument["stacks"])
            step()
            tell(name, {"first": first, "warm": followed(device, step, argument["stacks"])})
            del step
        except Exception as error:  # any operation may fail in any way, and the others are to be followed
            tell(name, {"error": "".join(traceback.format_exception_only(error))[:400]})
        gc.collect()


def compared(real: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, Any]:
    """One operation on a GPU and in a dry run."""
    errors = {w: told["error"] for w, told in (("real", real), ("predicted", predicted)) if "error" in told}
    if errors:
        return {"errors": errors}
    found: dict[str, Any] = {}
    for when in ("first", "warm"):
        ours, theirs = real[when], predicted[when]
        requests = unpacked(ours["requests"]), unpacked(theirs["requests"])
        found[when] = {
            "requests": [len(part) for part in requests],
            "peak_bytes": [ours["peak_bytes"], theirs["peak_bytes"]],
            "peak_difference_bytes": theirs["peak_bytes"] - ours["peak_bytes"],
            "requested_difference_bytes": theirs["requested_bytes"] - ours["requested_bytes"],
            "differences": differences(*requests)[:4],
            "extra_behind": [{"size": r.size, "frames": list(r.frames)} for r in requests[0][len(requests[1]) :]][:4],
        }
    warm = found["warm"]
    found["same"] = not warm["differences"] and not warm["extra_behind"]
    return found


def measure(device: str, names: Iterable[str], *, stacks: str = "all", limit_s: float = 120.0) -> dict[str, Any]:
    """Follow the operations on ``device`` and in a dry run, and compare."""
    argument = {"names": list(names), "stacks": stacks}
    with ThreadPoolExecutor(2) as pool:
        card = card_of(device)
        dry = pool.submit(asked, follow, "dry", {**argument, "stacks": "python"}, card=card, limit_s=limit_s)
        real = asked(follow, device, argument, limit_s=limit_s)
        predicted = dry.result()
    missing = {"error": "not reached"}
    found = {name: compared(real.get(name, missing), predicted.get(name, missing)) for name in argument["names"]}
    return {
        "same": sum(told.get("same", False) for told in found.values()),
        "of": len(found),
        "failed": sorted(name for name, told in found.items() if "errors" in told),
        "different": sorted(name for name, told in found.items() if told.get("same") is False),
        "problems": [told["error"] for told in (real, predicted) if "error" in told],
        "seconds": [real["seconds"], predicted["seconds"]],
        "operations": found,
    }
