"""What the application knows, now and at any moment before, ready to be drawn: series, readings, runs, events.

A store holds what it took in. What it does not hold, its `StoreBackend` reads: a recording's file, a Prometheus server.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from gpudash.devices.names import badged_devices
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.ranks.ranks import RankShares, Share
from gpudash.telemetry.readings import NEVER_READ, PROCESSES_S, Instant, Key, Reading
from gpudash.telemetry.records import (
    STEP_METRICS,
    Event,
    Marker,
    Note,
    Output,
    Record,
    RunEnd,
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
from gpudash.telemetry.series import Floats, Request, Series, Span

MAX_RUNS = 200

MOST_WAITING = 24_576
"""Samples that wait for the older part of their series, more than reading a recording's end brings."""

AT_A_TIME = 256
"""Records taken in before the drawing thread gets a turn."""

MOST_DETAILS = 3
"""Spans known more exactly at a time: the window, a selection and what was seen before."""

_PLOTTED = {
    (table, metric.name)
    for table in ("host", "gpu", "allocator", "rank")
    for metric in METRICS[table]
    if metric.type != "TEXT"
}
_IN_SERIES = (StepFinished, StageFinished, Transfer, Output)
"""Events that are kept as series, sums and lines; among the others they would push out what a person looks for."""


class StoreBackend(Protocol):
    """Reads what a store does not hold: a past that is too long for it, or that lies elsewhere."""

    @property
    def keys(self) -> Collection[Key]:
        """The series whose older part `load` reads when they are first asked for."""

    @property
    def thinned(self) -> bool:
        """Whether also the newest samples of series stand for more than themselves."""

    @property
    def request(self) -> Request | None:
        """Has a range of all series known more exactly, and returns at once; `Store.sharpen` brings what was found.

        ``None`` where there is nothing more to know.
        """

    def load(self, key: Key) -> Series | None:
        """The older part of a series; ``None`` when it cannot be read."""

    def instant(self, store: Store, time_s: float, *, runs: bool) -> Instant:
        """The newest readings and lists of processes at ``time_s``.

        Args:
            store: the one that asks.
            time_s: session time in seconds.
            runs: whether the runs that had begun are wanted, as they were then; the store's lock is not held then.

        Raises:
            Exception: the backend's own, when it cannot be read.
        """


class MemoryBackend:
    """The backend of a store that holds everything: a live session's, a machine's over ssh."""

    keys: Collection[Key] = ()
    thinned = False
    request: Request | None = None

    def load(self, key: Key) -> Series | None:
        """There is no more of a series."""
        return None

    def instant(self, store: Store, time_s: float, *, runs: bool) -> Instant:
        """What has not been read again since: the series know the rest. Runs are as far as they have come."""
        now = store.end
        readings = {key: reading for key, reading in now.readings.items() if (reading.time_s or 0.0) <= time_s}
        processes = {device: found for device, found in now.processes.items() if found[0] <= time_s}
        begun = []
        if runs:
            begun = [run for run in now.runs if run.began_s <= time_s]
        return Instant(time_s, begun, readings=readings, processes=processes)


