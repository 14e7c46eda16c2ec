"""How full a memory is, read from samples."""

from __future__ import annotations

from dataclasses import dataclass

from gpudash.telemetry.records import Sample

HOST = "host"
"""Name of the host's memory where a GPU has its UUID."""


@dataclass(frozen=True, slots=True)
class Level:
    """Use of one memory at one time, in bytes; `used` contains the driver's own share, as `capacity` does."""

    time_s: float
    used: int
    capacity: int
    driver_reserved: int = 0

    @property
    def ratio(self) -> float:
        """How full, 0 to 1."""
        return self.used / self.capacity


def memory_of(sample: Sample) -> str | None:
    """Which memory a sample speaks of: "host" or a GPU's UUID; ``None`` for other tables."""
    if sample.table == "host":
        return HOST
    return sample.device if sample.table == "gpu" else None


def used_of(sample: Sample) -> tuple[str, int] | None:
    """Memory and the bytes used in it, as its source counts them; ``None`` when the sample does not have them."""
    memory = memory_of(sample)
    used = sample.values.get("used_bytes")
    return None if memory is None or not isinstance(used, int | float) else (memory, int(used))


class LevelReader:
    """Joins the metrics that make a level, which need not come in the same tick.

    NVML's memory v2 counts the driver's reserved share apart from `used`, but inside the total: what is used of the
    total is their sum. Where a driver does not report the share (v1 counts it as used), `used` is all of it.
    """

    def __init__(self) -> None:
        self._capacity: dict[str, int] = {}
        self._reserved: dict[str, int] = {}

    def read(self, sample: Sample) -> tuple[str, Level] | None:
        """Memory and level when ``sample`` has a new figure of use and the capacity is known."""
        memory = memory_of(sample)
        if memory is None:
            return None
        for name, known in (("total_bytes", self._capacity), ("driver_reserved_bytes", self._reserved)):
            value = sample.values.get(name)
            if isinstance(value, int | float):
                known[memory] = int(value)
            elif name in sample.values:
                known.pop(memory, None)
        found = used_of(sample)
        capacity = self._capacity.get(memory, 0)
        if found is None or capacity <= 0:
            return None
        reserved = self._reserved.get(memory, 0)
        return memory, Level(sample.time_s, found[1] + reserved, capacity, reserved)
