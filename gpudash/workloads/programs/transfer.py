"""Measures copies between host and device over block sizes, pageable and pinned, alone and during a computation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gpudash.devices.names import SPEED_REMARK, kind_of
from gpudash.specs import NEEDS_CUDA, NEEDS_GPU, TransferSpec
from gpudash.specs.transfer import COMPARED_BYTES, COPY_STEPS
from gpudash.workloads.running.accelerators import synchronize
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.timing import Path, buffers, concurrent_products, median_and_iqr, sample, series_of

WARM_UP = 1
"""Samples before the measured ones."""


def run(spec: TransferSpec, context: Context) -> Mapping[str, Any]:
    """Measure every path that ``spec`` selects, over every block size.

    Returns:
        ``rates``: list of ``from, to, memory, blocking, block_bytes, bytes_per_second_median, bytes_per_second_iqr,
        samples``; if a path is not possible the figures are ``None`` and ``reason`` says why; for a simulated GPU,
        ``remark`` says what was really measured. ``best_bytes_per_second``: direction → the best median here.
        ``link_bytes_per_second``: the link's theoretical rate, ``None`` if unknown. ``copy_every_step_seconds`` and
        ``copy_once_seconds``: `COPY_STEPS` steps of work on a block that is copied there and back each step, or once.
    """
    context.keep(rates=[], link_bytes_per_second=context.link_bytes_per_second)
    paths = list(_paths(spec, context.device))
    possible = [path for path in paths if _reason(path, context.device) is None]
    sizes = spec.block_sizes
    steps = len(possible) * len(sizes) * spec.samples + 2
    context.begin_steps()
    for path in paths:
        reason = _reason(path, context.device)
        if reason is None:
            _measure(path, spec, context, steps)
        else:
            context.kept["rates"] += [_row(path, size, reason=reason) for size in sizes]
    every, once = _compare(min(sizes[-1], COMPARED_BYTES), context, steps)
    return {
        "rates": context.kept["rates"],
        "best_bytes_per_second": _best(context.kept["rates"]),
        "link_bytes_per_second": context.link_bytes_per_second,
        "copy_every_step_seconds": every,
        "copy_once_seconds": once,
        "copy_steps": COPY_STEPS,
    }


def _paths(spec: TransferSpec, device: torch.device) -> Iterator[Path]:
    if device.type == "cpu":
        there = "cuda"
    else:
        there = str(device)
    ends = {"h2d": ("cpu", there), "d2h": (there, "cpu"), "h2h": ("cpu", "cpu")}
    for direction, (source, target) in ends.items():
        if spec.directions not in ("all", direction):
            continue
        for memory in ("pageable", "pinned"):
            if spec.memory not in ("both", memory):
                continue
            for name, overlapped in (("blocking", False), ("overlapped", True)):
                if spec.blocking in ("both", name):
                    yield Path(source, target, memory, overlapped)


def _reason(path: Path, device: torch.device) -> str | None:
    """Why a path cannot be measured; ``None`` if it can."""
    if device.type != "cuda" and path.memory == "pinned":
        return NEEDS_CUDA.format(device=device)
    if device.type == "cpu" and not path.source == path.target == "cpu":
        return NEEDS_GPU.format(device=device)
    if path.overlapped and path.source == path.target:
        return "a copy within the host's memory is done by the CPU and overlaps with nothing"
    if path.overlapped and path.memory == "pageable":
        return "only pinned memory can be copied while the GPU computes"
    return None


def _measure(path: Path, spec: TransferSpec, context: Context, steps: int) -> None:
    sizes = spec.block_sizes
    whole_source, whole_target = buffers(path, sizes[-1], context)
    for size in sizes:
        source, target = whole_source[:size], whole_target[:size]
        products = 0
        for _ in range(WARM_UP):
            context.check_cancelled()
            seconds = sample(path, source, target, context)
            products = 0
            if path.overlapped:
                products = concurrent_products(seconds * series_of(size))
        rates: list[float] = []
        for _ in range(spec.samples):
            context.check_cancelled()
            seconds = sample(path, source, target, context, products)
            rates.append(size / seconds)
            copies = series_of(size)
            context.transfer(
                path.source,
                path.target,
                size * copies,
                seconds * copies,
                memory=path.memory,
                blocking=not path.overlapped,
            )
            context.progress(context.steps_done + 1, steps)
        context.kept["rates"].append(_row(path, size, rates=rates))


def _row(path: Path, size: int, rates: list[float] | None = None, reason: str | None = None) -> dict[str, Any]:
    if rates:
        median, iqr = median_and_iqr(rates)
    else:
        median, iqr = (None, None)
    row = {
        "from": path.source,
        "to": path.target,
        "memory": path.memory,
        "blocking": not path.overlapped,
        "block_bytes": size,
        "bytes_per_second_median": median,
        "bytes_per_second_iqr": iqr,
        "samples": len(rates) if rates else None,
    }
    if reason is not None:
        return {**row, "reason": reason}
    simulated = next((end for end in (path.source, path.target) if kind_of(end) == "sim"), None)
    if simulated is None:
        return row
    return {**row, "remark": SPEED_REMARK.format(device=simulated)}


def _best(rates: list[dict[str, Any]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for row in rates:
        direction = f"{row['from']} → {row['to']}"
        if row["bytes_per_second_median"] is not None:
            best[direction] = max(best.get(direction, 0.0), row["bytes_per_second_median"])
    return best


def _compare(size: int, context: Context, steps: int) -> tuple[float, float]:
    """Seconds for `COPY_STEPS` steps on a block that is copied every step, and on one that is copied once."""
    for memory in ("cpu", str(context.device)):  # at each end the block and its successor exist at once
        context.about_to_allocate(2 * size, memory)
    block = torch.ones(size, dtype=torch.uint8, device=context.host)
    seconds = []
    for every_step in (True, False):
        synchronize(context.device)
        began = time.perf_counter()
        there = _copied_to(block, context.device)
        for step in range(COPY_STEPS):
            context.check_cancelled()
            there.bitwise_xor_(1)
            if every_step:
                back = _copied_to(there, torch.device(context.host))
                if step < COPY_STEPS - 1:
                    there = _copied_to(back, context.device)
        if not every_step:
            back = _copied_to(there, torch.device(context.host))
        synchronize(context.device)
        seconds.append(time.perf_counter() - began)
        context.progress(context.steps_done + 1, steps)
    return seconds[0], seconds[1]


def _copied_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on ``device``, even if the tensor is already there."""
    return tensor.to(device, copy=True)
