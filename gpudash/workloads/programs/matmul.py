"""Square matrix products, and the operations per second they reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpudash.specs import DTYPE_BYTES, MatmulSpec
from gpudash.specs.matmul import WARM_UP, threads_for
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.timing import median_and_iqr


def run(spec: MatmulSpec, context: Context) -> Mapping[str, Any]:
    """Compute ``spec.repeat`` products of two random matrices, each timed.

    Returns:
        ``flops_per_second`` (2 n³ over the median time), ``seconds_median``, ``seconds_iqr``, ``threads``, ``size``,
        ``dtype``.
    """
    threads = spec.threads or threads_for(spec.size)
    context.use_threads(threads)
    one = spec.size**2 * DTYPE_BYTES[spec.dtype]
    context.about_to_allocate(3 * one)
    left, right, product = _matrices(spec, context)
    for _ in range(WARM_UP):
        _multiply(spec, left, right, product, context)
    context.begin_steps()
    times: list[float] = []
    for repetition in range(1, spec.repeat + 1):
        with context.stage("product", flops=2.0 * spec.size**3, device=str(context.device), dtype=spec.dtype) as stage:
            _multiply(spec, left, right, product, context)
        stage.report(shape=(spec.size, spec.size))
        times.append(context.stage_seconds("product"))
        context.step(repetition, spec.repeat, throughput=1 / times[-1])
    median, iqr = median_and_iqr(times)
    return {
        "flops_per_second": 2 * spec.size**3 / median,
        "seconds_median": median,
        "seconds_iqr": iqr,
        "threads": threads,
        "size": spec.size,
        "dtype": spec.dtype,
    }


def _matrices(spec: MatmulSpec, context: Context) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = getattr(torch, spec.dtype)
    made: list[torch.Tensor] = []
    for fill in (True, True, False):
        context.check_cancelled()
        matrix = torch.empty(spec.size, spec.size, dtype=dtype, device=context.device)
        for panel in torch.split(matrix, max(1, 2**24 // spec.size)) if fill else ():
            context.check_cancelled()
            panel.uniform_(-1, 1)
        made.append(matrix)
    return made[0], made[1], made[2]


def _multiply(
    spec: MatmulSpec, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, context: Context
) -> None:
    """``product = left @ right``, on a CPU in panels of rows, with a check for Stop in between."""
    rows = spec.panel_rows(context.device.type)
    for first in range(0, spec.size, rows):
        context.check_cancelled()
        panel = slice(first, first + rows)
        torch.mm(left[panel], right, out=product[panel])
