"""A range of the recording of one memory, from a connected machine or a file. Comparisons with a server use its
history instead."""

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
        recorded: the recording, as a replay at its end.
        close: called once, when the view is closed.
        grows: whether the recording still grows.
        problems: returns what is wrong now, one sentence each.

    Attributes:
        shift_s: session time of the beginning of the range.
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
        """What is wrong, one sentence each."""
        return self._problems()

    def show_range(self, began_wall_s: float, _ended_wall_s: float, _points: int) -> None:
        """Move the beginning of the range; its end is given by the plot."""
        self.shift_s = began_wall_s - self._recorded.began_wall_s

    def close(self) -> None:
        """Close the view."""
        self._close()


def memory_entry(machine: str, name: str, gpu: Gpu | None, store: Store) -> FleetGpu | None:
    """A GPU of a machine, or its host memory, as an entry of a fleet, with a store's newest readings.

    Args:
        machine: key that tells it from other machines.
        name: name of the machine.
        gpu: the GPU; ``None`` for the host's memory.
        store: the readings; the caller must not hold its lock. `FleetGpu.seen_s` is in its session time.

    Returns:
        The entry; ``None`` before the memory's first reading.
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
        values={name: value for name, reading in newest.items() if (value := reading.number) is not None},
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
    """The GPU with the fullest memory in a recording; the host's memory if no GPU has readings.

    Args:
        replay: at its end.
        name: name of its machine.

    Raises:
        RecordingError: if it has no reading of any memory.
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
            peak = replay.store.statistics((table, "used_bytes", uuid), *replay.extent_s)
        if peak is not None:
            found.append((peak.max / entry.total_bytes if entry.total_bytes else 0.0, entry))
    if not found:
        raise RecordingError(f"{name} holds no reading of any memory")
    return max(found, key=lambda pair: pair[0])[1]
