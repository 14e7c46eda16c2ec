"""Limiting what torch reserves on a device during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gpudash.specs.memory_cap import MemoryCap

if TYPE_CHECKING:
    import torch


@contextmanager
def capped(device: torch.device, cap: MemoryCap | None) -> Iterator[None]:
    """Let torch reserve at most ``cap`` on ``device`` inside the block, and what it was allowed before behind it."""
    if cap is None:
        yield
        return
    import torch

    module: Any = getattr(torch, device.type)
    read = getattr(module, "get_per_process_memory_fraction", None)  # older versions of torch set it only
    before = 1.0 if read is None else read(device)
    module.set_per_process_memory_fraction(cap.fraction(module.get_device_properties(device).total_memory), device)
    try:
        yield
    finally:
        with suppress(RuntimeError):  # a broken device has its own error, which must not be hidden
            module.set_per_process_memory_fraction(before, device)
