"""How full a memory is, read from samples, and the guard that stops a run before its use crosses a level."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from gpudash.devices.names import Gpu
from gpudash.telemetry.records import Sample
from gpudash.units import format_bytes, format_pair

HOST = "host"
"""Name of the host's memory where a GPU has its UUID."""


def pool_of(memory: str, gpus: Iterable[Gpu]) -> str:
    """The memory that is watched for ``memory``: the host's for a GPU that shares it, "" for one whose MIG instances
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
    if sample.table == "gpu":
        return sample.device
    return None


def used_of(sample: Sample) -> tuple[str, int] | None:
    """Memory and the bytes used in it, as its source counts them; ``None`` when the sample does not have them."""
    memory = memory_of(sample)
    used = sample.values.get("used_bytes")
    if memory is None or not isinstance(used, int | float):
        return None
    return (memory, int(used))


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
        # a metric that a sample has without a number is unknown from now on; one that it lacks is as it was
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

    What was granted counts as used until the next reading, which then shows it.

    Args:
        device: what is read and may be guarded: a GPU's UUID, or "host".
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
        """What is guarded: a GPU's UUID, or "host"."""
        return self._device

    @property
    def level_bytes(self) -> int | None:
        """The level, ``None`` while the guard is off."""
        return self._level

    def arm(self, device: str, level_bytes: int, text: str) -> None:
        """Guard a memory from now on.

        Args:
            device: a GPU's UUID, or "host".
            level_bytes: use at which the run is stopped.
            text: what the level is, for sentences: "the guard, 1 GiB above the use at the start".
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
        """Guard nothing any more."""
        with self._lock:
            self._level = None

    def observe(self, sample: Sample) -> str | None:
        """Take in a reading; a sentence when it is the first at or above the level, else ``None``."""
        found = used_of(sample)
        if found is None or found[0] != self._device:
            return None
        with self._lock:
            # the reading shows what was granted before it
            self._used = found[1]
            self._granted = 0
            if self._level is None or self._crossed or self._used < self._level:
                return None
            self._crossed = True
            return f"Stopped by {self._text}: {format_pair(self._used, self._level)} are in use. {REMEDY}"

    def refuse(self, size: int, used: int | None = None) -> str | None:
        """Ask for ``size`` bytes: ``None`` grants them, a sentence says why the run has to stop instead.

        Without a reading nothing can be refused; polling then catches what crosses.

        Args:
            used: what the caller knows to be in use now, where readings of it come late.
        """
        with self._lock:
            if self._level is None or self._used is None:
                return None
            # either may be ahead: the driver sees other processes, whoever asks knows its own newest
            # allocations
            known = max(self._used + self._granted, used or 0)
            if known + size >= self._level:
                in_use = format_pair(known, self._level)
                more = format_bytes(size)
                return f"Stopped by {self._text}: {in_use} are in use, and the run asks for {more} more. {REMEDY}"
            self._granted += size
            return None
