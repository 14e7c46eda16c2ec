"""The figures of `transfer` and `matmul` on the CPU, beside a bare copy and a bare product in the same process."""

from __future__ import annotations

import statistics
import time

import torch

from gpudash.specs import MatmulSpec, TransferSpec
from gpudash.workloads.programs import matmul, transfer
from gpudash.workloads.running.context import Context

BLOCK_BYTES = 64 * 2**20
SIZE = 1024
ROUNDS = 9


def measure() -> dict[str, float]:
    """Reported rate over the bare one, and the larger of each ratio and its inverse, which is what is held."""
    torch.set_num_threads(1)
    copies, products = _copy_ratio(), _product_ratio()
    return {
        "transfer_over_bare": copies,
        "matmul_over_bare": products,
        "transfer_off": max(copies, 1 / copies),
        "matmul_off": max(products, 1 / products),
    }


def _context() -> Context:
    return Context(torch.device("cpu"), run_id=1, emit=lambda _event: None, clock=time.monotonic)


def _copy_ratio() -> float:
    result = transfer.run(TransferSpec(blocks="64MiB", directions="h2h", samples=ROUNDS), _context())
    told = next(r["bytes_per_second_median"] for r in result["rates"] if r["bytes_per_second_median"] is not None)
    source, target = (torch.ones(BLOCK_BYTES, dtype=torch.uint8) for _side in range(2))
    target.copy_(source)
    times = []
    for _round in range(ROUNDS):
        began = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began)
    return float(told) / (BLOCK_BYTES / statistics.median(times))


def _product_ratio() -> float:
    spec = MatmulSpec(size=SIZE, repeat=20, threads=1)
    told = float(matmul.run(spec, _context())["flops_per_second"])
    left, right = (torch.rand(SIZE, SIZE) for _side in range(2))
    times = []
    for _round in range(20):
        began = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - began)
    return told / (2 * SIZE**3 / statistics.median(times))
