"""torch's caching allocator during a run, of CUDA or of a simulated GPU: reading it, and limiting what it takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gpudash.specs.memory_cap import MemoryCap

if TYPE_CHECKING:
    import torch


class AllocatorProbe:
    """Reads the allocator of one device; callable from any thread that imports nothing.

    The peak is that since the last reading: every reading resets torch's counter, and the run's own maximum is kept
    here. What is allocated *and* freed between reading and resetting, a few microseconds, is not seen.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._torch: Any = getattr(torch, device.type)
        self._lock = threading.Lock()
        self._torch.reset_peak_memory_stats(device)
        self._retries_before = int(self._torch.memory_stats(device).get("num_alloc_retries", 0))
        self._peak_allocated = self._torch.memory_allocated(device)
        self._peak_reserved = self._torch.memory_reserved(device)

    def __call__(self) -> Mapping[str, int]:
        """Metrics of the ``allocator`` table, in bytes; ``allocation_retries`` counts from the run's beginning."""
        with self._lock:
            statistics = self._torch.memory_stats(self._device)
            self._torch.reset_peak_memory_stats(self._device)
            reading = {
                "allocated_bytes": int(statistics.get("allocated_bytes.all.current", 0)),
                "reserved_bytes": int(statistics.get("reserved_bytes.all.current", 0)),
                "peak_allocated_bytes": int(statistics.get("allocated_bytes.all.peak", 0)),
                "peak_reserved_bytes": int(statistics.get("reserved_bytes.all.peak", 0)),
                "allocation_retries": int(statistics.get("num_alloc_retries", 0)) - self._retries_before,
            }
            self._peak_allocated = max(self._peak_allocated, reading["peak_allocated_bytes"])
            self._peak_reserved = max(self._peak_reserved, reading["peak_reserved_bytes"])
        return reading

    def peaks(self) -> dict[str, int]:
        """The run's highest allocated and reserved bytes until now, and what else of the device is used now."""
        reserved = self()["reserved_bytes"]
        free, total = self._torch.mem_get_info(self._device)
        with self._lock:
            return {
                "peak_allocated_bytes": self._peak_allocated,
                "peak_reserved_bytes": self._peak_reserved,
                "beside_bytes": max(0, total - free - reserved),
                "capacity_bytes": total,
            }


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
