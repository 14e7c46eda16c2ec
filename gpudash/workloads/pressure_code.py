"""Memory pressure as a plain PyTorch program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gpudash.specs import PressureSpec
from gpudash.units import GIB
from gpudash.workloads.classes import CLASSES, FEATURES, SPREAD, classes
from gpudash.workloads.pressure import OF_FREE
from gpudash.workloads.pressure_leak import (
    DEPTH,
    LEARNING_RATE,
    SAMPLE_BYTES,
    WIDTH,
    leak_within,
    small_model,
    train_step,
)
from gpudash.workloads.pressure_patterns import (
    FIRST_TOOTH,
    KEPT,
    LONGER,
    OWN_SEGMENT,
    SMALL,
    TEETH,
    growing,
    kept_bytes,
)

LEAST_CAP = 1024
"""The least bytes that `PressureSpec.cap` may be."""


def ending(spec: PressureSpec, most: int | None) -> PressureSpec:
    """``spec`` with a cap, where it has none of its own: a program has no warning level to end above.

    Args:
        spec: the run.
        most: bytes that torch can reserve; ``None`` where that is not known.
    """
    if spec.cap is not None or spec.until == "oom":
        return spec
    cap = GIB if most is None else max(LEAST_CAP, min(GIB, int(OF_FREE * most)))
    cap = leak_within(cap, spec.step) if spec.pattern == "leak" else cap
    return spec.model_copy(update={"cap": cap})


def pressure_code(spec: PressureSpec, device: str) -> list[str]:
    """The lines of the program."""
    write = {
        "ramp": _ramp,
        "leak": _leak,
        "sawtooth": _sawtooth,
        "fragmentation": _fragmentation,
        "spike": _spike,
    }[spec.pattern]
    cap = "float('inf')" if spec.until == "oom" else str(spec.cap)
    return [
        "import itertools",
        "import time",
        "from collections.abc import Iterator",
        "",
        "import torch",
        "from torch import nn",
        "from torch.nn import functional",
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f"torch.manual_seed({spec.seed})",
        f'device = torch.device("{device}")',
        f"cap = {cap}  # bytes",
        "",
        "",
        "def filled(size):",
        "    return torch.empty(size, dtype=torch.uint8, device=device).fill_(1)",
        *write(spec),
        *([] if spec.until == "oom" else [f"time.sleep({spec.hold!r})"]),
    ]


def _ramp(spec: PressureSpec) -> list[str]:
    return [
        "",
        "",
        "held = []",
        "level = 0",
        "while level < cap:",
        f"    held.append(filled(min({spec.step}, cap - level)))",
        "    level += held[-1].nbytes",
        '    print(f"{level / 2**20:.0f} MiB")',
        f"    time.sleep({1 / spec.rate!r})",
    ]


def _leak(spec: PressureSpec) -> list[str]:
    functions = [line for function in (classes, small_model, train_step) for line in ("", "", *_source(function))]
    return [
        "",
        "",
        f"FEATURES, CLASSES, SPREAD, WIDTH, DEPTH = {FEATURES}, {CLASSES}, {SPREAD}, {WIDTH}, {DEPTH}",
        *functions,
        "",
        "",
        f"samples = int(max(1, min({spec.step}, cap) // {SAMPLE_BYTES}))",
        f"inputs, targets = (tensor.to(device) for tensor in classes(samples, {spec.seed}))",
        "model = small_model().to(device)",
        f"optimizer = torch.optim.Adam(model.parameters(), lr={LEARNING_RATE})",
        "losses = []",
        f"while (len(losses) + 1) * samples * {SAMPLE_BYTES} <= cap:",
        "    train_step(model, optimizer, inputs, targets, losses)",
        '    print(f"{len(losses)} {losses[-1].item():.4f}")',
        f"    time.sleep({1 / spec.rate!r})",
    ]


def _sawtooth(spec: PressureSpec) -> list[str]:
    if spec.until == "oom":
        tops = f"({FIRST_TOOTH * spec.step} << tooth for tooth in itertools.count())"
    else:
        tops = f"[cap] * {TEETH}"
    return [
        "",
        "",
        f"for top in {tops}:",
        "    held = []",
        "    level = 0",
        "    while level < top:",
        f"        held.append(filled(min({spec.step}, top - level)))",
        "        level += held[-1].nbytes",
        f"        time.sleep({1 / spec.rate!r})",
        '    print(f"{level / 2**20:.0f} MiB")',
        "    held.clear()",
    ]


def _fragmentation(spec: PressureSpec) -> list[str]:
    functions = [line for function in (kept_bytes, growing) for line in ("", "", *_source(function))]
    return [
        "",
        "",
        f"KEPT, SMALL, LONGER, OWN_SEGMENT = {KEPT}, {SMALL}, {LONGER}, {OWN_SEGMENT}",
        *functions,
        "",
        "",
        "def keep_a_part(size, part):",
        "    buffer = filled(size)",
        "    del buffer",
        "    rest = torch.empty(size - part, dtype=torch.uint8, device=device)",
        "    return filled(part)  # and what lies before it becomes a hole",
        "",
        "",
        "kept = []",
        f"for size in growing({spec.step}, {'None' if spec.until == 'oom' else 'cap'}):",
        "    kept.append(keep_a_part(size, kept_bytes(size)))",
        '    print(f"{sum(part.nbytes for part in kept) / 2**20:.0f} MiB kept")',
        f"    time.sleep({1 / spec.rate!r})",
    ]


def _spike(spec: PressureSpec) -> list[str]:
    sizes = "((2 * flat) << spike for spike in itertools.count())" if spec.until == "oom" else "[cap - flat]"
    return [
        "",
        "",
        f"flat = min({spec.step}, cap // 2)" if spec.until == "cap" else f"flat = {spec.step}",
        "held = filled(flat)",
        *([f"time.sleep({spec.hold!r})"] if spec.until == "cap" else []),
        f"for size in {sizes}:",
        "    memory = filled(size)",
        '    print(f"{(flat + size) / 2**20:.0f} MiB")',
        f"    time.sleep({1 / spec.rate!r})",
        "    del memory",
    ]


def _source(function: Callable[..., Any]) -> list[str]:
    return inspect.getsource(function).rstrip().splitlines()
