"""Watches the host and every GPU: one lane each, and one that looks after NVML itself."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpudash.devices import Gpu
from gpudash.sources.absence import why_no_gpu
from gpudash.sources.gpu_reader import GpuReader
from gpudash.sources.host import HostReader
from gpudash.sources.lanes import Emit, Lane, LaneStatistics, Read
from gpudash.sources.nvml import Nvml
from gpudash.sources.nvml_errors import NvmlUnavailableError
from gpudash.sources.processes import ProcessReader
from gpudash.telemetry.records import Record, Sample, SourceFailed, SourceRecovered, State

SLOWEST_HZ, FASTEST_HZ = 1.0, 50.0
NVML = "nvml"

DRIVER_PATIENCE = 3
"""The driver may take so many times longer to begin with a GPU than to answer for it: it starts the card up."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds between the readings that do not follow the memory rate, and of patience.

    Attributes:
        slow: energy, processes and PCIe throughput of a GPU.
        processes: host processes.
        tend: how often the library is looked after, and a lost GPU is looked for.
        longest_retry: between attempts to open a library that is not there; they begin at `tend` and double.
        reopen: how long all GPUs must be lost before the library is initialised anew.
        patience: silence after which a stuck call is told in words.
    """

    slow: float = 1.0
    processes: float = 1.0
    tend: float = 0.5
    longest_retry: float = 5.0
    reopen: float = 2.0
    patience: float = 1.0


@dataclass(frozen=True, slots=True)
class _Watched:
    reader: GpuReader
    fast: Lane
    slow: Lane


class Monitor:
    """Reads the machine on lanes of its own and emits what it reads. No lane waits for another.

    Args:
        emit: takes each record; called from several threads.
        clock: session time in seconds, monotonic.
        rate_hz: memory readings a second, 1 to 50.
        host: the host reader; by default a new one.
        nvml: the library; by default a new session with it.
        timing: of everything else.
        root: where ``proc`` and ``sys`` are found.
    """

    def __init__(
        self,
        emit: Emit,
        clock: Callable[[], float],
        rate_hz: float = 20.0,
        host: HostReader | None = None,
        nvml: Nvml | None = None,
        timing: Timing | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._timing = timing or Timing()
        self._root = root
        self._host = host or HostReader(root)
        self._nvml = nvml or Nvml(root)
        self._processes = ProcessReader()
        self._period_s = _period(rate_hz)
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._probes: dict[str, Lane] = {}
        self._driver_version: str | None = None
        self._problem: str | None = "NVML has not been asked yet."
        self._told_absence = False
        self._told_silent: list[str] = []
        self._retry_s = self._timing.tend
        self._retry_at_s = 0.0
        self._all_lost_since: float | None = None
        self._stopping = False
        self._host_lane = Lane("host", self._read_host, emit, clock, self._period_s, title="The host", stale=_host_gap)
        self._process_lane = Lane(
            "processes", self._processes.read, emit, clock, self._timing.processes, title="The list of processes"
        )
        self._nvml_lane = Lane(
            NVML,
            self._tend,
            emit,
            clock,
            self._timing.tend,
            title="The NVIDIA driver",
            patience_s=DRIVER_PATIENCE * self._timing.patience,
        )

    def start(self) -> None:
        """Begins to read. Nothing is waited for."""
        for lane in (self._host_lane, self._process_lane, self._nvml_lane):
            lane.start()

    def stop(self, timeout_s: float = 2.0) -> bool:
        """Ends all lanes and waits at most ``timeout_s`` for them.

        Returns:
            Whether all have ended. A lane inside a driver call that does not return is left behind as a daemon.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._stopping = True
            lanes = self._lanes()
        for lane in lanes:
            lane.stop()
        left = [lane for lane in lanes if not lane.join(deadline - time.monotonic())]
        if left or self._nvml.silent():
            return False  # closing the library under a call that has not returned would crash it
        closing = threading.Thread(target=self._close, name="gpudash close nvml", daemon=True)
        closing.start()
        closing.join(max(0.0, deadline - time.monotonic()))
        return not closing.is_alive()

    def set_rate(self, rate_hz: float) -> None:
        """Reads memory ``rate_hz`` times a second from now on (1 to 50)."""
        with self._lock:
            self._period_s = _period(rate_hz)
            for watched in self._watched.values():
                watched.reader.set_period(self._period_s)
            lanes = [self._host_lane, *self._probes.values(), *(watched.fast for watched in self._watched.values())]
        for lane in lanes:
            lane.set_period(self._period_s)

    def probe(self, device: str, read: Callable[[], Mapping[str, int]] | None) -> None:
        """Reads an allocator's statistics at the memory rate from now on, or with ``None`` no longer.

        Args:
            device: torch's name of the device.
            read: gives metrics of the ``allocator`` table. After detaching it is not called again.
        """
        with self._lock:
            former = self._probes.pop(device, None)
            if read is not None and not self._stopping:
                lane = self._probe_lane(device, read)
                self._probes[device] = lane
                lane.start()
        if former is not None:
            former.stop()
            former.join(0.5)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs known now, in NVML's order; one that is lost stays."""
        with self._lock:
            found = [watched.reader.gpu for watched in self._watched.values()]
        return tuple(sorted(found, key=lambda gpu: gpu.nvml_index))

    @property
    def problem(self) -> str | None:
        """Why there is no GPU, in one sentence; ``None`` when there is one."""
        if self._nvml_lane.failed or (self._told_silent and not self._watched):
            return "The NVIDIA driver does not answer; restart the machine if it stays so."
        return self._problem

    @property
    def driver_version(self) -> str | None:
        """Version of the NVIDIA driver, as long as it was ever opened."""
        return self._driver_version

    @property
    def states(self) -> Mapping[str, Mapping[str, State]]:
        """GPU's UUID → metric → its state at the last reading."""
        with self._lock:
            return {uuid: dict(watched.reader.states) for uuid, watched in self._watched.items()}

    @property
    def host_capacity_source(self) -> str:
        """What bounds the host's memory: "RAM" or "cgroup limit of …"."""
        return self._host.capacity_source

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """What each lane has done so far."""
        with self._lock:
            lanes = self._lanes()
        return tuple(lane.statistics for lane in lanes)

    def _lanes(self) -> list[Lane]:
        gpu_lanes = [lane for watched in self._watched.values() for lane in (watched.fast, watched.slow)]
        return [self._host_lane, self._process_lane, self._nvml_lane, *gpu_lanes, *self._probes.values()]

    def _read_host(self, now_s: float) -> Iterable[Record]:
        with self._lock:
            lanes = self._lanes()
        for lane in lanes:
            if lane is not self._host_lane:
                lane.check()
        return self._host.read(now_s)

    def _probe_lane(self, device: str, read: Callable[[], Mapping[str, int]]) -> Lane:
        def sample(now_s: float) -> Iterable[Record]:
            return [Sample(now_s, "allocator", device, dict(read()))]

        title = f"The allocator of {device}"
        return Lane(f"allocator {device}", sample, self._emit, self._clock, self._period_s, title=title)

    def _tend(self, now_s: float) -> Iterable[Record]:
        """Opens the library when it is not open, and adds the GPUs it has."""
        try:
            if self._nvml.usable:
                self._add(self._nvml.latecomers())
                self._reopen_when_all_are_lost(now_s)
                return self._silent(now_s)
            if now_s < self._retry_at_s or self._driver_busy():
                return ()
            self._nvml.open()
            gpus = self._nvml.gpus(self._timing.patience / 2)
        except NvmlUnavailableError as failure:
            self._nvml.abandon(failure.fault)
            return self._absent(now_s)
        if not gpus and not self._nvml.silent():
            self._nvml.close()
            return self._absent(now_s)
        self._problem = None
        self._retry_s = self._timing.tend
        self._add(gpus)
        return [*self._present(now_s), *self._silent(now_s)]

    def _absent(self, now_s: float) -> Iterable[Record]:
        fault = self._nvml.fault
        absence = why_no_gpu(fault, self._root, os.environ)
        self._problem = absence.text
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, self._timing.longest_retry)
        if self._told_absence:
            return ()
        self._told_absence = True
        return (
            [SourceFailed(time_s=now_s, source=NVML, text=absence.text)] if absence.is_failure or self._watched else ()
        )

    def _silent(self, now_s: float) -> Iterable[Record]:
        """Says once that there are GPUs that do not even tell who they are."""
        silent = self._nvml.silent(DRIVER_PATIENCE * self._timing.patience)
        told, self._told_silent = self._told_silent, silent
        if not silent or silent == told:
            return ()
        text = f"GPU {' and '.join(silent)} does not answer the driver; the other devices are read on."
        return [SourceFailed(time_s=now_s, source=NVML, text=text)]

    def _present(self, now_s: float) -> Iterable[Record]:
        if not self._told_absence:
            return ()
        self._told_absence = False
        count = len(self.gpus)
        text = f"The NVIDIA driver answers: {count} GPU{'s' if count > 1 else ''}."
        return [SourceRecovered(time_s=now_s, source=NVML, text=text)]

    def _add(self, gpus: list[Gpu]) -> None:
        for gpu in gpus:
            if gpu.uuid in self._watched:
                continue
            reader = GpuReader(
                gpu,
                self._nvml,
                root=self._root,
                family=lambda: self._processes.family,
                reacquire_s=self._timing.tend,
            )
            with self._lock:
                if self._stopping:
                    return
                reader.set_period(self._period_s)
                watched = self._watch(reader)
                self._watched[gpu.uuid] = watched
            watched.fast.start()
            watched.slow.start()

    def _watch(self, reader: GpuReader) -> _Watched:
        def read_slow(now_s: float) -> Iterable[Record]:
            # A driver that holds one call would hold the next: at most one lane of a GPU is lost to it.
            return reader.stale_slow(now_s) if fast.stuck else reader.read_slow(now_s)

        fast = self._gpu_lane(reader, "fast", reader.read_fast, reader.stale_fast, self._period_s)
        slow = self._gpu_lane(reader, "slow", read_slow, reader.stale_slow, self._timing.slow)
        return _Watched(reader, fast, slow)

    def _gpu_lane(self, reader: GpuReader, name: str, read: Read, stale: Read, period_s: float) -> Lane:
        return Lane(
            f"{reader.gpu.uuid} {name}",
            read,
            self._emit,
            self._clock,
            period_s,
            source=reader.gpu.uuid,
            title=reader.title,
            stale=stale,
            patience_s=self._timing.patience,
        )

    def _reopen_when_all_are_lost(self, now_s: float) -> None:
        """Initialising anew takes every handle away, so it is done only when no GPU answers any more."""
        with self._lock:
            readers = [watched.reader for watched in self._watched.values()]
        if not readers or not all(reader.lost for reader in readers):
            self._all_lost_since = None
        elif self._all_lost_since is None:
            self._all_lost_since = now_s
        elif now_s - self._all_lost_since >= self._timing.reopen:
            self._all_lost_since = None
            self._nvml.close()

    def _driver_busy(self) -> bool:
        """Whether a call is under way that opening anew would pull the ground from under."""
        with self._lock:
            lanes = [lane for watched in self._watched.values() for lane in (watched.fast, watched.slow)]
        return bool(self._nvml.silent()) or any(lane.busy for lane in lanes)

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._nvml.close()
        with self._lock:
            readers = [watched.reader for watched in self._watched.values()]
        for reader in readers:
            reader.close()
        self._host.close()


def _period(rate_hz: float) -> float:
    return 1 / min(FASTEST_HZ, max(SLOWEST_HZ, rate_hz))


def _host_gap(now_s: float) -> Iterable[Record]:
    metrics = ("total_bytes", "available_bytes", "used_bytes", "free_bytes", "file_cache_bytes", "process_bytes")
    return [Sample(now_s, "host", None, dict.fromkeys(metrics), dict.fromkeys(metrics, State.STALE))]
