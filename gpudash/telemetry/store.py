"""What the application knows right now, for whoever draws it: series, latest readings, runs, events.

`gpu_bands` adds memory of different sources up to what is used.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpudash.devices.names import shown_devices
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.ranks.ranks import RankShares, Share
from gpudash.telemetry.records import (
    STEP_METRICS,
    Event,
    Marker,
    Note,
    OutOfMemory,
    Output,
    Record,
    RunEnded,
    RunFailed,
    RunFinished,
    RunStarted,
    Sample,
    StageFinished,
    State,
    StepFinished,
    Topic,
    Transfer,
    Value,
    Warning,
)
from gpudash.telemetry.runs import WATCH, RunView, run_of
from gpudash.telemetry.series import Series

MAX_EVENTS = 10_000
MAX_RUNS = 200

JOIN_S = 2.0
"""Oldest reading of another source that is still joined with a new one to make a band."""

PROCESSES_S = 10.0
"""Age at which a list of processes is no longer shown."""

Key = tuple[str, str, str | None]

_PLOTTED = {
    (table, metric.name)
    for table in ("host", "gpu", "allocator", "rank")
    for metric in METRICS[table]
    if metric.type != "TEXT"
}
_IN_SERIES = (StepFinished, StageFinished, Transfer, Output)
"""Events that are kept as series, sums and lines; among the others they would push out what a person looks for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest reading of a metric: a value and `State.OK`, or ``None`` and why.

    Attributes:
        time_s: when it was read; ``None`` when it was never asked for.
    """

    value: Value
    state: State
    time_s: float | None


NEVER_READ = Reading(None, State.NOT_SUPPORTED, None)
"""What `Store.latest` answers for a metric that was never asked for."""


class Store:
    """Everything read and everything that happened, bounded.

    One thread applies records; any thread may read, holding `lock` while it does and copying what it keeps. The
    methods that read do not take the lock themselves, so that one drawing sees one state of affairs.

    Attributes:
        version: grows with every record.
        newest_s: time of the newest record.
        events: what a person may look for, at most 10 000; steps, stages and transfers are in series and runs.
        event_count: how many events ever went into `events`.
        markers: markers, and one for each warning and each beginning and end of a run; at most 10 000.
        runs: at most 200, oldest first.
        renamed: grows when a marker has another label than before: whoever follows markers begins anew.
        rewound: grows when a replay shows an earlier moment: whoever follows events begins anew.
        sharpened: grows when a replay shows another moment, or something of the past becomes known more exactly.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 0
        self.newest_s = 0.0
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.event_count = 0
        self.markers: deque[Marker] = deque(maxlen=MAX_EVENTS)
        self.runs: list[RunView] = []
        self.renamed = 0
        self.rewound = 0
        self.sharpened = 0
        self._series: dict[Key, Series] = {}
        self._latest: dict[Key, Reading] = {}
        self._processes: dict[str | None, tuple[float, list[Mapping[str, Value]]]] = {}
        self._uuids: dict[str, str] = {}
        self._allocators: dict[str, str] = {}
        self._rank_shares = RankShares()

    @property
    def run(self) -> RunView | None:
        """The run that is on, else the last one."""
        return self.runs[-1] if self.runs else None

    def link(self, device: str, uuid: str) -> None:
        """Say that torch's ``device`` ("cuda:0") is the GPU ``uuid``; bands and peaks need it."""
        with self.lock:
            self._uuids[device] = uuid
            self._allocators[uuid] = device

    def torch_name(self, uuid: str) -> str | None:
        """What torch calls the GPU ``uuid``; ``None`` where no `link` said so."""
        return self._allocators.get(uuid)

    def process_devices(self) -> list[str | None]:
        """Where lists of processes were read: ``None`` is the host, the others GPUs by UUID."""
        return sorted(self._processes, key=lambda device: device or "")

    def apply(self, record: Record) -> None:
        """Take in a record. Called by one thread."""
        with self.lock:
            self._take(record)

    def series(self, table: str, metric: str, device: str | None = None) -> Series | None:
        """The history of a metric; ``None`` when nothing of it was ever asked for.

        Tables: those of the readings, with GPUs by UUID and allocators by torch's name; "run" with loss, accuracy and
        throughput; "transfer" with h2d, d2h, h2h, d2d in bytes a second. Made here: host ``others_bytes``; gpu
        ``allocated_bytes, idle_bytes, context_bytes, other_bytes`` (see `GpuBands`), all at the GPU's own ticks; rank
        ``compute_share, communication_share, waiting_share`` (see `RankShares`), of each rank and of "mean".
        """
        return self._series.get((table, metric, device))

    def curves(self) -> Sequence[tuple[Key, Series]]:
        """Every history there is, by table, metric and device."""
        return [
            (key, self._series[key]) for key in sorted(self._series, key=lambda key: (key[0], key[2] or "", key[1]))
        ]

    def latest(self, table: str, metric: str, device: str | None = None) -> Reading:
        """The newest reading of a metric; `NEVER_READ` when it was never asked for."""
        return self._latest.get((table, metric, device), NEVER_READ)

    def processes(self, device: str | None = None) -> Sequence[Mapping[str, Value]]:
        """Rows of the newest list of processes of a GPU (by UUID) or of the host; empty when it is out of date."""
        time_s, rows = self.process_list(device)
        return rows if self.newest_s - time_s <= PROCESSES_S else []

    def process_list(self, device: str | None) -> tuple[float, list[Mapping[str, Value]]]:
        """When the processes of a GPU or of the host were listed last, and what the list said, however old."""
        time_s, rows = self._processes.get(device, (0.0, []))
        return time_s, list(rows)

    def take_readings(self, moment: Store) -> None:
        """Begin with the newest readings and lists of ``moment``, of which no history is kept."""
        with self.lock:
            self._latest.update(moment._latest)
            self._processes.update(moment._processes)
            self.newest_s = max(self.newest_s, moment.newest_s)

    def _take(self, record: Record) -> None:
        self.version += 1
        self.newest_s = max(self.newest_s, record.time_s)
        if isinstance(record, Sample):
            self._sample(record)
        else:
            self._event(record)

    def _append(self, key: Key, time_s: float, value: float | None) -> None:
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._begun(key)
        series.append(time_s, value)

    def _begun(self, key: Key) -> Series:
        """The history of a metric that has a first sample."""
        return Series()

    def _sample(self, sample: Sample) -> None:
        if sample.table == "process":
            self._process(sample)
            return
        table, device, time_s = sample.table, sample.device, sample.time_s
        states = sample.states
        for metric, value in sample.values.items():
            key = (table, metric, device)
            state = State.OK if value is not None else states.get(metric, State.STALE)
            self._latest[key] = Reading(value, state, time_s)
            if not isinstance(value, str) and (table, metric) in _PLOTTED:
                self._append(key, time_s, value)
        if table == "rank":
            self._keep_shares(self._rank_shares.take(sample))
        elif "used_bytes" in sample.values:
            self._bands(sample)
        if self.runs and self.runs[-1].running and time_s >= self.runs[-1].began_s:
            self._peaks(self.runs[-1], table, device, time_s)

    def _keep_shares(self, shares: Iterable[Share]) -> None:
        for metric, device, time_s, share in shares:
            self._append(("rank", metric, device), time_s, share)

    def _process(self, sample: Sample) -> None:
        """A row of the list of this tick, or, without a PID, only the news that the list was read."""
        time_s, rows = self._processes.get(sample.device, (-1.0, []))
        if sample.time_s != time_s:
            rows = []
            self._processes[sample.device] = (sample.time_s, rows)
        if sample.values.get("pid") is not None:
            rows.append(sample.values)

    def _recent(self, table: str, metric: str, device: str | None, time_s: float) -> float | None:
        """The newest value, unless it is a gap or too old to be joined with a reading at ``time_s``."""
        reading = self.latest(table, metric, device)
        if isinstance(reading.value, str) or reading.time_s is None or time_s - reading.time_s > JOIN_S:
            return None
        return reading.value

    def _bands(self, sample: Sample) -> None:
        table, device, time_s = sample.table, sample.device, sample.time_s
        used = self._recent(table, "used_bytes", device, time_s)
        process = self._recent(table, "process_bytes", device, time_s)
        if table == "host":
            self._append(("host", "others_bytes", None), time_s, host_others(used, process))
            return
        allocator = self._allocators.get(device or "")
        allocated = self._recent("allocator", "allocated_bytes", allocator, time_s)
        reserved = self._recent("allocator", "reserved_bytes", allocator, time_s)
        linked = ("allocator", "reserved_bytes", allocator) in self._latest
        bands = gpu_bands(used, process, allocated, reserved, linked=linked)
        for name in ("allocated", "idle", "context", "other"):
            self._append(("gpu", f"{name}_bytes", device), time_s, getattr(bands, name))

    def _peaks(self, run: RunView, table: str, device: str | None, time_s: float) -> None:
        """Raise the running run's peaks by what a sample of ``device`` just brought."""
        memory = run.memory
        if table == "allocator" and device == run.device:
            for metric in ("allocated_bytes", "reserved_bytes"):
                for name in (metric, f"peak_{metric}"):
                    memory.raise_to(metric, self._recent("allocator", name, device, time_s))
        elif table == "host" and run.device == "cpu":
            memory.raise_to("used_bytes", self._recent("host", "process_bytes", None, time_s))
        elif table == "gpu" and device == self._uuids.get(run.device):
            memory.raise_to("used_bytes", self._recent("gpu", "used_bytes", device, time_s))
        where = ("host", None) if run.device == "cpu" else ("gpu", self._uuids.get(run.device))
        if (table, device) == where or memory.capacity_bytes is None:  # that of a simulated card may become another
            total = self.latest(where[0], "total_bytes", where[1]).value
            memory.capacity_bytes = memory.capacity_bytes if total is None else int(total)

    def _event(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self._keep_shares(self._rank_shares.flush())
        if isinstance(event, RunStarted):
            self._begin(event)
        elif (run := run_of(self.runs, event.run_id)) is not None:
            run.apply(event)
            if isinstance(event, Note) and event.topic == Topic.DEVICE:
                self._rename_beginning(run)
        if isinstance(event, StepFinished):
            run = run_of(self.runs, event.run_id)
            for name, value in event.metrics():
                if name in STEP_METRICS or (run is not None and name in run.metrics):
                    self._append(("run", name, None), event.time_s, value)
        elif isinstance(event, Transfer):
            self._transfer(event)
        self._mark(event)
        if not isinstance(event, _IN_SERIES):
            self.events.append(event)
            self.event_count += 1

    def _begin(self, event: RunStarted) -> None:
        """Start a run's view, and break the lines of the run before."""
        self.runs.append(RunView.of(event))
        del self.runs[:-MAX_RUNS]
        for key in [key for key in self._series if key[0] == "rank" or (key[0] == "run" and key[2] is None)]:
            self._append(key, event.time_s, None)
        before = [("gpu", self._uuids.get(event.device)), ("allocator", event.device)]
        if event.workload != WATCH:  # until now it was read what this process holds, not the program
            before.append(("host", None))
        for table, device in before:
            self._peaks(self.runs[-1], table, device, event.time_s)

    def _transfer(self, event: Transfer) -> None:
        """A step as long as the copy took, and a gap behind it, so that idle time is not drawn as a slope."""
        if event.seconds <= 0:
            return
        key = ("transfer", event.direction, None)
        rate = event.bytes / event.seconds
        self._append(key, event.time_s - event.seconds, rate)
        self._append(key, event.time_s, rate)
        self._append(key, event.time_s, None)

    def _mark(self, event: Event) -> None:
        """Keep a marker, or make the one that the plots show for a warning or for a run's beginning or end."""
        if isinstance(event, Marker):
            self.markers.append(event)
        elif (mark := _mark(event)) is not None:
            label, category = mark
            self.markers.append(Marker(time_s=event.time_s, run_id=event.run_id, label=label, category=category))

    def _rename_beginning(self, run: RunView) -> None:
        """Let the marker of a run's beginning name the device that the run turned to: at first it is a guess."""
        label = _beginning(run.workload, run.device, run.spec)
        for place, marker in enumerate(self.markers):
            if marker.category == "run" and (marker.run_id, marker.time_s) == (run.run_id, run.began_s):
                if marker.label != label:
                    self.markers[place] = replace(marker, label=label)
                    self.renamed += 1
                return


BAD_ENDINGS = frozenset({"failed", "stopped by the guard", "out of memory"})
"""Labels of the markers of runs that did not end as they were meant to."""

PLAIN_ENDINGS = frozenset({"finished", "stopped"})
"""Labels of the markers of all other runs' ends, which name no run."""


def _beginning(workload: str, device: str, spec: Mapping[str, Any]) -> str:
    """The label of the marker where a run begins."""
    return f"{'program' if workload == WATCH else workload} on {shown_devices(device, spec)}"


def _mark(event: Event) -> tuple[str, str] | None:
    """Label and category of the marker for ``event``; ``None`` when it has none."""
    match event:
        case Warning(level=level):
            return None if level == "note" else (level, "warning")
        case RunStarted():
            return _beginning(event.workload, event.device, event.spec), "run"
        case RunFinished(status="cancelled"):
            return "stopped", "run"
        case RunFinished():
            return event.status, "run"
        case RunFailed():
            return "failed", "run"
        case StageFinished(name="move model"):
            return "model moved", "phase"
        case OutOfMemory():
            return "stopped by the guard" if event.error == "guard" else "out of memory", "run"
        case _:
            return None


@dataclass(frozen=True, slots=True)
class GpuBands:
    """The parts of a GPU's used memory, in bytes; ``None`` is a gap. Those that are had add up to `used`.

    Attributes:
        allocated: tensors.
        idle: idle inside PyTorch: reserved − allocated.
        context: CUDA context: the driver's figure for our process − reserved; part of `other` where there is none.
        other: other processes.
    """

    allocated: float | None
    idle: float | None
    context: float | None
    other: float | None


def gpu_bands(
    used: float | None, process: float | None, allocated: float | None, reserved: float | None, *, linked: bool
) -> GpuBands:
    """The bands of one tick.

    Args:
        used: the driver's figure for the whole GPU.
        process: the driver's figure for our own process; ``None`` where it gives none.
        allocated: of torch's allocator.
        reserved: of torch's allocator.
        linked: whether an allocator of ours is known on this GPU; when none is, it holds nothing.
    """
    if used is None:
        return GpuBands(None, None, None, None)
    if not linked:
        allocated = reserved = 0
    if allocated is None or reserved is None:
        return GpuBands(None, None, None, None if process is None else max(used - process, 0))
    # The driver and the allocator are read at different instants; the newer allocator must not make a band negative.
    reserved = min(reserved, used)
    allocated = min(allocated, reserved)
    if process is None:
        return GpuBands(allocated, reserved - allocated, None, used - reserved)
    own = min(max(process, reserved), used)
    return GpuBands(allocated, reserved - allocated, own - reserved, used - own)


def host_others(used: float | None, process: float | None) -> float | None:
    """Host memory used by other processes; ``None`` when either figure is missing."""
    return None if used is None or process is None else max(used - process, 0)
