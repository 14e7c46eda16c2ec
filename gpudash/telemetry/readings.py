"""The state at one moment, apart from series: readings, runs, events, and the bands computed from readings."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpudash.drawing.axes import Unit
from gpudash.telemetry.records import Event, Marker, Sample, State, Value, number_in, size_in
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.series import Point

MAX_EVENTS = 10_000

JOIN_S = 2.0
"""Largest age of another source's reading that is combined with a new one into a band."""

PROCESSES_S = 10.0
"""Age from which a list of processes is no longer shown."""

MOST_SCANNED = 1024
"""Most readings of a table before a moment that are scanned."""

ALL_KNOWN = 64
"""Number of consecutive readings without a new metric after which all are assumed to be known."""

Key = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest reading of a metric: a value with `State.OK`, or ``None`` with the reason.

    Attributes:
        time_s: session time of the reading; ``None`` if the metric was never read.
    """

    value: Value
    state: State
    time_s: float | None

    @property
    def number(self) -> float | None:
        """The value, if it is a number."""
        return number_in(self.value)

    @property
    def size(self) -> int | None:
        """The value as a whole number, such as bytes."""
        return size_in(self.value)


NEVER_READ = Reading(None, State.NOT_SUPPORTED, None)
"""Result of `Store.latest` for a metric that was never read."""


@dataclass(slots=True)
class Instant:
    """The state at one moment, apart from series.

    Attributes:
        newest_s: time of the newest record, or the moment itself.
        runs: at most 200 runs, oldest first.
        events: events a person may look for, at most 10 000; steps, stages and transfers are in series and runs.
        event_count: number of events ever added to `events`.
        markers: markers, including one for each warning and each beginning and end of a run; at most 10 000.
        readings: newest reading of every metric.
        processes: for each GPU (by UUID) and the host, the time of the last process list, and its rows.
        bands: time and value, NaN for a gap, of quantities computed from several sources' readings.
    """

    newest_s: float = 0.0
    runs: list[RunView] = field(default_factory=list)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    event_count: int = 0
    markers: deque[Marker] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    readings: dict[Key, Reading] = field(default_factory=dict)
    processes: dict[str | None, tuple[float, list[Mapping[str, Value]]]] = field(default_factory=dict)
    bands: dict[Key, Point] = field(default_factory=dict)

    @property
    def run(self) -> RunView | None:
        """The current run, else the last one."""
        if self.runs:
            return self.runs[-1]
        return None

    def newest(self, key: Key) -> Point | None:
        """Time and value (NaN for a gap) of a numeric metric or a band; ``None`` if unknown."""
        if key in self.bands:
            return self.bands[key]
        reading = self.readings.get(key, NEVER_READ)
        if reading.time_s is None or isinstance(reading.value, str):
            return None
        return reading.time_s, math.nan if reading.value is None else reading.value

    def scan_back(self, samples: Iterable[Sample]) -> None:
        """Add readings, newest first, from `newest_s` back to where they contain no new metric."""
        taken = known = 0
        for sample in samples:
            if sample.time_s > self.newest_s:
                continue
            taken += 1
            if self._take_older(sample):
                known = 0
            else:
                known = known + 1
            outdated = sample.table == "process" and sample.time_s < self.newest_s - PROCESSES_S
            if outdated or known >= ALL_KNOWN or taken >= MOST_SCANNED:
                return

    def _take_older(self, sample: Sample) -> bool:
        """Add a reading that is older than all others; returns whether it contained anything new."""
        if sample.table == "process":
            time_s, rows = self.processes.setdefault(sample.device, (sample.time_s, []))
            if time_s == sample.time_s and sample.values.get("pid") is not None:
                rows.insert(0, sample.values)
            return time_s == sample.time_s
        before = len(self.readings)
        for metric, value in sample.values.items():
            if value is not None:
                state = State.OK
            else:
                state = sample.states.get(metric, State.STALE)
            self.readings.setdefault((sample.table, metric, sample.device), Reading(value, state, sample.time_s))
        return len(self.readings) > before

    def add_bands(self, allocators: Mapping[str, str]) -> None:
        """Compute the bands of all memories from the newest readings; ``allocators`` are torch's names by UUID."""
        for table, metric, device in list(self.readings):
            time_s = self.readings[table, metric, device].time_s
            if metric == "used_bytes" and table in ("host", "gpu") and time_s is not None:
                for key, value in self.bands_of(table, device, allocators.get(device or ""), time_s):
                    self.bands[key] = time_s, math.nan if value is None else value

    def bands_of(
        self, table: str, device: str | None, allocator: str | None, time_s: float
    ) -> Iterator[tuple[Key, float | None]]:
        """What `DERIVED` computes for a memory whose usage was read at ``time_s``, by series.

        Args:
            allocator: torch's name for the device.
        """
        memory = MemoryReadings(self, table, device, allocator, time_s)
        for derived in DERIVED:
            if derived.table == table:
                for metric, value in zip(derived.metrics, derived.compute(memory), strict=False):
                    yield (table, metric, device), value

    def recent(self, key: Key, time_s: float) -> float | None:
        """The newest value, unless it is a gap or too old to combine with a reading at ``time_s``."""
        reading = self.readings.get(key, NEVER_READ)
        if isinstance(reading.value, str) or reading.time_s is None or time_s - reading.time_s > JOIN_S:
            return None
        return reading.value


