"""What ``import gpudash`` measures and explains in a process that uses CUDA."""

from __future__ import annotations

import gc

import torch

import gpudash
from gpudash.units import MIB

DEVICE = "cuda:0"


def test_a_block_is_measured_with_its_peak_and_its_lines() -> None:
    gc.collect()
    with gpudash.measure() as found:
        kept = torch.ones(4 * MIB // 4, device=DEVICE)
        gone = torch.ones(8 * MIB // 4, device=DEVICE)
        del gone
    assert found.peak_bytes - found.began_bytes == 12 * MIB
    assert sum(size for line, size in found.by_line.items() if "test_python_face_on_a_gpu.py" in line) == 12 * MIB
    assert kept.numel() == MIB


def test_an_out_of_memory_is_explained_after_it() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    before = torch.cuda.get_per_process_memory_fraction(0)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + 256 * MIB) / total, 0)
    kept = []
    try:
        with gpudash.measure():
            while True:
                kept.append(torch.ones(32 * MIB // 4, device=DEVICE))
                assert len(kept) < 64, "the limit does not hold"
    except torch.OutOfMemoryError as error:
        explained = gpudash.explain(error)
    finally:
        kept.clear()
        torch.cuda.set_per_process_memory_fraction(before, 0)
    assert "test_python_face_on_a_gpu.py" in str(explained)
    assert explained.explanation.requested_bytes == 32 * MIB
    assert explained.explanation.verdict == "memory cap"
