"""The interface of GPU sources; and torch's figures for a GPU, which only the process that runs something has."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gpudash.sources.lanes import Emit, Lane
from gpudash.sources.simulated_gpus import AllocatorRows, Probe
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Record, Sample, State

CARD = ("free_bytes", "total_bytes")
"""Metrics of a whole GPU that a probe reads, beside the allocator's, if no other source does."""

NOT_REPORTED = {
    metric.name: State.NOT_SUPPORTED for metric in METRICS["gpu"] if metric.name not in (*CARD, "used_bytes")
}
"""Metrics that a driver reports and torch does not: utilisation, temperature, power, clocks, link, processes."""

NOT_REPORTED_PERIOD_S = 1.0


class GpuSource(Protocol):
    """Reads GPUs on its own lanes, which emit samples of the tables ``gpu`` and ``process`` or ``allocator``.

    NVML's is `GpuWatch`; another vendor's library would be one more. `Monitor` uses nothing else of a source.
    """

    @property
    def lanes(self) -> Sequence[Lane]:
        """The current lanes."""

    def start(self) -> None:
        """Start reading; returns immediately."""

    def stop(self) -> None:
        """Ask all lanes to end; no more are added."""

    def set_period(self, period_s: float) -> None:
        """Set the interval of memory readings, in seconds."""

    @property
    def answers_owed(self) -> bool:
        """Whether a driver call must return before closing."""

    def close(self) -> None:
        """Release everything. Call it only when all lanes have ended and `answers_owed` is false."""


class TorchGpus:
    """A `GpuSource` for torch's own figures during a run, with one lane for each device: its allocator, and the whole
    GPU's memory if the probe has it.

    Args:
        emit: callback for each record; called from several threads.
        clock: session time in seconds, monotonic.
        period_s: interval of readings.
    """

    answers_owed = False

    def __init__(self, emit: Emit, clock: Callable[[], float], period_s: float) -> None:
        self._emit = emit
        self._clock = clock
        self._period_s = period_s
        self._lock = threading.Lock()
        self._probes: dict[str, Lane] = {}
        self._stopping = False

    @property
    def lanes(self) -> Sequence[Lane]:
        with self._lock:
            return tuple(self._probes.values())

    def start(self) -> None:
        """Nothing to read before the first run."""

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
        for lane in self.lanes:
            lane.stop()

    def set_period(self, period_s: float) -> None:
        with self._lock:
            self._period_s = period_s
        for lane in self.lanes:
            lane.set_period(period_s)

    def close(self) -> None:
        """Nothing to close."""

    def probe(self, device: str, read: Probe | None) -> None:
        """Read the statistics of ``device`` from now on; ``None`` stops that. Like `Monitor.probe`."""
        with self._lock:
            former = self._probes.pop(device, None)
            if read is not None and not self._stopping:
                title = f"The allocator of {device}"
                sample = _Readings(device, read)
                lane = Lane(f"allocator {device}", sample, self._emit, self._clock, self._period_s, title=title)
                self._probes[device] = lane
                lane.start()
        if former is not None:
            former.stop()
            former.join(0.5)


class _Readings:
    """The rows for one tick of a device: of its allocator, and of the GPU once its memory has been reported."""

    def __init__(self, device: str, read: Probe) -> None:
        self._device = device
        self._allocator = AllocatorRows(device)
        self._read = read
        self._reports_card = False
        self._rest_due_s = -math.inf

    def __call__(self, now_s: float) -> Iterable[Record]:
        found = dict(self._read())
        card = {name: found.pop(name, None) for name in CARD}
        self._reports_card = self._reports_card or card["total_bytes"] is not None
        rows = self._allocator.of(found, now_s)
        if not self._reports_card:
            return rows
        return [*rows, self._card(max([now_s, *(row.time_s for row in rows)]), card)]

    def _card(self, now_s: float, card: Mapping[str, int | None]) -> Sample:
        free, total = card["free_bytes"], card["total_bytes"]
        used = None
        if not (free is None or total is None):
            used = max(0, total - free)
        values: dict[str, int | None] = {"used_bytes": used, **card}
        states = dict.fromkeys((name for name in values if values[name] is None), State.STALE)
        if now_s >= self._rest_due_s:
            self._rest_due_s = now_s + NOT_REPORTED_PERIOD_S
            values.update(dict.fromkeys(NOT_REPORTED))
            states.update(NOT_REPORTED)
        return Sample(now_s, "gpu", self._device, values, states)
