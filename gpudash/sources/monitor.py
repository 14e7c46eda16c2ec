"""Watches the machine: the host, its processes, every GPU and the allocators of runs, each on its own lanes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gpudash.devices.names import Gpu
from gpudash.sources.host import HostReader
from gpudash.sources.lanes import Emit, Lane, LaneStatistics, Timing
from gpudash.sources.nvml.gpu_watch import GpuWatch
from gpudash.sources.nvml.library import Nvml
from gpudash.sources.processes import ProcessReader
from gpudash.sources.simulated_gpus import CardReader, Probe, ShownCard
from gpudash.sources.torch_gpus import GpuSource, TorchGpus
from gpudash.telemetry.records import Record, Sample, State

SLOWEST_HZ, FASTEST_HZ = 1.0, 50.0


class Monitor:
    """Reads the machine on several lanes and emits the readings. No lane waits for another.

    Args:
        emit: callback for each record; called from several threads.
        clock: session time in seconds, monotonic.
        rate_hz: memory readings per second, 1 to 50.
        host: the host reader; a new one by default.
        timing: intervals of all other readings.
        root: parent folder of ``proc`` and ``sys``.
    """

    def __init__(
        self,
        emit: Emit,
        clock: Callable[[], float],
        rate_hz: float = 20.0,
        host: HostReader | None = None,
        timing: Timing | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._emit = emit
        self._clock = clock
        timing = timing or Timing()
        self._host = host or HostReader(root)
        self._processes = ProcessReader()
        self._period_s = _period(rate_hz)
        self._lock = threading.Lock()
        self._cards = CardReader(())
        self._card_lane: Lane | None = None
        self._stopping = False
        self._host_lane = Lane("host", self._read_host, emit, clock, self._period_s, title="The host", stale=_host_gap)
        title = "The list of processes"
        self._process_lane = Lane("processes", self._processes.read, emit, clock, timing.processes, title=title)
        self._gpus = GpuWatch(Nvml(root), emit, clock, self._period_s, timing, root, self._family)
        self._torch = TorchGpus(emit, clock, self._period_s)
        self._sources: tuple[GpuSource, ...] = (self._gpus, self._torch)

    def start(self) -> None:
        """Start reading; returns immediately."""
        self._host_lane.start()
        self._process_lane.start()
        for source in self._sources:
            source.start()

    def stop(self, timeout_s: float = 2.0) -> bool:
        """Stop all lanes, waiting at most ``timeout_s``.

        Returns:
            Whether all have ended. A lane inside a driver call that does not return stays behind as a daemon thread.
        """
        deadline = time.monotonic() + timeout_s
        # Set the flag first: no lane may start after those that are stopped below.
        with self._lock:
            self._stopping = True
        for source in self._sources:
            source.stop()
        lanes = self._lanes()
        # Ask all of them before waiting for the first, so that their last calls overlap.
        for lane in lanes:
            lane.stop()
        left = [lane for lane in lanes if not lane.join(deadline - time.monotonic())]
        if left or any(source.answers_owed for source in self._sources):
            return False  # closing the library during a call would crash
        # On a thread: closing the library is a driver call too, and may hang like any other.
        closing = threading.Thread(target=self._close, name="gpudash close nvml", daemon=True)
        closing.start()
        closing.join(max(0.0, deadline - time.monotonic()))
        return not closing.is_alive()

    def set_rate(self, rate_hz: float) -> None:
        """Read memory ``rate_hz`` times a second (1 to 50) from now on."""
        with self._lock:
            self._period_s = _period(rate_hz)
            lanes = [self._host_lane, *([] if self._card_lane is None else [self._card_lane])]
        for source in self._sources:
            source.set_period(self._period_s)
        for lane in lanes:
            lane.set_period(self._period_s)

    def watch_cards(self, cards: Sequence[ShownCard]) -> None:
        """Read these simulated GPUs at the memory rate, replacing the previous ones."""
        self._cards.show(cards)
        with self._lock:
            if self._stopping or self._card_lane is not None:
                return
            read, stale, title = self._cards.read, self._cards.stale, "The simulated GPU"
            lane = Lane("simulated", read, self._emit, self._clock, self._period_s, title=title, stale=stale)
            self._card_lane = lane
            # Started under the lock that `stop` takes to collect the lanes.
            lane.start()

    def probe(self, device: str, read: Probe | None) -> None:
        """Read an allocator's statistics at the memory rate from now on; ``None`` stops that.

        Args:
            device: torch's name for the device.
            read: callback that returns metrics of the ``allocator`` table, ``None`` for a gap; also ``free_bytes`` and
                ``total_bytes`` of a GPU with no other source. It is not called after detaching.
        """
        if self._cards.attach(device, read):
            return
        self._torch.probe(device, read)

    def adopt(self, pid: int | None) -> None:
        """Count a run's child process as ours from now on, in host and GPU memory; ``None`` for no process."""
        self._host.hosted = pid

    def follow(self, program: Callable[[], Mapping[int, int]] | None) -> None:
        """Show a watched program's processes instead of ours from now on; ``None`` to undo.

        Args:
            program: callback that returns their resident bytes by PID.
        """
        self._host.program = self._processes.program = program

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The known GPUs in NVML's order, lost ones included."""
        return self._gpus.gpus

    @property
    def problem(self) -> str | None:
        """Why there is no GPU, in one sentence; ``None`` if there is one, or before that is known."""
        return self._gpus.problem

    @property
    def nvml_text(self) -> str:
        """NVML's last error, in its own words."""
        return self._gpus.nvml_text

    def retry_now(self) -> None:
        """Look for GPUs now, if there were none."""
        self._gpus.retry_now()

    @property
    def driver_version(self) -> str | None:
        """Version of the NVIDIA driver, such as "580.65.06", once it has been opened."""
        return self._gpus.driver_version

    @property
    def host_capacity_source(self) -> str:
        """What limits the host's memory: "RAM" or "cgroup limit of …"."""
        return self._host.capacity_source

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """What each lane has done so far."""
        return tuple(lane.statistics for lane in self._lanes())

    def _lanes(self) -> list[Lane]:
        with self._lock:
            if self._card_lane is None:
                others = []
            else:
                others = [self._card_lane]
        lanes = [lane for source in self._sources for lane in source.lanes]
        return [self._host_lane, self._process_lane, *lanes, *others]

    def _read_host(self, now_s: float) -> Iterable[Record]:
        # The host's lane is the most punctual, as it waits for no driver; only a busy lane can be stuck.
        for lane in self._lanes():
            if lane.busy and lane is not self._host_lane:
                lane.check()
        return self._host.read(now_s)

    def _family(self) -> frozenset[int]:
        """PIDs of this process and its descendants; includes a run's child process immediately."""
        hosted, program = self._host.hosted, self._host.program
        watched = () if program is None else program()
        # Without waiting for the next scan: a run's GPU memory must not count as another user's.
        return self._processes.family.union(watched, () if hosted is None else (hosted,))

    def _close(self) -> None:
        for source in self._sources:
            source.close()
        self._host.close()


def _period(rate_hz: float) -> float:
    return 1 / min(FASTEST_HZ, max(SLOWEST_HZ, rate_hz))


def _host_gap(now_s: float) -> Iterable[Record]:
    metrics = ("total_bytes", "available_bytes", "used_bytes", "free_bytes", "file_cache_bytes", "process_bytes")
    return [Sample(now_s, "host", None, dict.fromkeys(metrics), dict.fromkeys(metrics, State.STALE))]
