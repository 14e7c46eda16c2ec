"""Hides the differences between torch's backends, and reads and limits their allocators during a run. The modules for
CUDA (including ROCm builds), Intel and the simulated GPU have the same functions; Apple's has a single device and
other functions, and is adapted here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from gpudash.memory.watching.pushed_reading import PEAKS, READ_NS
from gpudash.specs.memory_cap import MemoryCap

if TYPE_CHECKING:
    import torch


PROMPT_S = 0.005
"""Longest time that a reading may take: a busy run keeps the thread that reads from the interpreter."""

MOST_TRIES = 4


def module_of(device: torch.device) -> Any:
    """torch's module for a device other than the CPU, with the functions of ``torch.cuda`` that gpudash calls."""
    import torch

    module = getattr(torch, device.type)
    if device.type == "mps":
        return MetalModule(module)
    return module


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its queued work; the CPU and a simulated GPU always have."""
    if device.type not in ("cpu", "sim"):
        module_of(device).synchronize(device)


class MetalModule:
    """``torch.mps`` with the names of ``torch.cuda``. Peaks and retries are ``None``, because it records none.

    Args:
        mps: that module.
    """

    def __init__(self, mps: Any) -> None:
        self._mps = mps
        self.empty_cache = mps.empty_cache

    def memory_stats(self, _device: object = None) -> dict[str, int | None]:
        """Bytes of tensors, and of what Metal's driver has allocated for this process."""
        return {
            "allocated_bytes.all.current": int(self._mps.current_allocated_memory()),
            "reserved_bytes.all.current": int(self._mps.driver_allocated_memory()),
            "allocated_bytes.all.peak": None,
            "reserved_bytes.all.peak": None,
            "num_alloc_retries": None,
        }

    def mem_get_info(self, _device: object = None) -> tuple[int, int]:
        """(free, total) of the most that Metal recommends for this process; it does not report what others hold."""
        total = int(self._mps.recommended_max_memory())
        return max(0, total - int(self._mps.driver_allocated_memory())), total

    def memory_allocated(self, _device: object = None) -> int:
        return int(self._mps.current_allocated_memory())

    def memory_reserved(self, _device: object = None) -> int:
        return int(self._mps.driver_allocated_memory())

    def reset_peak_memory_stats(self, _device: object = None) -> None:
        """Do nothing: there is no peak."""

    def synchronize(self, _device: object = None) -> None:
        self._mps.synchronize()

    def device_count(self) -> int:
        return int(self._mps.device_count())

    def device(self, _device: object) -> AbstractContextManager[None]:
        """Do nothing: the only device is always current."""
        return nullcontext()


class AllocatorProbe:
    """Reads the allocator of one device; may be called in any thread that imports nothing.

    The peak covers the time since the last reading: every reading resets torch's counter, and the run's own maximum is
    kept here. Memory allocated *and* freed in the few microseconds between reading and resetting is missed.

    Args:
        device: the allocator's device.
        module: torch's for that device type, from `module_of`.
        with_memory: also read the memory use of the whole device, which no other source provides.
        clock: session time in seconds, which every reading then has (`READ_NS`).
    """

    def __init__(
        self,
        device: torch.device,
        module: Any = None,
        *,
        with_memory: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._device = device
        self._clock = clock
        if module is None:
            self._torch: Any = module_of(device)
        else:
            self._torch = module
        self._with_memory = with_memory
        self._lock = threading.Lock()
        self._torch.reset_peak_memory_stats(device)
        self._retries_before = _number(self._torch.memory_stats(device), "num_alloc_retries") or 0
        self._peak_allocated = int(self._torch.memory_allocated(device))
        self._peak_reserved = int(self._torch.memory_reserved(device))

    def __call__(self) -> Mapping[str, int | None]:
        """Metrics of the ``allocator`` table in bytes; `with_memory` also the GPU's ``free_bytes`` and ``total_bytes``.

        Values that torch does not provide are ``None``. ``allocation_retries`` counts from the start of the run.
        """
        with self._lock:
            reading = self._read() if self._clock is None else self._read_at(self._clock)
            for name in ("allocated_bytes", "peak_allocated_bytes"):
                self._peak_allocated = max(self._peak_allocated, reading[name] or 0)
            for name in ("reserved_bytes", "peak_reserved_bytes"):
                self._peak_reserved = max(self._peak_reserved, reading[name] or 0)
        if self._with_memory:
            reading["free_bytes"], reading["total_bytes"] = map(int, self._torch.mem_get_info(self._device))
        return reading

    def _read_at(self, clock: Callable[[], float]) -> dict[str, int | None]:
        """A reading with its time: read again if that took too long, as nobody knows at which moment it was read."""
        reading: dict[str, int | None] = {}
        for _ in range(MOST_TRIES):
            began_s = clock()
            before, reading = reading, self._read()
            read_s = clock()
            for name in PEAKS:
                if before.get(name) is not None:
                    reading[name] = max(before[name] or 0, reading[name] or 0)
            if read_s - began_s <= PROMPT_S:
                break
        return {**reading, READ_NS: round(read_s * 1e9)}

    def _read(self) -> dict[str, int | None]:
        statistics = self._torch.memory_stats(self._device)
        self._torch.reset_peak_memory_stats(self._device)
        retries = _number(statistics, "num_alloc_retries")
        return {
            "allocated_bytes": _number(statistics, "allocated_bytes.all.current"),
            "reserved_bytes": _number(statistics, "reserved_bytes.all.current"),
            "peak_allocated_bytes": _number(statistics, "allocated_bytes.all.peak"),
            "peak_reserved_bytes": _number(statistics, "reserved_bytes.all.peak"),
            "allocation_retries": None if retries is None else retries - self._retries_before,
        }

    def peaks(self) -> dict[str, int]:
        """The run's highest allocated and reserved bytes so far, from readings only if torch records no peak, and what
        else on the device is in use now."""
        reserved = self()["reserved_bytes"] or 0
        free, total = self._torch.mem_get_info(self._device)
        with self._lock:
            return {
                "peak_allocated_bytes": self._peak_allocated,
                "peak_reserved_bytes": self._peak_reserved,
                "beside_bytes": max(0, total - free - reserved),
                "capacity_bytes": total,
            }


def _number(statistics: Mapping[str, Any], name: str) -> int | None:
    value = statistics.get(name, 0)
    if value is None:
        return None
    return int(value)


@contextmanager
def capped(device: torch.device, cap: MemoryCap | None) -> Iterator[None]:
    """Let torch reserve at most ``cap`` on ``device`` inside the block; the previous limit is restored afterwards."""
    if cap is None:
        yield
        return
    module = module_of(device)
    read = getattr(module, "get_per_process_memory_fraction", None)  # older versions of torch can only set it
    if read is None:
        before = 1.0
    else:
        before = read(device)
    module.set_per_process_memory_fraction(cap.fraction(module.get_device_properties(device).total_memory), device)
    try:
        yield
    finally:
        with suppress(RuntimeError):  # a broken device has raised its own error, which must not be hidden
            module.set_per_process_memory_fraction(before, device)
