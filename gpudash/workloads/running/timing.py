"""Times copies between two memories like nvbandwidth: buffers allocated once, events around the copies, medians.

nvbandwidth (NVIDIA, Apache-2.0) pins outside its loop, times a series of copies by CUDA events and reports the median
of its samples. This module does the same, on the CPU with the monotonic clock.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gpudash.specs.transfer import COMPUTE_MARGIN, COMPUTE_SIZE, SERIES, SERIES_BYTES
from gpudash.workloads.running.accelerators import synchronize
from gpudash.workloads.running.context import Context

MOST_PRODUCTS = 4096


@dataclass(frozen=True)
class Path:
    """A path between two memories.

    Attributes:
        source, target: torch's names of the devices.
        memory: type of the host memory.
        overlapped: whether the copies run during a computation rather than alone.
    """

    source: str
    target: str
    memory: Literal["pageable", "pinned"]
    overlapped: bool


def buffers(path: Path, size: int, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target of ``size`` bytes, every page written; announced before they are allocated."""
    made: list[torch.Tensor] = []
    for device in (path.source, path.target):
        context.about_to_allocate(size, device)
        pinned = device == "cpu" and path.memory == "pinned"
        if device == "cpu":
            where = context.host
        else:
            where = device
        made.append(torch.empty(size, dtype=torch.uint8, device=where, pin_memory=pinned).fill_(len(made)))
    return made[0], made[1]


def series_of(size: int) -> int:
    """Number of copies of ``size`` bytes in a sample."""
    return min(SERIES, max(1, math.ceil(SERIES_BYTES / size)))


def sample(path: Path, source: torch.Tensor, target: torch.Tensor, context: Context, products: int = 0) -> float:
    """Seconds per copy: the mean of a series, by events on the copying stream or, on the CPU, by the clock.

    Args:
        products: matrix products that run during overlapped copies.
    """
    count = series_of(len(source))
    if context.device.type == "cuda":
        return _timed_by_events(path, source, target, count, products)
    if len(source) * count > SERIES_BYTES * 2:
        context.check_cancelled()
    synchronize(context.device)
    began = time.perf_counter()
    for _ in range(count):
        target.copy_(source)
    synchronize(context.device)
    return (time.perf_counter() - began) / count


def concurrent_products(seconds: float) -> int:
    """Number of matrix products that take longer than copies of ``seconds`` in total."""
    matrix = _matrix()
    torch.mm(matrix, matrix)
    began, ended = _event(), _event()
    began.record()
    for _ in range(4):
        torch.mm(matrix, matrix)
    ended.record()
    ended.synchronize()
    one = began.elapsed_time(ended) / 1e3 / 4
    wanted: int = math.ceil(COMPUTE_MARGIN * seconds / one)
    return max(1, min(MOST_PRODUCTS, wanted))


def _timed_by_events(path: Path, source: torch.Tensor, target: torch.Tensor, count: int, products: int) -> float:
    on_host = path.source == path.target == "cpu"
    if on_host:
        began_s = time.perf_counter()
        for _ in range(count):
            target.copy_(source)
        return (time.perf_counter() - began_s) / count
    stream: Any = torch.cuda.Stream() if path.overlapped else torch.cuda.current_stream()  # type: ignore[no-untyped-call]
    began, ended = _event(), _event()
    torch.cuda.synchronize()
    if path.overlapped:
        matrix = _matrix()
        for _ in range(products):
            torch.mm(matrix, matrix)
    with torch.cuda.stream(stream):
        began.record()
        for _ in range(count):
            target.copy_(source, non_blocking=path.memory == "pinned")
        ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / 1e3 / count


def _matrix() -> torch.Tensor:
    return torch.ones(COMPUTE_SIZE, COMPUTE_SIZE, device="cuda")


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def median_and_iqr(values: Sequence[float]) -> tuple[float, float]:
    """Median and interquartile range (linear between the nearest ranks, NumPy's default); 0 for a single value."""
    if len(values) < 2:
        return values[0], 0.0
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return middle, upper - lower
