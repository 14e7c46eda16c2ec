"""What the allocators of this process say, read without making, changing or resetting anything."""

from __future__ import annotations

import sys
from typing import Any

from . import simulating

Figures = dict[str, Any]


class Allocators:
    """Reads them; a device without a context is left alone."""

    def __init__(self) -> None:
        self._cards: dict[int, Figures] = {}
        self._at_fork: dict[str, int] = {}

    def forked(self) -> None:
        """In a child: what the parent allocated on a simulated card is not this process's."""
        self._at_fork = {device: counted(card) for device, card in simulated()}

    def read(self) -> dict[str, Figures]:
        """Figures in bytes by device; empty where no device is in use."""
        found = {f"cuda:{index}": self._cuda(index) for index in range(cuda_devices())}
        for device, card in simulated():
            if device in self._at_fork and counted(card) == self._at_fork[device]:
                continue
            self._at_fork.pop(device, None)
            found[device] = _card(card)
        return found

    def _cuda(self, index: int) -> Figures:
        torch: Any = sys.modules["torch"]
        if index not in self._cards:
            told = torch.cuda.get_device_properties(index)
            identity = getattr(told, "uuid", None)
            self._cards[index] = {
                "capacity_bytes": int(told.total_memory),
                "product": str(told.name),
                "uuid": None if identity is None else f"GPU-{identity}",
            }
        stats = torch._C._cuda_memoryStats(index)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return {
            "allocated_bytes": allocated["current"],
            "reserved_bytes": reserved["current"],
            "peak_allocated_bytes": allocated["peak"],
            "peak_reserved_bytes": reserved["peak"],
            "allocation_retries": stats["num_alloc_retries"],
            "ooms": stats["num_ooms"],
            **self._cards[index],
        }


def cuda_devices() -> int:
    """How many there are to read; 0 until the program itself has initialised CUDA, and in a child forked after it."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.device_count())


def simulated() -> list[tuple[str, Any]]:
    """Names and cards of the simulated devices."""
    return [(f"sim:{card.index}", card) for card in simulating.cards()]


def counted(card: Any) -> int:
    """Allocations since the process began."""
    return int(card.statistics()["allocation.all.allocated"])


def _card(card: Any) -> Figures:
    stats = card.statistics()
    return {
        "allocated_bytes": stats["allocated_bytes.all.current"],
        "reserved_bytes": stats["reserved_bytes.all.current"],
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "allocation_retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "capacity_bytes": card.capacity,
        "used_bytes": card.used_bytes(),
        "context_bytes": card.context_bytes,
        "others_bytes": sum(card.others.values()),
        "busy_s": card.busy_s,
        "uuid": card.uuid,
        "product": card.product,
    }