@dataclass(frozen=True, slots=True)
class MemoryReadings:
    """The newest readings of one memory that belong together.

    Attributes:
        instant: all readings.
        table: "host" or "gpu".
        device: UUID of the GPU; ``None`` for the host.
        allocator: torch's name for the device, if torch uses it.
        time_s: when its usage was read.
    """

    instant: Instant
    table: str
    device: str | None
    allocator: str | None
    time_s: float

    def of_device(self, metric: str) -> float | None:
        """A reading of the device; ``None`` for a gap."""
        return self.instant.recent((self.table, metric, self.device), self.time_s)

    def of_allocator(self, metric: str) -> float | None:
        """A reading of torch's allocator on the device; ``None`` for a gap."""
        return self.instant.recent(("allocator", metric, self.allocator), self.time_s)

    @property
    def has_allocator(self) -> bool:
        """Whether an allocator of ours is known on the device."""
        return ("allocator", "reserved_bytes", self.allocator) in self.instant.readings


@dataclass(frozen=True, slots=True)
class DerivedPlot:
    """A plot of derived series, hidden until it is chosen.

    Attributes:
        id: name that stays the same; other plots have others.
        title: heading, followed by the device.
        unit: how values are written.
        curves: name and colour (in `Palette.curves`) of each series, in their order.
    """

    id: str
    title: str
    unit: Unit
    curves: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Derived:
    """Series that are computed from readings of several sources at each reading of a memory.

    Attributes:
        table: whose memory: "host" or "gpu".
        metrics: names of the series.
        compute: their values, ``None`` for a gap; none at all where they do not apply.
        plot: the plot that they have to themselves; ``None`` if a function of `gpudash.telemetry.plots` draws them.
    """

    table: Literal["host", "gpu"]
    metrics: tuple[str, ...]
    compute: Callable[[MemoryReadings], Sequence[float | None]]
    plot: DerivedPlot | None = None


@dataclass(frozen=True, slots=True)
class GpuBands:
    """The parts of a GPU's used memory, in bytes; ``None`` is a gap. The others add up to `used`.

    Attributes:
        allocated: memory of tensors.
        idle: free memory in PyTorch's cache: reserved − allocated.
        context: CUDA context: our process's memory by the driver − reserved; part of `other` if that is unknown.
        other: memory of other processes.
    """

    allocated: float | None
    idle: float | None
    context: float | None
    other: float | None


def gpu_bands(
    used: float | None, process: float | None, allocated: float | None, reserved: float | None, *, linked: bool
) -> GpuBands:
    """The bands for one tick.

    Args:
        used: used memory of the whole GPU, by the driver.
        process: memory of our own process, by the driver; ``None`` if not reported.
        allocated: allocated memory of torch's allocator.
        reserved: reserved memory of torch's allocator.
        linked: whether one of our allocators is known on this GPU; without one, it holds nothing.
    """
    if used is None:
        return GpuBands(None, None, None, None)
    if not linked:
        allocated = reserved = 0
    if allocated is None or reserved is None:
        return GpuBands(None, None, None, None if process is None else max(used - process, 0))
    # Driver and allocator are read at different times; a newer reading must not make a band negative.
    reserved = min(reserved, used)
    allocated = min(allocated, reserved)
    if process is None:
        return GpuBands(allocated, reserved - allocated, None, used - reserved)
    own = min(max(process, reserved), used)
    return GpuBands(allocated, reserved - allocated, own - reserved, used - own)


def host_others(used: float | None, process: float | None) -> float | None:
    """Host memory of other processes; ``None`` if either figure is missing."""
    if used is None or process is None:
        return None
    return max(used - process, 0)


def _gpu_parts(memory: MemoryReadings) -> tuple[float | None, ...]:
    """The fields of `GpuBands`, in their order."""
    bands = gpu_bands(
        memory.of_device("used_bytes"),
        memory.of_device("process_bytes"),
        memory.of_allocator("allocated_bytes"),
        memory.of_allocator("reserved_bytes"),
        linked=memory.has_allocator,
    )
    return bands.allocated, bands.idle, bands.context, bands.other


def _idle_share(memory: MemoryReadings) -> tuple[float | None, ...]:
    """The idle share of what PyTorch reserved, which grows as memory falls into pieces; a gap while it has none."""
    if not memory.has_allocator:
        return ()
    allocated = memory.of_allocator("allocated_bytes")
    reserved = memory.of_allocator("reserved_bytes")
    if allocated is None or not reserved:
        return (None,)
    return (max(0.0, 1.0 - allocated / reserved),)


DERIVED = (
    Derived(
        "host",
        ("others_bytes",),
        lambda memory: (host_others(memory.of_device("used_bytes"), memory.of_device("process_bytes")),),
    ),
    Derived("gpu", ("allocated_bytes", "idle_bytes", "context_bytes", "other_bytes"), _gpu_parts),
    Derived(
        "gpu",
        ("idle_share",),
        _idle_share,
        DerivedPlot("idle_share", "IDLE SHARE inside PyTorch", "ratio", (("of what is reserved", "idle"),)),
    ),
)
"""Every series that is computed from readings, and the plots that some of them have to themselves."""
