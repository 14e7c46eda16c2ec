"""How full a memory is, by samples, and the guard that stops a run before its use crosses a level."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from gpudash.devices.names import Gpu
from gpudash.telemetry.records import Sample
from gpudash.units import format_bytes, format_pair

HOST = "host"
"""Key of the host's memory, where a GPU has its UUID."""


def pool_of(memory: str, gpus: Iterable[Gpu]) -> str:
    """The memory to watch for ``memory``: the host's for a GPU that shares it, "" for one whose MIG instances
    are watched, else itself.
    """
    gpu = next((gpu for gpu in gpus if gpu.uuid == memory), None)
    if gpu is None:
        return memory
    if gpu.shared_memory:
        return HOST
    if gpu.instances:
        return ""
    return memory


@dataclass(frozen=True, slots=True)
class Level:
    """Use of a memory at one time, in bytes; `used` includes the driver's own part, as `capacity` does."""

    time_s: float
    used: int
    capacity: int
    driver_reserved: int = 0

    @property
    def ratio(self) -> float:
        """How full it is, 0 to 1."""
        return self.used / self.capacity


def memory_of(sample: Sample) -> str | None:
    """The memory that a sample is about: "host" or a GPU's UUID; ``None`` for other tables."""
    if sample.table == "host":
        return HOST
    if sample.table == "gpu":
        return sample.device
    return None


def used_of(sample: Sample) -> tuple[str, int] | None:
    """The memory and its used bytes, by its source; ``None`` if the sample lacks them."""
    memory = memory_of(sample)
    used = sample.values.get("used_bytes")
    if memory is None or not isinstance(used, int | float):
        return None
    return (memory, int(used))


class LevelReader:
    """Combines the metrics of a level, which may come in different ticks.

    NVML's memory v2 excludes the driver's reserved memory from `used`, but includes it in the total; the level is the
    sum of both. If a driver does not report it separately (v1 includes it), `used` is all of it.
    """

    def __init__(self) -> None:
        self._capacity: dict[str, int] = {}
        self._reserved: dict[str, int] = {}

    def read(self, sample: Sample) -> tuple[str, Level] | None:
        """Memory and level, if ``sample`` has a new figure of use and the capacity is known."""
        memory = memory_of(sample)
        if memory is None:
            return None
        # A metric without a number is now unknown; one that is absent keeps its value.
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


REMEDY = "Ask for less memory, close other programs, or raise --guard."


class Guard:
    """A level of one memory that a run may not reach. Any thread may call any method.

    Granted bytes count as used until the next reading, which then includes them.

    Args:
        device: memory to read and guard: a GPU's UUID, or "host".
    """

    def __init__(self, device: str = HOST) -> None:
        self._lock = threading.Lock()
        self._device = device
        self._level: int | None = None
        self._text = ""
        self._used: int | None = None
        self._granted = 0
        self._crossed = False

    @property
    def device(self) -> str:
        """The guarded memory: a GPU's UUID, or "host"."""
        return self._device

    @property
    def level_bytes(self) -> int | None:
        """The level; ``None`` while the guard is off."""
        return self._level

    def arm(self, device: str, level_bytes: int, text: str) -> None:
        """Start to guard a memory.

        Args:
            device: a GPU's UUID, or "host".
            level_bytes: use in bytes at which the run is stopped.
            text: description for sentences: "the guard, 1 GiB above the use at the start".
        """
        with self._lock:
            if device != self._device:
                self._used = None
            self._device = device
            self._level = level_bytes
            self._text = text
            self._granted = 0
            self._crossed = False

    def disarm(self) -> None:
        """Stop guarding."""
        with self._lock:
            self._level = None

    def observe(self, sample: Sample) -> str | None:
        """Process a reading; returns a sentence if it is the first at or above the level, else ``None``."""
        found = used_of(sample)
        if found is None or found[0] != self._device:
            return None
        with self._lock:
            # The reading includes what was granted before it.
            self._used = found[1]
            self._granted = 0
            if self._level is None or self._crossed or self._used < self._level:
                return None
            self._crossed = True
            return f"Stopped by {self._text}: {format_pair(self._used, self._level)} are in use. {REMEDY}"

    def refuse(self, size: int, used: int | None = None) -> str | None:
        """Request ``size`` bytes: ``None`` grants them; otherwise a sentence says why the run must stop.

        Without a reading, everything is granted; readings will then find use above the level.

        Args:
            used: use that the caller knows of, if readings are late.
        """
        with self._lock:
            if self._level is None or self._used is None:
                return None
            # Either may be ahead: the driver sees other processes, the caller knows its own newest allocations.
            known = max(self._used + self._granted, used or 0)
            if known + size >= self._level:
                in_use = format_pair(known, self._level)
                more = format_bytes(size)
                return f"Stopped by {self._text}: {in_use} are in use, and the run asks for {more} more. {REMEDY}"
            self._granted += size
            return None