class Store:
    """Everything read and everything that happened, bounded, and what was known at any moment of it.

    One thread applies records; any thread may read, holding `lock` while it does and copying what it keeps. The
    methods that read do not take the lock themselves, so that one drawing sees one state of affairs.

    Answers are of the moment ``at`` that a method is given, else of `position_s`. A moment behind the newest record is
    the end.

    Args:
        backend: reads what is not held here; left out: there is nothing else.
        buckets: of every series, see `Series`.

    Attributes:
        end: what is known at the end, whatever the position.
        position_s: the moment that answers are of, in session time; ``None`` is the end, which may move on.
        version: grows with every record, and whenever answers may be others.
        renamed: grows when a marker has another label than before: followers of markers begin anew.
        rewound: grows when an earlier moment is shown: followers of events begin anew.
        sharpened: grows when another moment is shown, or something of the past becomes known more exactly.
    """

    def __init__(self, backend: StoreBackend | None = None, buckets: int = 2048) -> None:
        self.lock = threading.Lock()
        self.end = Instant()
        self.position_s: float | None = None
        self.version = 0
        self.renamed = 0
        self.rewound = 0
        self.sharpened = 0
        if backend is None:
            self._backend: StoreBackend = MemoryBackend()
        else:
            self._backend = backend
        self._buckets = buckets
        self._shown = self.end
        self._series: dict[Key, Series] = {}
        self._guests: Mapping[Key, Series] = {}
        self._waiting = {key: (array("d"), array("d")) for key in self._backend.keys}
        self._details: list[tuple[Span, Store]] = []
        self._uuids: dict[str, str] = {}
        self._allocators: dict[str, str] = {}
        self._rank_shares = RankShares()

    @property
    def newest_s(self) -> float:
        """Time of the newest record, or the position."""
        return self._shown.newest_s

    @property
    def runs(self) -> list[RunView]:
        """See `Instant.runs`."""
        return self._shown.runs

    @property
    def run(self) -> RunView | None:
        """The run that is on, else the last one."""
        return self._shown.run

    @property
    def events(self) -> deque[Event]:
        """See `Instant.events`."""
        return self._shown.events

    @property
    def event_count(self) -> int:
        """See `Instant.event_count`."""
        return self._shown.event_count

    @property
    def markers(self) -> deque[Marker]:
        """See `Instant.markers`."""
        return self._shown.markers

    @property
    def links(self) -> Mapping[str, str]:
        """The GPUs' UUIDs, by what torch calls them."""
        return dict(self._uuids)

    def link(self, device: str, uuid: str) -> None:
        """Say that torch's ``device`` ("cuda:0") is the GPU ``uuid``; bands and peaks need it."""
        with self.lock:
            self._uuids[device] = uuid
            self._allocators[uuid] = device

    def torch_name(self, uuid: str) -> str | None:
        """What torch calls the GPU ``uuid``; ``None`` where no `link` said so."""
        return self._allocators.get(uuid)

    def seek(self, time_s: float | None) -> None:
        """Answer as of ``time_s`` from now on; ``None`` is the end. The caller does not hold the lock.

        Raises:
            Exception: the backend's own, when that moment cannot be read; the position stays.
        """
        found = None
        if time_s is not None:
            # Without the lock: reading a file takes long, and records go on coming in.
            found = self._backend.instant(self, time_s, runs=True)
        with self.lock:
            end = self.end
            if found is None:
                shown = end
            else:
                shown = found
            if shown is not end:
                # Events behind the moment are hidden, and those that the store let go stay gone.
                shown.events = deque((each for each in end.events if each.time_s <= shown.newest_s), end.events.maxlen)
                shown.event_count = end.event_count - (len(end.events) - len(shown.events))
                shown.markers = type(end.markers)(mark for mark in end.markers if mark.time_s <= shown.newest_s)
            self._show(time_s, shown)

    def replace(self, other: Store) -> None:
        """Know what ``other`` knows in place of everything before, and answer as of its end; ``other`` is used up."""
        with self.lock:
            self.end = other.end
            self._series = other._series
            self._waiting = other._waiting
            self._details = []
            self._shown = self.end
            self.position_s = None
            self.version += 1
            self.rewound += 1
            self.sharpened += 1

    def sharpen(self, span: Span, detail: Store) -> None:
        """Answer within ``span`` from ``detail``, which knows more there; the oldest such span is forgotten."""
        with self.lock:
            self._details = [(span, detail), *self._details][:MOST_DETAILS]
            for key, series in self._series.items():
                self._sharpen(key, series)
            self.version += 1
            self.sharpened += 1

    def _show(self, position_s: float | None, shown: Instant) -> None:
        # Followers of events and markers have to begin anew: some have not happened yet.
        if shown.newest_s < self._shown.newest_s:
            self.rewound += 1
        self.position_s = position_s
        self._shown = shown
        self.version += 1
        self.sharpened += 1

    def process_devices(self) -> list[str | None]:
        """Where lists of processes were read: ``None`` is the host, the others GPUs by UUID."""
        return sorted(self._shown.processes, key=lambda device: device or "")

    def apply(self, record: Record) -> None:
        """Take in a record. Called by one thread."""
        with self.lock:
            self._take(record)

    def apply_all(self, records: Sequence[Record]) -> None:
        """Take in records. Called by one thread, which lets the drawing thread in between."""
        for first in range(0, len(records), AT_A_TIME):
            with self.lock:
                for record in records[first : first + AT_A_TIME]:
                    self._take(record)

    def append(self, key: Key, time_s: float, value: float | None) -> None:
        """Add a sample to a series, ``None`` for a gap; the caller holds the lock where others read."""
        series = self._series.get(key)
        if series is None and key in self._waiting:
            # Not loaded yet: samples wait, so that a recording is not read for every series at its beginning.
            times, values = self._waiting[key]
            times.append(time_s)
            values.append(math.nan if value is None else value)
            # Waiting has a bound: the series is loaded now, and takes what has waited.
            if len(times) > MOST_WAITING:
                self._fetch(key)
            return
        if series is None:
            series = self._keep(key, Series(buckets=self._buckets))
        series.append(time_s, value)

    def mark(self, event: Event) -> None:
        """Have the marker of an event that is not applied, in its place among the others."""
        with self.lock:
            self._mark(event)
            self.end.markers = deque(sorted(self.end.markers, key=lambda mark: mark.time_s), self.end.markers.maxlen)

    def begin_with(self, instant: Instant) -> None:
        """Begin with the newest readings and lists of ``instant``, of which there are no series."""
        with self.lock:
            self.end.readings.update(instant.readings)
            self.end.processes.update(instant.processes)
            self.end.newest_s = max(self.end.newest_s, instant.newest_s)

    def series(self, table: str, metric: str, device: str | None = None, at: float | None = None) -> Series | None:
        """The history of a metric; empty when it begins later, ``None`` when nothing of it was ever asked for.

        Tables: those of the readings, with GPUs by UUID and allocators by torch's name; "run" with loss, accuracy and
        throughput; "transfer" with h2d, d2h, h2h, d2d in bytes a second. Made here: host ``others_bytes``; gpu
        ``allocated_bytes, idle_bytes, context_bytes, other_bytes`` (see `GpuBands`), all at the GPU's own ticks; rank
        ``compute_share, communication_share, waiting_share`` (see `RankShares`), of each rank and of "mean".
        """
        key = (table, metric, device)
        if key in self._guests:
            return self._guests[key]
        if key in self._waiting:
            self._fetch(key)
        series = self._series.get(key)
        if at is None:
            time_s = self.position_s
        else:
            time_s = at
        # The newest record or later: nothing to hide, and no view is needed.
        if series is None or time_s is None or time_s >= self.end.newest_s:
            return series
        return series.until(time_s, self._shown.newest(key) if time_s == self.position_s else None)

    def lay_over(self, guests: Mapping[Key, Series]) -> None:
        """Answer `series` for curves of other runs too, in place of those before: they are drawn, and are no part of
        what was read (`curves`). Called under the lock."""
        self._guests = guests
        self.version += 1
        self.sharpened += 1

    def curves(self) -> Sequence[tuple[Key, Series]]:
        """Every history there is, by table, metric and device."""
        keys = sorted({*self._series, *self._waiting}, key=lambda key: (key[0], key[2] or "", key[1]))
        return [(key, series) for key in keys if (series := self.series(*key)) is not None]

    def latest(self, table: str, metric: str, device: str | None = None, at: float | None = None) -> Reading:
        """The newest reading of a metric; `NEVER_READ` when it was never asked for.

        Of a moment that is not the position the backend is asked each time.
        """
        known = self._instant(at)
        found = known.readings.get((table, metric, device), NEVER_READ)
        if found is not NEVER_READ or known is self.end:
            return found
        # It may be read too seldom to be among the readings before that moment.
        # A slow metric, such as an energy counter, may have no reading in the seconds before that moment.
        series = self.series(table, metric, device, at)
        last = None
        if series is not None:
            last = series.last()
        if last is None or math.isnan(last[1]):
            return NEVER_READ
        return Reading(last[1], State.OK, last[0])

    def window(
        self, key: Key, t0: float, t1: float, columns: int, at: float | None = None
    ) -> tuple[Floats, Floats] | None:
        """What is drawn of a metric between two times, see `Series.window`; ``None`` when it was never asked for."""
        series = self.series(*key, at)
        if series is None:
            return None
        return series.window(t0, t1, columns)

    def processes(self, device: str | None = None, at: float | None = None) -> Sequence[Mapping[str, Value]]:
        """Rows of the newest list of processes of a GPU (by UUID) or of the host; empty when it is out of date."""
        known = self._instant(at)
        time_s, rows = known.processes.get(device, (0.0, []))
        if known.newest_s - time_s <= PROCESSES_S:
            return list(rows)
        return []

    def process_list(self, device: str | None) -> tuple[float, list[Mapping[str, Value]]]:
        """When the processes of a GPU or of the host were listed last, and what the list said, however old."""
        time_s, rows = self._shown.processes.get(device, (0.0, []))
        return time_s, list(rows)

    def _instant(self, at: float | None) -> Instant:
        # What is shown is kept; other moments are asked of the backend each time.
        if at is None or at == self.position_s:
            return self._shown
        if at >= self.end.newest_s:
            return self.end
        return self._backend.instant(self, at, runs=False)

    def _keep(self, key: Key, series: Series) -> Series:
        """Have a series of the store's own, with what is known of it more exactly."""
        series.request = self._backend.request
        series.thinned = self._backend.thinned
        self._series[key] = series
        if self._details:
            self._sharpen(key, series)
        return series

    def _sharpen(self, key: Key, series: Series) -> None:
        found = ((span, detail.series(*key)) for span, detail in self._details)
        series.sharpen([(span, raw) for span, raw in found if raw is not None])

    def _fetch(self, key: Key) -> None:
        """Load the older part of a series, and append what came since."""
        times, values = self._waiting.pop(key)
        loaded = self._backend.load(key)
        if loaded is None and times:
            loaded = Series(buckets=self._buckets)
        # In this order: the older part first, since a series only grows.
        if loaded is not None:
            self._keep(key, loaded).extend(np.array(times), np.array(values))

    def _take(self, record: Record) -> None:
        self.version += 1
        self.end.newest_s = max(self.end.newest_s, record.time_s)
        if isinstance(record, Sample):
            self._sample(record)
        else:
            self._event(record)

    def _sample(self, sample: Sample) -> None:
        if sample.table == "process":
            self._process(sample)
            return
        table, device, time_s = sample.table, sample.device, sample.time_s
        states, readings = sample.states, self.end.readings
        for metric, value in sample.values.items():
            key = (table, metric, device)
            # A missing value without a state was read too late (`State.STALE`).
            readings[key] = Reading(value, State.OK if value is not None else states.get(metric, State.STALE), time_s)
            if not isinstance(value, str) and (table, metric) in _PLOTTED:
                self.append(key, time_s, value)
        if table == "rank":
            self._keep_shares(self._rank_shares.take(sample))
        # Bands are made at the GPU's own ticks, from the allocator's newest reading.
        elif "used_bytes" in sample.values:
            allocator = self._allocators.get(device or "")
            for band, size in self.end.bands_of(table, device, allocator, time_s):
                self.append(band, time_s, size)
        run = self.end.run
        # Readings from before its beginning still show the run before.
        if run is not None and run.running and time_s >= run.began_s:
            self._peaks(run, table, device, time_s)

    def _keep_shares(self, shares: Iterable[Share]) -> None:
        for metric, device, time_s, share in shares:
            self.append(("rank", metric, device), time_s, share)

    def _process(self, sample: Sample) -> None:
        """A row of the list of this tick, or, without a PID, only the news that the list was read."""
        processes = self.end.processes
        time_s, rows = processes.get(sample.device, (-1.0, []))
        # Another time is another list: rows come one by one, and the list is complete with the next.
        if sample.time_s != time_s:
            rows = []
            processes[sample.device] = (sample.time_s, rows)
        if sample.values.get("pid") is not None:
            rows.append(sample.values)

    def _peaks(self, run: RunView, table: str, device: str | None, time_s: float) -> None:
        """Raise the running run's peaks by what a sample of ``device`` just brought."""
        memory = run.memory
        recent = self.end.recent
        if table == "allocator" and device == run.device:
            for metric in ("allocated_bytes", "reserved_bytes"):
                for name in (metric, f"peak_{metric}"):
                    memory.raise_to(metric, recent(("allocator", name, device), time_s))
        elif table == "host" and run.device == "cpu":
            memory.raise_to("used_bytes", recent(("host", "process_bytes", None), time_s))
        elif table == "gpu" and device == self._uuids.get(run.device):
            memory.raise_to("used_bytes", recent(("gpu", "used_bytes", device), time_s))
        # A run on the CPU has the host's memory; a GPU's is known by its UUID.
        where = ("host", None) if run.device == "cpu" else ("gpu", self._uuids.get(run.device))
        if (table, device) == where or memory.capacity_bytes is None:  # that of a simulated card may become another
            total = self.end.readings.get((where[0], "total_bytes", where[1]), NEVER_READ).value
            if total is not None:
                memory.capacity_bytes = int(total)

    def _event(self, event: Event) -> None:
        if isinstance(event, RunEnd):
            # The steps that other ranks still owe will not come: what there is of them is kept now.
            self._keep_shares(self._rank_shares.flush())
        if isinstance(event, RunStarted):
            self._begin(event)
        elif (run := run_of(self.end.runs, event.run_id)) is not None:
            run.apply(event)
            # A watched program's device is a guess at first; the note says which it is.
            if isinstance(event, Note) and event.topic == Topic.DEVICE:
                self._rename_beginning(run)
        if isinstance(event, StepFinished):
            run = run_of(self.end.runs, event.run_id)
            for name, value in event.metrics():
                # Of other metrics only those that the run itself has: a name alone is no curve.
                if name in STEP_METRICS or (run is not None and name in run.metrics):
                    self.append(("run", name, None), event.time_s, value)
        elif isinstance(event, Transfer):
            self._transfer(event)
        self._mark(event)
        if not isinstance(event, _IN_SERIES):
            self.end.events.append(event)
            self.end.event_count += 1

    def _begin(self, event: RunStarted) -> None:
        """Start a run's view, and break the lines of the run before."""
        self.end.runs.append(RunView.of(event))
        del self.end.runs[:-MAX_RUNS]
        # A gap: the line of the run before must not be joined to that of the next.
        for key in [key for key in self._series if key[0] == "rank" or (key[0] == "run" and key[2] is None)]:
            self.append(key, event.time_s, None)
        if event.workload == WATCH:
            return  # what was read until now is this process's, or that of the program before
        for table, device in (("gpu", self._uuids.get(event.device)), ("allocator", event.device), ("host", None)):
            self._peaks(self.end.runs[-1], table, device, event.time_s)

    def _transfer(self, event: Transfer) -> None:
        """A step as long as the copy took, and a gap behind it, so that idle time is not drawn as a slope."""
        if event.seconds <= 0:
            return
        key = ("transfer", event.direction, None)
        rate = event.bytes / event.seconds
        self.append(key, event.time_s - event.seconds, rate)
        self.append(key, event.time_s, rate)
        self.append(key, event.time_s, None)

    def _mark(self, event: Event) -> None:
        """Keep a marker, or make the one that the plots show for a warning or for a run's beginning or end."""
        if isinstance(event, Marker):
            self.end.markers.append(event)
        elif (mark := _mark(event)) is not None:
            label, category = mark
            self.end.markers.append(Marker(time_s=event.time_s, run_id=event.run_id, label=label, category=category))

    def _rename_beginning(self, run: RunView) -> None:
        """Let the marker of a run's beginning name the device that the run turned to: at first it is a guess."""
        label = _beginning(run.workload, run.device, run.spec)
        for place, marker in enumerate(self.end.markers):
            if marker.category == "run" and (marker.run_id, marker.time_s) == (run.run_id, run.began_s):
                if marker.label != label:
                    self.end.markers[place] = replace(marker, label=label)
                    self.renamed += 1
                return


BAD_ENDINGS = frozenset({"failed", "stopped by the guard", "out of memory"})
"""Labels of the markers of runs that did not end as they were meant to."""

PLAIN_ENDINGS = frozenset({"finished", "stopped"})
"""Labels of the markers of all other runs' ends, which name no run."""


def _beginning(workload: str, device: str, spec: Mapping[str, Any]) -> str:
    """The label of the marker where a run begins."""
    return f"{'program' if workload == WATCH else workload} on {badged_devices(device, spec)}"


def _mark(event: Event) -> tuple[str, str] | None:
    """Label and category of the marker for ``event``; ``None`` when it has none."""
    match event:
        case Warning(level=level):
            if level == "note":
                return None
            return (level, "warning")
        case RunStarted():
            return _beginning(event.workload, event.device, event.spec), "run"
        case RunEnd(error="guard", status="out_of_memory"):
            return "stopped by the guard", "run"
        case RunEnd(status="cancelled"):
            return "stopped", "run"
        case RunEnd():
            return event.status.replace("_", " "), "run"
        case StageFinished(name="move model"):
            return "model moved", "phase"
        case _:
            return None
