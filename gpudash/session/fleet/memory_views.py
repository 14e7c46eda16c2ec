"""A range of what has been recorded of one memory, of a machine that is linked or in a recording, where a comparison
looks at a server's past."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpudash.devices.names import Gpu
from gpudash.session.fleet.overview import FleetGpu
from gpudash.session.recordings.replay import Replay
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import Table

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


def fullest_memory(replay: Replay, name: str) -> FleetGpu:
    """The GPU of a recording whose memory was fullest; its host's memory where it has no GPU with readings.

    Args:
        replay: at its end.
        name: of the machine that it is of.

    Raises:
        RecordingError: when it holds no reading of any memory.
    """
    found: list[tuple[float, FleetGpu]] = []
    memories: list[Gpu | None] = [*(gpu for gpu in replay.gpus if not gpu.instances), None]
    with replay.store.lock:
        for gpu in memories:
            table: Table = "gpu"
            if gpu is None:
                table = "host"
            uuid = None
            if gpu is not None:
                uuid = gpu.uuid
            series = replay.store.series(table, "used_bytes", uuid)
            peak = None
            if series is not None:
                peak = series.statistics(*replay.extent_s)
            if peak is None or (gpu is None and found):
                continue
            total = replay.store.latest(table, "total_bytes", uuid).value
            fullness = 0.0
            if isinstance(total, int | float) and total > 0:
                fullness = peak.max / total
            found.append((fullness, _entry(replay, name, gpu)))
    if not found:
        raise RecordingError(f"{name} holds no reading of any memory")
    return max(found, key=lambda entry: entry[0])[1]


def _entry(replay: Replay, name: str, gpu: Gpu | None) -> FleetGpu:
    if gpu is None:
        uuid = ""
    else:
        uuid = gpu.uuid
    return FleetGpu(
        key=f"{name}/{uuid or 'host'}",
        host=name,
        index=None if gpu is None else gpu.nvml_index,
        uuid=uuid,
        product="memory" if gpu is None else gpu.product,
        used_bytes=None,
        total_bytes=None,
        utilisation=None,
        exporter="ssh",
        seen_s=replay.began_wall_s + replay.extent_s[1],
        simulated=gpu is not None and gpu.simulated,
        is_host=gpu is None,
        instance=gpu.instance if gpu is not None and gpu.parent else None,
    )
