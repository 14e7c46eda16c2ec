"""What any source of GPUs is asked for; and torch's figures of one, which only the process has that runs something."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gpudash.sources.lanes import Emit, Lane
from gpudash.sources.simulated_gpus import Probe, allocator_sample
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Record, Sample, State

CARD = ("free_bytes", "total_bytes")
"""What a probe reads of a whole GPU, beside its allocator, where no other source does."""

NOT_REPORTED = {
    metric.name: State.NOT_SUPPORTED for metric in METRICS["gpu"] if metric.name not in (*CARD, "used_bytes")
}
"""What a driver tells of a GPU and torch does not: load, temperature, power, clocks, a link, processes."""

NOT_REPORTED_PERIOD_S = 1.0


class GpuSource(Protocol):
    """Reads GPUs on lanes of its own, which emit samples of the tables ``gpu`` and ``process`` or ``allocator``.

    NVML's is `GpuWatch`. Another maker's library would be one more: `Monitor` asks a source for nothing else.
    """

    @property
    def lanes(self) -> Sequence[Lane]:
        """Those that read now."""

    def start(self) -> None:
        """Begins to read, without waiting."""

    def stop(self) -> None:
        """Asks all lanes to end; none is added any more."""

    def set_period(self, period_s: float) -> None:
        """Seconds between memory readings from now on."""

    @property
    def answers_owed(self) -> bool:
        """Whether closing has to wait for a driver."""

    def close(self) -> None:
        """Gives everything back. Only when all lanes have ended and `answers_owed` is false."""


class TorchGpus:
    """A `GpuSource` of what torch tells where a run is on, one lane a device: its allocator, and the whole GPU's memory
    where the probe has that too.

    Args:
        emit: takes each record; called from several threads.
        clock: session time in seconds, monotonic.
        period_s: between readings.
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
        """There is nothing to read before the first run."""

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
        """Nothing is kept open."""

    def probe(self, device: str, read: Probe | None) -> None:
        """Reads the statistics of ``device`` from now on, or with ``None`` no longer; as `Monitor.probe`."""
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
    """The rows of one tick of a device: of its allocator, and of the GPU once its memory was told."""

    def __init__(self, device: str, read: Probe) -> None:
        self._device = device
        self._read = read
        self._reports_card = False
        self._rest_due_s = -math.inf

    def __call__(self, now_s: float) -> Iterable[Record]:
        found = dict(self._read())
        card = {name: found.pop(name, None) for name in CARD}
        self._reports_card = self._reports_card or card["total_bytes"] is not None
        allocator = allocator_sample(now_s, self._device, lambda: found)
        if self._reports_card:
            return [allocator, self._card(now_s, card)]
        return [allocator]

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
