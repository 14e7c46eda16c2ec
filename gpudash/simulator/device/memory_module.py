"""``torch.sim.memory``: figures, history and snapshot of the simulated cards' memory, after ``torch.cuda.memory``."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, Union

import torch

from gpudash.memory.allocator.refusal import format_size
from gpudash.simulator.device.memory_history import MemoryHistory
from gpudash.simulator.device.storage import DEVICE
from gpudash.simulator.operations.operations import Engine

DeviceLike = Union[torch.device, str, int, None]

SUMMARISED = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("GPU reserved memory", "reserved_bytes", True),
    ("Non-releasable memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocs", "active", False),
    ("GPU reserved segments", "segment", False),
    ("Non-releasable allocs", "inactive_split", False),
)
"""Rows of `MemoryModule.memory_summary`: label, statistic, whether it counts bytes."""


class MemoryModule:
    """The functions of ``torch.cuda.memory`` that make sense here, under the same names.

    Args:
        engine: runs the device's operations.
        history: records the allocators' events.

    Attributes:
        history: the same.
    """

    def __init__(self, engine: Engine, history: MemoryHistory) -> None:
        self._engine = engine
        self.history = history

    def index_of(self, device: DeviceLike = None) -> int:
        """Index of a device given in any of torch's ways.

        Raises:
            ValueError: when it is no simulated device.
            RuntimeError: when there is none of this index.
        """
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type != DEVICE:
                raise ValueError(f"Expected a {DEVICE} device, but got: {device}")
            device = device.index
        if device is None or device < 0:
            return self._engine.current
        return self._engine.card(device).index

    def mem_get_info(self, device: DeviceLike = None) -> tuple[int, int]:
        """Bytes free and capacity of the card."""
        return self._engine.cards[self.index_of(device)].free_and_total()

    def memory_stats(self, device: DeviceLike = None) -> dict[str, int]:
        """The allocator's statistics under torch's names."""
        return OrderedDict(sorted(self._engine.cards[self.index_of(device)].statistics().items()))

    def memory_allocated(self, device: DeviceLike = None) -> int:
        return self.memory_stats(device)["allocated_bytes.all.current"]

    def max_memory_allocated(self, device: DeviceLike = None) -> int:
        return self.memory_stats(device)["allocated_bytes.all.peak"]

    def memory_reserved(self, device: DeviceLike = None) -> int:
        return self.memory_stats(device)["reserved_bytes.all.current"]

    def max_memory_reserved(self, device: DeviceLike = None) -> int:
        return self.memory_stats(device)["reserved_bytes.all.peak"]

    def reset_peak_memory_stats(self, device: DeviceLike = None) -> None:
        self._engine.cards[self.index_of(device)].reset_peaks()

    def reset_max_memory_allocated(self, device: DeviceLike = None) -> None:
        self.reset_peak_memory_stats(device)

    def reset_accumulated_memory_stats(self, device: DeviceLike = None) -> None:
        self._engine.cards[self.index_of(device)].reset_accumulated()

    def empty_cache(self) -> None:
        """Give every wholly free segment of every card back."""
        for card in self._engine.cards:
            card.empty_cache()

    def set_per_process_memory_fraction(self, fraction: float, device: DeviceLike = None) -> None:
        """Limit what the allocator may reserve to a part of the capacity.

        Raises:
            ValueError: when it is not between 0 and 1.
        """
        self._engine.cards[self.index_of(device)].set_fraction(fraction)

    def get_per_process_memory_fraction(self, device: DeviceLike = None) -> float:
        """The part of the capacity that the allocator may reserve."""
        return self._engine.cards[self.index_of(device)].fraction

    def get_allocator_backend(self) -> str:
        return "native"

    def memory_snapshot(self, mempool_id: Any = None) -> Any:
        """The segments of every card, as in the list form of torch's snapshots."""
        return self.history.snapshot()["segments"]

    def memory_summary(self, device: DeviceLike = None, abbreviated: bool = False) -> str:
        """A table of the statistics to print."""
        index = self.index_of(device)
        stats = self.memory_stats(index)
        pools = ("all",) if abbreviated else ("all", "large_pool", "small_pool")
        lines = [
            f"PyTorch {DEVICE.upper()} memory summary, device ID {index} (simulated)",
            f"{DEVICE.upper()} OOMs: {stats['num_ooms']}    cudaMalloc retries: {stats['num_alloc_retries']}",
            f"{'Metric':<28}{'Cur Usage':>14}{'Peak Usage':>14}{'Tot Alloc':>14}{'Tot Freed':>14}",
        ]
        for label, statistic, counts_bytes in SUMMARISED:
            for pool in pools:
                values = [stats[f"{statistic}.{pool}.{part}"] for part in ("current", "peak", "allocated", "freed")]
                shown = [format_size(value) if counts_bytes else str(value) for value in values]
                name = label if pool == "all" else f"  from {pool.replace('_', ' ')}"
                lines.append(f"{name:<28}" + "".join(f"{value:>14}" for value in shown))
        return "\n".join(lines)

    def _record_memory_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        device: DeviceLike = None,
        clear_history: bool = False,
        **_ignored: Any,
    ) -> None:
        """Record every card's events from now on, or stop with ``enabled=None``, as torch's function does.

        Raises:
            ValueError: one sentence, when a setting is none of torch's.
        """
        self.history.record(enabled, context, stacks, max_entries, clear_history)

    def _snapshot(self, device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
        """What is allocated now and what was recorded, in the form of torch's snapshots."""
        return self.history.snapshot()

    def _dump_snapshot(self, filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
        """Write the snapshot to a file in torch's own format."""
        self.history.dump(filename)
