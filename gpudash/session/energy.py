"""The energy counters of the machine's devices, as a comparison asks for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpudash.telemetry.records import State
from gpudash.telemetry.store import Store

if TYPE_CHECKING:
    from gpudash.sources.energy import PackageEnergy

NOT_REPORTED = "the driver reports no energy counter of this GPU"
NOT_READ_YET = "the GPU's energy counter has not been read"


class EnergyCounters:
    """Reads a counter: the CPU package's now, a GPU's as it was read last.

    Args:
        store: holds the newest readings.
        package: the CPU's; this system's by default.
    """

    def __init__(self, store: Store, package: PackageEnergy | None = None) -> None:
        from gpudash.sources.energy import PackageEnergy as Counters

        self._store = store
        self._package = package or Counters()

    def read(self, uuid: str | None) -> tuple[float, float] | str:
        """When the counter was read (seconds) and what it said (joules), or in words why there is none.

        Args:
            uuid: of the GPU; ``None`` for the CPU.
        """
        if uuid is None:
            joules = self._package.joules()
            return joules if isinstance(joules, str) else (time.monotonic(), joules)
        with self._store.lock:
            reading = self._store.latest("gpu", "energy_j", uuid)
        if reading.time_s is None:
            return NOT_READ_YET
        if reading.state is State.OK and isinstance(reading.value, (int, float)):
            return reading.time_s, float(reading.value)
        return NOT_REPORTED
