"""Sorting itself, imported by the worker alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpudash.workloads.running.context import Context
from gpudash_sorting.spec import SortingSpec


def run(spec: SortingSpec, context: Context) -> Mapping[str, Any]:
    """Sort ``spec.numbers`` random numbers ``spec.repeat`` times; the result tells how many a second."""
    context.about_to_allocate(4 * 4 * spec.numbers)  # the numbers, the sorted ones and their places of 64 bits
    numbers = torch.rand(spec.numbers, device=context.device)
    context.begin_steps()
    seconds = 0.0
    for step in range(1, spec.repeat + 1):
        context.check_cancelled()
        with context.stage("sort"):
            numbers.sort()
        took_s = context.stage_seconds("sort")
        seconds += took_s
        context.step(step, spec.repeat, throughput=spec.numbers / took_s)
    return {"numbers_per_second": spec.numbers * spec.repeat / seconds}
