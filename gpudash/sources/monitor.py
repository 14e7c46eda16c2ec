"""Watches the machine: the host, its processes, every GPU and the allocators of runs, each on lanes of its own."""

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
    """Reads the machine on lanes of its own and emits what it reads. No lane waits for another.

    Args:
        emit: takes each record; called from several threads.
        clock: session time in seconds, monotonic.
        rate_hz: memory readings a second, 1 to 50.
        host: the host reader; by default a new one.
        timing: of everything else.
        root: where ``proc`` and ``sys`` are found.
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
        """Begins to read, without waiting."""
        self._host_lane.start()
        self._process_lane.start()
        for source in self._sources:
            source.start()

    def stop(self, timeout_s: float = 2.0) -> bool:
        """Ends all lanes and waits at most ``timeout_s`` for them.

        Returns:
            Whether all have ended. A lane inside a driver call that does not return is left behind as a daemon.
        """
        deadline = time.monotonic() + timeout_s
        # First the flag: no lane may be begun behind the ones that are stopped below.
        with self._lock:
            self._stopping = True
        for source in self._sources:
            source.stop()
        lanes = self._lanes()
        # All are asked to end before one is waited for, so that their last calls run at the same time.
        for lane in lanes:
            lane.stop()
        left = [lane for lane in lanes if not lane.join(deadline - time.monotonic())]
        if left or any(source.answers_owed for source in self._sources):
            return False  # closing the library under a call that has not returned would crash it
        # On a thread: closing the library is a driver's call too, and may hang like any other.
        closing = threading.Thread(target=self._close, name="gpudash close nvml", daemon=True)
        closing.start()
        closing.join(max(0.0, deadline - time.monotonic()))
        return not closing.is_alive()

    def set_rate(self, rate_hz: float) -> None:
        """Reads memory ``rate_hz`` times a second from now on (1 to 50)."""
        with self._lock:
            self._period_s = _period(rate_hz)
            lanes = [self._host_lane, *([] if self._card_lane is None else [self._card_lane])]
        for source in self._sources:
            source.set_period(self._period_s)
        for lane in lanes:
            lane.set_period(self._period_s)

    def watch_cards(self, cards: Sequence[ShownCard]) -> None:
        """Reads these simulated GPUs from now on, in place of those before, at the memory rate."""
        self._cards.show(cards)
        with self._lock:
            if self._stopping or self._card_lane is not None:
                return
            read, stale, title = self._cards.read, self._cards.stale, "The simulated GPU"
            lane = Lane("simulated", read, self._emit, self._clock, self._period_s, title=title, stale=stale)
            self._card_lane = lane
            # Begun under the lock, with which `stop` collects what it ends.
            lane.start()

    def probe(self, device: str, read: Probe | None) -> None:
        """Reads an allocator's statistics at the memory rate from now on, or with ``None`` no longer.

        Args:
            device: torch's name of the device.
            read: gives metrics of the ``allocator`` table, ``None`` for a gap, and of a GPU that nobody else reads its
                ``free_bytes`` and ``total_bytes``. After detaching it is not called again.
        """
        if self._cards.attach(device, read):
            return
        self._torch.probe(device, read)

    def adopt(self, pid: int | None) -> None:
        """Count a run's own process as ours from now on, in host memory and on GPUs; with ``None`` none any more."""
        self._host.hosted = pid

    def follow(self, program: Callable[[], Mapping[int, int]] | None) -> None:
        """Show a watched program's processes in place of ours from now on; with ``None`` no longer.

        Args:
            program: gives their resident bytes by PID.
        """
        self._host.program = self._processes.program = program

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs known now, in NVML's order; one that is lost stays."""
        return self._gpus.gpus

    @property
    def problem(self) -> str | None:
        """Why there is no GPU, in one sentence; ``None`` when there is one and before it is known."""
        return self._gpus.problem

    @property
    def nvml_text(self) -> str:
        """What NVML answered last, in its own words."""
        return self._gpus.nvml_text

    def retry_now(self) -> None:
        """Looks for GPUs at once where there were none."""
        self._gpus.retry_now()

    @property
    def driver_version(self) -> str | None:
        """Version of the NVIDIA driver, such as "580.65.06", once it was opened."""
        return self._gpus.driver_version

    @property
    def host_capacity_source(self) -> str:
        """What bounds the host's memory: "RAM" or "cgroup limit of …"."""
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
        # The host's lane comes round most reliably, for it waits for no driver; a busy lane alone can be stuck.
        for lane in self._lanes():
            if lane.busy and lane is not self._host_lane:
                lane.check()
        return self._host.read(now_s)

    def _family(self) -> frozenset[int]:
        """PIDs of this process and its descendants; a run's own process counts at once."""
        hosted, program = self._host.hosted, self._host.program
        watched = () if program is None else program()
        # Without waiting for the next scan: a run's memory on a GPU must not be taken for a stranger's.
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
