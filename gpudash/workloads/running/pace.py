"""Allocations at a steady pace, announced, reported and counted."""

from __future__ import annotations

import time

import torch

from gpudash.specs import PressureSpec
from gpudash.workloads.running.context import Context

TOUCH = 2**27
"""Bytes written in one operation: a fraction of a second even if the system provides pages slowly."""


class Pace:
    """Starts the steps of a pattern at `PressureSpec.rate` per second, and keeps the run's figures.

    Args:
        steps: how many there will be; ``None``: as many as fit into free memory, if that was read.
    """

    def __init__(self, spec: PressureSpec, context: Context, steps: int | None) -> None:
        self._spec = spec
        self._context = context
        level = None
        if steps is None:
            level = context.memory()
        self._steps = steps or (level.free_bytes // spec.step if level is not None else 0)
        self._begun = 0
        self._began_s = time.perf_counter()

    def wait(self) -> None:
        """Wait until the next step is due.

        Raises:
            Cancelled: the run is asked to stop.
        """
        self._context.wait(self._began_s + self._begun / self._spec.rate - time.perf_counter())
        self._begun += 1

    def done(self, held_bytes: int, loss: float | None = None) -> None:
        """Report the end of a step, and that ``held_bytes`` are held now."""
        context = self._context
        context.keep(allocated_bytes=max(context.kept["allocated_bytes"], held_bytes), allocations=self._begun)
        context.step(self._begun, max(self._begun, self._steps), loss=loss)

    def hold(self, held_bytes: int) -> None:
        """Stay at the current level for `PressureSpec.hold` seconds."""
        with self._context.stage("hold", bytes=held_bytes, copied=False):
            self._context.wait(self._spec.hold)
        self._context.keep(held_seconds=self._context.kept["held_seconds"] + self._spec.hold)


def filled(size: int, context: Context) -> torch.Tensor:
    """Allocate ``size`` bytes on the run's device and write all pages: untouched memory is not in use.

    A simulated GPU counts requests, and writing to it would take the host's memory.

    Raises:
        GuardRefused: they would cross the guard's level.
    """
    context.about_to_allocate(size)
    device = str(context.device)
    with context.stage("allocate", bytes=size, to_device=device, device=device, copied=False):
        memory = torch.empty(size, dtype=torch.uint8, device=context.device)
        if context.device.type != "sim":
            for first in range(0, size, TOUCH):
                context.check_cancelled()
                memory[first : first + TOUCH].fill_(1)
    return memory


def release(held: list[torch.Tensor], context: Context) -> None:
    """Free what is held and return it to the system."""
    with context.stage("free", bytes=sum(memory.nbytes for memory in held), copied=False):
        held.clear()
        context.free_cache()
