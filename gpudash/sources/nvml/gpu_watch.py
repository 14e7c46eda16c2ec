"""Watches all GPUs: opens NVML, retries while it is missing, and gives each GPU two lanes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gpudash.devices.names import Gpu
from gpudash.sources.lanes import Emit, Lane, Read, Timing
from gpudash.sources.nvml.errors import NvmlUnavailableError, why_no_gpu
from gpudash.sources.nvml.gpu_reader import GpuReader
from gpudash.sources.nvml.library import Nvml
from gpudash.telemetry.records import Record, SourceFailed, SourceRecovered

NVML = "nvml"


@dataclass(frozen=True, slots=True)
class _Watched:
    reader: GpuReader
    fast: Lane
    slow: Lane


class GpuWatch:
    """The GPUs, their lanes, and the lane that looks after the library.

    Args:
        nvml: the library, not yet opened.
        emit: callback for each record; called from several threads.
        clock: session time in seconds, monotonic.
        period_s: interval of memory readings.
        timing: intervals of all other readings.
        root: parent folder of ``proc`` and ``sys``.
        family: PIDs of our own process and its children.
    """

    def __init__(
        self,
        nvml: Nvml,
        emit: Emit,
        clock: Callable[[], float],
        period_s: float,
        timing: Timing,
        root: Path,
        family: Callable[[], frozenset[int]],
    ) -> None:
        self.driver_version: str | None = None
        self._nvml = nvml
        self._emit = emit
        self._clock = clock
        self._period_s = period_s
        self._timing = timing
        self._root = root
        self._family = family
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._gpu_lanes: tuple[Lane, ...] = ()
        self._stopping = False
        self._problem: str | None = None
        self._reported_absence = False
        self._reported_silent: list[str] = []
        self._retry_s = timing.tend
        self._retry_at_s = 0.0
        self._all_lost_since: float | None = None
        title, patience_s = "The NVIDIA driver", timing.driver_patience
        self._lane = Lane(NVML, self._tend, emit, clock, timing.tend, title=title, patience_s=patience_s)

    def start(self) -> None:
        self._lane.start()

    def stop(self) -> None:
        """Ask all lanes to end; no more are added."""
        with self._lock:
            self._stopping = True
        for lane in self.lanes:
            lane.stop()

    def close(self) -> None:
        """Close the library. Call it only when all lanes have ended and `answers_owed` is false."""
        with contextlib.suppress(Exception):  # at exit nobody would read the error
            self._nvml.close()
        for watched in self._all():
            watched.reader.close()

    def set_period(self, period_s: float) -> None:
        """Set the interval of memory readings, in seconds."""
        with self._lock:
            self._period_s = period_s
            everyone = list(self._watched.values())
        for watched in everyone:
            watched.reader.set_period(period_s)
            watched.fast.set_period(period_s)

    @property
    def lanes(self) -> list[Lane]:
        return [self._lane, *self._gpu_lanes]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The known GPUs in NVML's order, lost ones included."""
        found = (watched.reader.gpu for watched in self._all())
        return tuple(sorted(found, key=lambda gpu: (gpu.nvml_index, gpu.parent, gpu.instance)))

    @property
    def problem(self) -> str | None:
        """Why there is no GPU, in one sentence; ``None`` if there is one, or before that is known."""
        if self._lane.failed or (self._reported_silent and not self._watched):
            return "The NVIDIA driver does not answer; restart the machine if it stays so."
        return self._problem

    @property
    def nvml_text(self) -> str:
        """NVML's last error, in its own words."""
        fault = self._nvml.fault
        if fault is None:
            return "answers"
        opened = self.driver_version is not None
        if opened and not self._watched:
            return "opened, and lists no GPU"
        return fault.text

    def retry_now(self) -> None:
        """Open the library at the next check, however recent the last attempt was."""
        self._retry_s = self._timing.tend
        self._retry_at_s = 0.0

    @property
    def answers_owed(self) -> bool:
        """Whether a GPU has not yet answered the request to identify itself."""
        return bool(self._nvml.silent())

    def _all(self) -> list[_Watched]:
        with self._lock:
            return list(self._watched.values())

    def _tend(self, now_s: float) -> Iterable[Record]:
        """Open the library if it is closed, and add its GPUs."""
        try:
            if self._nvml.usable:
                self._add(self._nvml.divided_now(self._wholes(), self._timing.patience / 2))
                self._reopen_when_all_are_lost(now_s)
                return self._silent(now_s)
            if now_s < self._retry_at_s or self._driver_busy():
                return ()
            self._nvml.open()
            self.driver_version = self._nvml.driver_version()
            gpus = self._nvml.gpus(self._timing.patience / 2)
        except NvmlUnavailableError as failure:
            self._nvml.abandon(failure.fault)
            return self._absent(now_s)
        if not gpus and not self.answers_owed:
            self._nvml.close()
            return self._absent(now_s)
        self._problem = None
        self._retry_s = self._timing.tend
        self._add(gpus)
        return [*self._present(now_s), *self._silent(now_s)]

    def _absent(self, now_s: float) -> Iterable[Record]:
        absence = why_no_gpu(self._nvml.fault, self._root, os.environ)
        self._problem = absence.text
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, self._timing.longest_retry)
        reported, self._reported_absence = self._reported_absence, True
        if reported or not (absence.is_failure or self._watched):
            return ()
        return [SourceFailed(time_s=now_s, source=NVML, text=absence.text)]

    def _present(self, now_s: float) -> Iterable[Record]:
        if not self._reported_absence:
            return ()
        self._reported_absence = False
        count = len(self.gpus)
        text = f"The NVIDIA driver answers: {count} GPU{'s' if count > 1 else ''}."
        return [SourceRecovered(time_s=now_s, source=NVML, text=text)]

    def _wholes(self) -> list[Gpu]:
        """GPUs that may have been divided into MIG instances; not those asleep, which a call would wake."""
        readers = [watched.reader for watched in self._all()]
        return [r.gpu for r in readers if not r.gpu.parent and not r.lost and r.memory_version is not None]

    def _silent(self, now_s: float) -> Iterable[Record]:
        """Report once that some GPUs do not even identify themselves."""
        silent = self._nvml.silent(self._timing.driver_patience)
        reported, self._reported_silent = self._reported_silent, silent
        if not silent or silent == reported:
            return ()
        text = f"GPU {' and '.join(silent)} does not answer the driver; the other devices are read on."
        return [SourceFailed(time_s=now_s, source=NVML, text=text)]

    def _add(self, gpus: list[Gpu]) -> None:
        """Watch new GPUs, and update the others to their present division into MIG instances."""
        listed, known = {gpu.uuid: gpu for gpu in gpus}, {watched.reader.gpu.uuid for watched in self._all()}
        for reader in (watched.reader for watched in self._all()):
            if reader.gpu.uuid in listed:
                reader.gpu = replace(reader.gpu, instances=listed[reader.gpu.uuid].instances)
            if reader.gpu.parent in listed:
                reader.destroyed = reader.gpu.uuid not in listed
        for gpu in (gpu for gpu in gpus if gpu.uuid not in known):
            reader = GpuReader(gpu, self._nvml, root=self._root, family=self._family, reacquire_s=self._timing.tend)
            with self._lock:
                if self._stopping or gpu.uuid in self._watched:
                    reader.close()
                    continue
                reader.set_period(self._period_s)
                watched = self._watched[gpu.uuid] = self._watch(reader)
                self._gpu_lanes += watched.fast, watched.slow
                watched.fast.start()
                watched.slow.start()

    def _watch(self, reader: GpuReader) -> _Watched:
        def read_slow(now_s: float) -> Iterable[Record]:
            # A driver that blocks one call would block the next: lose at most one lane of a GPU to it.
            if fast.stuck:
                return reader.stale_slow(now_s)
            return reader.read_slow(now_s)

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
        """Initialising again invalidates every handle, so do it only when no GPU responds any more."""
        everyone = self._all()
        if not everyone or not all(watched.reader.lost for watched in everyone):
            self._all_lost_since = None
        elif self._all_lost_since is None:
            self._all_lost_since = now_s
        elif now_s - self._all_lost_since >= self._timing.reopen:
            self._all_lost_since = None
            self._nvml.abandon()

    def _driver_busy(self) -> bool:
        """Whether a call is in progress that reopening the library would crash."""
        return self.answers_owed or any(lane.busy for lane in self.lanes if lane is not self._lane)
