"""What torch's backends differ in. CUDA's (also of a ROCm build), Intel's and a simulated GPU's modules have the same
functions; Apple's has one device and others, and is given theirs here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def module_of(device: torch.device) -> Any:
    """torch's module for a device other than the CPU, with those functions of ``torch.cuda`` that gpudash calls."""
    import torch

    module = getattr(torch, device.type)
    return MetalModule(module) if device.type == "mps" else module


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was asked for; the CPU always has, and so has a simulated GPU."""
    if device.type not in ("cpu", "sim"):
        module_of(device).synchronize(device)


class MetalModule:
    """``torch.mps`` under the names of ``torch.cuda``. Peaks and retries are ``None``: it keeps none.

    Args:
        mps: that module.
    """

    def __init__(self, mps: Any) -> None:
        self._mps = mps
        self.empty_cache = mps.empty_cache

    def memory_stats(self, _device: object = None) -> dict[str, int | None]:
        """Bytes of tensors, and what Metal's driver has given to this process."""
        return {
            "allocated_bytes.all.current": int(self._mps.current_allocated_memory()),
            "reserved_bytes.all.current": int(self._mps.driver_allocated_memory()),
            "allocated_bytes.all.peak": None,
            "reserved_bytes.all.peak": None,
            "num_alloc_retries": None,
        }

    def mem_get_info(self, _device: object = None) -> tuple[int, int]:
        """(free, total) of the most that Metal recommends this process to take; what others hold it does not tell."""
        total = int(self._mps.recommended_max_memory())
        return max(0, total - int(self._mps.driver_allocated_memory())), total

    def memory_allocated(self, _device: object = None) -> int:
        return int(self._mps.current_allocated_memory())

    def memory_reserved(self, _device: object = None) -> int:
        return int(self._mps.driver_allocated_memory())

    def reset_peak_memory_stats(self, _device: object = None) -> None:
        """There is none."""

    def synchronize(self, _device: object = None) -> None:
        self._mps.synchronize()

    def device_count(self) -> int:
        return int(self._mps.device_count())

    def device(self, _device: object) -> AbstractContextManager[None]:
        """The one device is always the current one."""
        return nullcontext()
