"""A range of what has been recorded of one memory, of a machine that is linked or in a recording, where a comparison
looks at a server's past."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpudash.devices.names import Gpu
from gpudash.memory.watching.levels import HOST
from gpudash.session.recordings.replay import Replay
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.readings import NEVER_READ
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import Table
from gpudash.telemetry.store import Store

if TYPE_CHECKING:
    from gpudash.session.remote.machine import RemoteMachine


class MemoryView:
    """A view of one memory.

    Args:
        recorded: what is looked at, a replay at its end.
        close: called once, when nobody looks any more.
        grows: whether more of it comes by itself.
        problems: what is wrong with it now, a sentence each.

    Attributes:
        shift_s: session time at the beginning of the range.
    """

    loading = False

    def __init__(
        self,
        recorded: RemoteMachine | Replay,
        close: Callable[[], object],
        *,
        grows: bool = False,
        problems: Callable[[], list[str]] = list,
    ) -> None:
        self._recorded, self._close, self._problems = recorded, close, problems
        self.grows = grows
        self.store = recorded.store
        self.shift_s = 0.0

    @property
    def notices(self) -> list[str]:
        """What is wrong, a sentence each."""
        return self._problems()

    def show_range(self, began_wall_s: float, _ended_wall_s: float, _points: int) -> None:
        """Let the range begin there; how far it goes is what is drawn."""
        self.shift_s = began_wall_s - self._recorded.began_wall_s

    def close(self) -> None:
        """Look no more."""
        self._close()


def memory_entry(machine: str, name: str, gpu: Gpu | None, store: Store) -> FleetGpu | None:
    """A GPU of a machine, or its host's memory, as a fleet has it, with the newest readings of a store.

    Args:
        machine: what tells it from other machines.
        name: the machine's.
        gpu: ``None`` is its host's memory.
        store: whose lock the caller does not hold; `FleetGpu.seen_s` is in its session time.

    Returns:
        ``None`` before there is a reading of the memory.
    """
    table: Table = "host"
    uuid = None
    if gpu is not None:
        table = "gpu"
        uuid = gpu.uuid
    with store.lock:
        newest = {metric.name: store.latest(table, metric.name, uuid) for metric in METRICS[table]}
    used = newest["used_bytes"]
    if used is NEVER_READ:
        return None
    found = FleetGpu(
        key=f"{machine}/{uuid or HOST}",
        host=name,
        index=None,
        uuid=uuid or "",
        product="memory",
        exporter="ssh",
        seen_s=used.time_s or 0.0,
        values={name: value for name, reading in newest.items() if isinstance(value := reading.value, int | float)},
        is_host=gpu is None,
    )
    if gpu is not None:
        found.index = gpu.nvml_index
        found.product = gpu.product
        found.simulated = gpu.simulated
        if gpu.parent:
            found.instance = gpu.instance
    return found


def fullest_memory(replay: Replay, name: str) -> FleetGpu:
    """The GPU of a recording whose memory was fullest; its host's memory where it has no GPU with readings.

    Args:
        replay: at its end.
        name: of the machine that it is of.

    Raises:
        RecordingError: when it holds no reading of any memory.
    """
    found: list[tuple[float, FleetGpu]] = []
    for gpu in (*(gpu for gpu in replay.gpus if not gpu.instances), None):
        if gpu is None and found:
            break
        entry = memory_entry(name, name, gpu, replay.store)
        if entry is None:
            continue
        table, uuid = ("host", None) if gpu is None else ("gpu", gpu.uuid)
        with replay.store.lock:
            series = replay.store.series(table, "used_bytes", uuid)
            peak = None if series is None else series.statistics(*replay.extent_s)
        if peak is not None:
            found.append((peak.max / entry.total_bytes if entry.total_bytes else 0.0, entry))
    if not found:
        raise RecordingError(f"{name} holds no reading of any memory")
    return max(found, key=lambda pair: pair[0])[1]
