"""A program that was refused memory, as a report of it begins."""

from __future__ import annotations

from contextlib import suppress

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.explaining.memory_state import Surroundings, other_process
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.session.watching.out_of_memory import Refused
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import FORWARD, KEPT, Made


def leaking() -> tuple[Snapshot, tuple[tuple[int, int], ...]]:
    """A program that trains nothing and keeps 6 MiB of every step, and when its steps began."""
    made, times = Made(capacity=200 * MIB), []
    with suppress(AllocationRefused):
        while True:
            times.append((made.now_us, len(times) + 1))
            made.free(made.malloc(16 * MIB, FORWARD), FORWARD)
            made.malloc(6 * MIB, KEPT)
    return made.snapshot(), tuple(times)


def refused(steps: tuple[tuple[int, int], ...]) -> Refused:
    others = Surroundings((other_process(100 * MIB, 77, "blender", "mia"),), 300 * MIB)
    return Refused("sim:0", None, 9.5, 600 * MIB, 16 * MIB, steps=steps, product="Simulated GPU", around=others)
