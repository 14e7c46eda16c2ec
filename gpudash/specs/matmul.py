"""The spec of the matrix product."""

from __future__ import annotations

import os
from typing import ClassVar

from gpudash.specs.base import CPU_FLOPS, LONG_OPERATION_S, FloatDtype, Presets, Spec, field, long_operation

WARM_UP = 2
"""Products before the measured ones: the first includes starting threads, handles and memory."""

LARGE = 256
"""Number of rows from which more than one CPU thread pays off."""

MIN_PANEL_ROWS = 128
"""Fewest rows computed together: with fewer, the product would be slower than it should be."""


class MatmulSpec(Spec):
    """Multiply square matrices and report FLOP/s."""

    name = "matmul"
    title = "Matrix product"
    summary = "Multiplies square matrices and reports the achieved FLOP/s, median and spread."
    run = "gpudash.workloads.programs.matmul:run"
    steps_field = "repeat"
    presets: ClassVar[Presets] = {
        "Quick": {},
        "Large": {"size": 4096, "repeat": 50},
        "Half precision": {"size": 4096, "dtype": "bfloat16", "repeat": 100},
    }

    size: int = field(1024, "Rows and columns of each matrix", ge=1, le=65536)
    dtype: FloatDtype = field("float32", "Type of the elements")
    repeat: int = field(30, "Products measured, after a warm-up", ge=3, le=1_000_000)

    def panel_rows(self, device: str) -> int:
        """Rows multiplied in one operation; on the CPU, as many as are expected to take a second."""
        if device.startswith("cuda"):
            return self.size
        return min(self.size, max(MIN_PANEL_ROWS, int(LONG_OPERATION_S * CPU_FLOPS / (2 * self.size**2))))

    def cautions(self, device: str) -> list[str]:
        if device.startswith("cuda"):
            return []
        seconds = 2 * self.size**2 * self.panel_rows(device) / CPU_FLOPS
        return long_operation(seconds, f"part of a product of {self.size} × {self.size}")


def threads_for(size: int) -> int:
    """CPU threads for a product of ``size`` rows: all cores but one, which is left to the window."""
    if size < LARGE:
        return 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, cores - 1)
