"""This process's memory and steps over the last minutes, as columns for the live figure of a notebook.

Call `LiveMemory.read` from the reading thread; the other methods may be called from any thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import psutil

from gpudash.agent.memory.gpus import Allocators

PERIOD_S = 0.5
"""Interval between two readings."""

SPAN_S = 300.0
"""How much history is kept."""

MOST_GPUS = 4
"""How many GPUs are drawn, those in use first."""

MOST_CELLS = 60

Figures = Mapping[str, Mapping[str, Any]]


class _Host:
    """RAM of this process and of its computer, in bytes."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.total = int(psutil.virtual_memory().total)

    def resident(self) -> int:
        return int(self._process.memory_info().rss)


class LiveMemory:
    """Keeps readings, the cells that ran during them, and the steps of optimizers.

    Args:
        read_gpus: figures in bytes by device, as `Allocators.read` gives them.
        resident: returns the bytes of RAM that this process has.
        total: bytes of RAM of the computer.
        clock: returns seconds.
    """

    def __init__(
        self,
        *,
        read_gpus: Callable[[], Figures] | None = None,
        resident: Callable[[], int] | None = None,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        host = _Host()
        self._read_gpus = read_gpus or Allocators().read
        self._resident = resident or host.resident
        self._total = total or host.total
        self._clock = clock
        self._began_s = clock()
        self._lock = threading.Lock()
        self._rows: deque[tuple[float, int, int, dict[str, tuple[int, int]]]] = deque(maxlen=int(SPAN_S / PERIOD_S))
        self._gpus: dict[str, dict[str, Any]] = {}
        self._peaks: dict[str, int] = {}
        self._cells: deque[list[Any]] = deque(maxlen=MOST_CELLS)
        self._steps = 0
        self._hook: Any = None

    @property
    def now_s(self) -> float:
        """Seconds since this object was created."""
        return self._clock() - self._began_s

    def read(self) -> bool:
        """Take a reading, and return whether it differs from the one before."""
        self._count_steps()
        figures = self._read_gpus()
        levels = {}
        for device, found in figures.items():
            peak = found["peak_allocated_bytes"]
            # what rose and fell between two readings still shows: the allocator's own peak has grown by it
            grown = device in self._peaks and peak > self._peaks[device]
            self._peaks[device] = peak
            allocated = found["allocated_bytes"]
            if grown:
                allocated = peak
            levels[device] = (allocated, found["reserved_bytes"])
        row = (self.now_s, self._resident(), self._steps, levels)
        with self._lock:
            for device, found in figures.items():
                self._gpus[device] = {
                    "device": device,
                    "simulated": device.startswith("sim:"),
                    "product": str(found["product"]),
                    "capacity": found["capacity_bytes"],
                    "peak": found["peak_allocated_bytes"],
                }
            changed = not self._rows or self._rows[-1][1:] != row[1:]
            self._rows.append(row)
        return changed

    def cell_began(self, number: int) -> None:
        """The cell with this number starts to run."""
        self._end_cell()
        self._cells.append([number, self.now_s, None])

    def cell_ended(self) -> None:
        """The cell has ended."""
        self._end_cell()

    def columns(self) -> bytes:
        """Little-endian float32, row by row: seconds, RAM of this process, steps so far, and for each GPU listed in
        `facts` the allocated and reserved bytes, NaN if not known. Sizes in bytes."""
        with self._lock:
            rows = list(self._rows)
            devices = self._shown()
        table = np.full((len(rows), 3 + 2 * len(devices)), np.nan, "<f4")
        for at, (seconds, resident, steps, levels) in enumerate(rows):
            table[at, :3] = seconds, resident, steps
            for place, device in enumerate(devices):
                if device in levels:
                    table[at, 3 + 2 * place : 5 + 2 * place] = levels[device]
        return table.tobytes()

    def facts(self) -> dict[str, Any]:
        """Facts for the columns: GPUs, the computer's RAM, and cells as (number, begin, end or ``None``)."""
        with self._lock:
            first_s = self._rows[0][0] if self._rows else 0.0
            gpus = [self._gpus[device] for device in self._shown()]
        cells = [list(cell) for cell in list(self._cells) if cell[2] is None or cell[2] >= first_s]
        return {"gpus": gpus, "ram": self._total, "cells": cells, "now": self.now_s, "span": SPAN_S}

    def stop(self) -> None:
        """Stop counting steps."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def _shown(self) -> list[str]:
        """The GPUs that are drawn, in order: those that hold something, or the first if none does."""
        held = [device for device, peak in self._peaks.items() if peak > 0]
        return sorted((held or list(self._gpus)[:1])[:MOST_GPUS])

    def _end_cell(self) -> None:
        if self._cells and self._cells[-1][2] is None:
            self._cells[-1][2] = self.now_s

    def _count_steps(self) -> None:
        """Subscribe to steps once torch's optimizers are imported, which a cell may do while it runs."""
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if self._hook is None and register is not None:
            self._hook = register(self._step_ended)

    def _step_ended(self, *_of_optimizer: Any) -> None:
        self._steps += 1
