"""Everything the application knows, now and at any earlier moment, ready to draw: series, readings, runs, events.

A store holds the records it was given. What it does not hold, its `StoreBackend` reads: a recording, a Prometheus
server.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
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
from gpudash.telemetry.series import Floats, Point, Request, Series, Span, Statistics

MAX_RUNS = 200

MOST_WAITING = 24_576
"""Most samples waiting for the older part of their series; reading a recording's end brings fewer."""

AT_A_TIME = 256
"""Records processed before the drawing thread gets a turn."""

MOST_DETAILS = 3
"""Most spans with more detail: the window, a selection, and a previous one."""

_PLOTTED = {
    (table, metric.name)
    for table in ("host", "gpu", "allocator", "rank")
    for metric in METRICS[table]
    if metric.type != "TEXT"
}
_IN_SERIES = (StepFinished, StageFinished, Transfer, Output)
"""Events kept as series, sums and lines; among the others they would displace the ones a person looks for."""


class StoreBackend(Protocol):
    """Reads what a store does not hold: a history that is too long for it, or that is elsewhere."""

    @property
    def keys(self) -> Collection[Key]:
        """The series whose older part `load` reads on demand."""

    @property
    def thinned(self) -> bool:
        """Whether even the newest samples of series represent several."""

    @property
    def request(self) -> Request | None:
        """Requests more detail for a range of all series; returns immediately. `Store.sharpen` receives the result.

        ``None`` if there is no more detail.
        """

    def load(self, key: Key) -> Series | None:
        """The older part of a series; ``None`` if it cannot be read."""

    def instant(self, store: Store, time_s: float, *, runs: bool) -> Instant:
        """The newest readings and process lists at ``time_s``.

        Args:
            store: the calling store.
            time_s: session time in seconds.
            runs: whether to include the runs as they were then; the store's lock is not held in that case.

        Raises:
            Exception: the backend's own, if the moment cannot be read.
        """


class MemoryBackend:
    """The backend of a store that holds everything: a live session's, or a machine's over ssh."""

    keys: Collection[Key] = ()
    thinned = False
    request: Request | None = None

    def load(self, key: Key) -> Series | None:
        """``None``: the store has all of a series."""
        return None

    def instant(self, store: Store, time_s: float, *, runs: bool) -> Instant:
        """Readings that were not repeated since; series contain the rest. Runs are in their present state."""
        now = store.end
        readings = {key: reading for key, reading in now.readings.items() if (reading.time_s or 0.0) <= time_s}
        processes = {device: found for device, found in now.processes.items() if found[0] <= time_s}
        begun = []
        if runs:
            begun = [run for run in now.runs if run.began_s <= time_s]
        return Instant(time_s, begun, readings=readings, processes=processes)


class Store:
    """All readings and events, within bounds, and the state at any moment of the session.

    One thread applies records. Any thread may read, holding `lock` meanwhile, and copying what it keeps. Methods that
    read do not take the lock themselves, so that a drawing uses one consistent state.

    Results are for the moment ``at`` if given, else for `position_s`. A moment after the newest record means the end.

    Args:
        backend: reads what the store does not hold; by default nothing.
        buckets: number of buckets of every series; see `Series`.

    Attributes:
        end: the state at the end, whatever the position.
        position_s: the moment that results are for, in session time; ``None`` for the end, which may move.
        version: counter that grows with every record, and whenever results may have changed.
        renamed: counter that grows when a marker's label changes: readers of markers must start over.
        rewound: counter that grows when the position moves back: readers of events must start over.
        sharpened: counter that grows when the position changes, or more detail of the past arrives.
    """

    def __init__(self, backend: StoreBackend | None = None, buckets: int = 2048) -> None:
        self.lock = threading.Lock()
        self.end = Instant()
        self.position_s: float | None = None
        self.version = 0
        self.renamed = 0
        self.rewound = 0
        self.sharpened = 0
        self._backend: StoreBackend = backend or MemoryBackend()
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
        """As in `Instant.runs`."""
        return self._shown.runs

    @property
    def run(self) -> RunView | None:
        """The current run, else the last one."""
        return self._shown.run

    @property
    def events(self) -> deque[Event]:
        """As in `Instant.events`."""
        return self._shown.events

    @property
    def event_count(self) -> int:
        """As in `Instant.event_count`."""
        return self._shown.event_count

    @property
    def markers(self) -> deque[Marker]:
        """As in `Instant.markers`."""
        return self._shown.markers

    @property
    def links(self) -> Mapping[str, str]:
        """The GPUs' UUIDs by torch's names."""
        return dict(self._uuids)

    def link(self, device: str, uuid: str) -> None:
        """Record that torch's ``device`` ("cuda:0") is the GPU ``uuid``; bands and peaks need this."""
        with self.lock:
            self._uuids[device] = uuid
            self._allocators[uuid] = device

    def torch_name(self, uuid: str) -> str | None:
        """torch's name for the GPU ``uuid``; ``None`` if no `link` gave it."""
        return self._allocators.get(uuid)

    def seek(self, time_s: float | None) -> None:
        """Move to ``time_s``; ``None`` is the end. The caller must not hold the lock.

        Raises:
            Exception: the backend's own, if that moment cannot be read; the position is then unchanged.
        """
        found = None
        if time_s is not None:
            # Without the lock: reading a file takes long, and records keep arriving.
            found = self._backend.instant(self, time_s, runs=True)
        with self.lock:
            end = self.end
            shown = found or end
            if shown is not end:
                # Hide events after the moment; those that the store has dropped stay dropped.
                shown.events = deque((each for each in end.events if each.time_s <= shown.newest_s), end.events.maxlen)
                shown.event_count = end.event_count - (len(end.events) - len(shown.events))
                shown.markers = type(end.markers)(mark for mark in end.markers if mark.time_s <= shown.newest_s)
            self._show(time_s, shown)

    def at(self, time_s: float) -> Store:
        """A store to read from that answers for another moment and shares everything else. The caller must not hold the
        lock.

        Raises:
            Exception: as `seek`.
        """
        with self.lock:
            other = copy(self)
        other.seek(time_s)
        return other

    def replace(self, other: Store) -> None:
        """Replace the content by that of ``other``, and move to its end; ``other`` must not be used afterwards."""
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
        """Use the more detailed store ``detail`` within ``span``; the oldest such span is dropped."""
        with self.lock:
            self._details = [(span, detail), *self._details][:MOST_DETAILS]
            for key, series in self._series.items():
                self._sharpen(key, series)
            self.version += 1
            self.sharpened += 1

    def _show(self, position_s: float | None, shown: Instant) -> None:
        # Readers of events and markers must start over: some have not happened yet at this moment.
        if shown.newest_s < self._shown.newest_s:
            self.rewound += 1
        self.position_s = position_s
        self._shown = shown
        self.version += 1
        self.sharpened += 1

    def process_devices(self) -> list[str | None]:
        """Devices with process lists: ``None`` for the host, GPUs by UUID."""
        return sorted(self._shown.processes, key=lambda device: device or "")

    def apply(self, record: Record) -> None:
        """Add a record. Called by one thread."""
        with self.lock:
            self._take(record)

    def apply_all(self, records: Sequence[Record]) -> None:
        """Add records. Called by one thread, which lets the drawing thread run in between."""
        for first in range(0, len(records), AT_A_TIME):
            with self.lock:
                for record in records[first : first + AT_A_TIME]:
                    self._take(record)

    def append(self, key: Key, time_s: float, value: float | None) -> None:
        """Add a sample to a series, ``None`` for a gap; the caller holds the lock if others read."""
        series = self._series.get(key)
        if series is None and key in self._waiting:
            # Not loaded yet: samples wait, so that a recording is not read for every series at the start.
            times, values = self._waiting[key]
            times.append(time_s)
            values.append(math.nan if value is None else value)
            # The queue is limited: load the series now, and append the waiting samples.
            if len(times) > MOST_WAITING:
                self._fetch(key)
            return
        if series is None:
            series = self._keep(key, Series(buckets=self._buckets))
        series.append(time_s, value)

    def mark(self, event: Event) -> None:
        """Add the marker of an event that is not applied, in order of time."""
        with self.lock:
            self._mark(event)
            self.end.markers = deque(sorted(self.end.markers, key=lambda mark: mark.time_s), self.end.markers.maxlen)

    def begin_with(self, instant: Instant) -> None:
        """Start with the newest readings and lists of ``instant``, which have no series."""
        with self.lock:
            self.end.readings.update(instant.readings)
            self.end.processes.update(instant.processes)
            self.end.newest_s = max(self.end.newest_s, instant.newest_s)

    def series(self, table: str, metric: str, device: str | None = None, at: float | None = None) -> Series | None:
        """The history of a metric; empty if it begins later, ``None`` if the metric was never read.

        Tables: the reading tables, with GPUs by UUID and allocators by torch's name; "run" with loss, accuracy and
        throughput; "transfer" with h2d, d2h, h2h, d2d in bytes per second. Computed here: those of `DERIVED`, with each
        reading of a memory; rank ``compute_share, communication_share, waiting_share`` (see `RankShares`), for each
        rank and "mean".
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
        # The newest record or later: there is nothing to hide, so no view is needed.
        if series is None or time_s is None or time_s >= self.end.newest_s:
            return series
        return series.until(time_s, self._shown.newest(key) if time_s == self.position_s else None)

    def lay_over(self, guests: Mapping[Key, Series]) -> None:
        """Add series of other runs to the results of `series`, replacing the previous ones. They are drawn, but do not
        belong to the session (`curves`). Call it under the lock."""
        self._guests = guests
        self.version += 1
        self.sharpened += 1

    def curves(self) -> Sequence[tuple[Key, Series]]:
        """All series, by table, metric and device."""
        keys = sorted({*self._series, *self._waiting}, key=lambda key: (key[0], key[2] or "", key[1]))
        return [(key, series) for key in keys if (series := self.series(*key)) is not None]

    def latest(self, table: str, metric: str, device: str | None = None, at: float | None = None) -> Reading:
        """The newest reading of a metric; `NEVER_READ` if it was never read.

        For a moment other than the position, this asks the backend each time.
        """
        known = self._instant(at)
        found = known.readings.get((table, metric, device), NEVER_READ)
        if found is not NEVER_READ or known is self.end:
            return found
        # A slow metric, such as an energy counter, may have no reading in the seconds before that moment.
        last = self.last(table, metric, device, at)
        if last is None or math.isnan(last[1]):
            return NEVER_READ
        return Reading(last[1], State.OK, last[0])

    def last(self, table: str, metric: str, device: str | None = None, at: float | None = None) -> Point | None:
        """The newest sample of a metric, see `Series.last`; ``None`` if it was never read."""
        series = self.series(table, metric, device, at)
        if series is None:
            return None
        return series.last()

    def statistics(
        self, key: Key, t0: float = -math.inf, t1: float = math.inf, at: float | None = None, *, exactly: bool = True
    ) -> Statistics | None:
        """Figures of a metric between two times, see `Series.statistics`; ``None`` if it has no number there."""
        series = self.series(*key, at)
        if series is None:
            return None
        return series.statistics(t0, t1, exactly=exactly)

    def window(
        self, key: Key, t0: float, t1: float, columns: int, at: float | None = None
    ) -> tuple[Floats, Floats] | None:
        """The points to draw of a metric between two times, see `Series.window`; ``None`` if it was never read."""
        series = self.series(*key, at)
        if series is None:
            return None
        return series.window(t0, t1, columns)

    def processes(self, device: str | None = None, at: float | None = None) -> Sequence[Mapping[str, Value]]:
        """Rows of the newest process list of a GPU (by UUID) or the host; empty if it is out of date."""
        known = self._instant(at)
        time_s, rows = known.processes.get(device, (0.0, []))
        if known.newest_s - time_s <= PROCESSES_S:
            return list(rows)
        return []

    def process_list(self, device: str | None) -> tuple[float, list[Mapping[str, Value]]]:
        """Time and rows of the newest process list of a GPU or the host, however old."""
        time_s, rows = self._shown.processes.get(device, (0.0, []))
        return time_s, list(rows)

    def _instant(self, at: float | None) -> Instant:
        # The position's is in memory; for other moments, ask the backend.
        if at is None or at == self.position_s:
            return self._shown
        if at >= self.end.newest_s:
            return self.end
        return self._backend.instant(self, at, runs=False)

    def _keep(self, key: Key, series: Series) -> Series:
        """Store a series, with the available details."""
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
        """Load the older part of a series, then append the waiting samples."""
        times, values = self._waiting.pop(key)
        loaded = self._backend.load(key)
        if loaded is None and times:
            loaded = Series(buckets=self._buckets)
        # In this order, since a series can only be appended to.
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
        # Bands are computed at the GPU's own ticks, from the allocator's newest reading.
        elif "used_bytes" in sample.values:
            allocator = self._allocators.get(device or "")
            for band, size in self.end.bands_of(table, device, allocator, time_s):
                self.append(band, time_s, size)
        run = self.end.run
        # Readings from before its start still show the previous run.
        if run is not None and run.running and time_s >= run.began_s:
            self._peaks(run, table, device, time_s)

    def _keep_shares(self, shares: Iterable[Share]) -> None:
        for metric, device, time_s, share in shares:
            self.append(("rank", metric, device), time_s, share)

    def _process(self, sample: Sample) -> None:
        """Add a row to this tick's process list; a row without a PID only says that the list was read."""
        processes = self.end.processes
        time_s, rows = processes.get(sample.device, (-1.0, []))
        # A new time starts a new list: rows arrive one by one, and the next list completes this one.
        if sample.time_s != time_s:
            rows = []
            processes[sample.device] = (sample.time_s, rows)
        if sample.values.get("pid") is not None:
            rows.append(sample.values)

    def _peaks(self, run: RunView, table: str, device: str | None, time_s: float) -> None:
        """Raise the current run's peaks to a new sample of ``device``."""
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
        # A run on the CPU uses the host's memory; a GPU's is known by its UUID.
        where = ("host", None) if run.device == "cpu" else ("gpu", self._uuids.get(run.device))
        if (table, device) == where or memory.capacity_bytes is None:  # a simulated card's capacity may change
            total = self.end.readings.get((where[0], "total_bytes", where[1]), NEVER_READ).value
            if total is not None:
                memory.capacity_bytes = int(total)

    def _event(self, event: Event) -> None:
        if isinstance(event, RunEnd):
            # The other ranks' missing steps will not arrive: store what there is.
            self._keep_shares(self._rank_shares.flush())
        if isinstance(event, RunStarted):
            self._begin(event)
        elif (run := run_of(self.end.runs, event.run_id)) is not None:
            run.apply(event)
            # A watched program's device is a guess at first; the note corrects it.
            if isinstance(event, Note) and event.topic == Topic.DEVICE:
                self._rename_beginning(run)
        if isinstance(event, StepFinished):
            run = run_of(self.end.runs, event.run_id)
            for name, value in event.metrics():
                # Only add other metrics that the run itself has: a name alone is not a curve.
                if name in STEP_METRICS or (run is not None and name in run.metrics):
                    self.append(("run", name, None), event.time_s, value)
        elif isinstance(event, Transfer):
            self._transfer(event)
        self._mark(event)
        if not isinstance(event, _IN_SERIES):
            self.end.events.append(event)
            self.end.event_count += 1

    def _begin(self, event: RunStarted) -> None:
        """Create the view of a run, and end the lines of the previous one."""
        self.end.runs.append(RunView.of(event))
        del self.end.runs[:-MAX_RUNS]
        # A gap keeps the previous run's line from being joined to the next one's.
        for key in [key for key in self._series if key[0] == "rank" or (key[0] == "run" and key[2] is None)]:
            self.append(key, event.time_s, None)
        if event.workload == WATCH:
            return  # readings so far are of this process, or of the previous program
        for table, device in (("gpu", self._uuids.get(event.device)), ("allocator", event.device), ("host", None)):
            self._peaks(self.end.runs[-1], table, device, event.time_s)

    def _transfer(self, event: Transfer) -> None:
        """Add a step as long as the copy, followed by a gap, so that idle time is not drawn as a slope."""
        if event.seconds <= 0:
            return
        key = ("transfer", event.direction, None)
        rate = event.bytes / event.seconds
        self.append(key, event.time_s - event.seconds, rate)
        self.append(key, event.time_s, rate)
        self.append(key, event.time_s, None)

    def _mark(self, event: Event) -> None:
        """Add a marker, or create one for a warning or for a run's start or end."""
        if isinstance(event, Marker):
            self.end.markers.append(event)
        elif (mark := _mark(event)) is not None:
            label, category = mark
            self.end.markers.append(Marker(time_s=event.time_s, run_id=event.run_id, label=label, category=category))

    def _rename_beginning(self, run: RunView) -> None:
        """Correct the device in the marker of a run's start: at first it is a guess."""
        label = _beginning(run.workload, run.device, run.spec)
        for place, marker in enumerate(self.end.markers):
            if marker.category == "run" and (marker.run_id, marker.time_s) == (run.run_id, run.began_s):
                if marker.label != label:
                    self.end.markers[place] = replace(marker, label=label)
                    self.renamed += 1
                return


BAD_ENDINGS = frozenset({"failed", "stopped by the guard", "out of memory"})
"""Marker labels of runs that failed or were aborted."""

PLAIN_ENDINGS = frozenset({"finished", "stopped"})
"""Marker labels of all other runs' ends, which do not name the run."""


def _beginning(workload: str, device: str, spec: Mapping[str, Any]) -> str:
    """The label of the marker at a run's start."""
    return f"{'program' if workload == WATCH else workload} on {badged_devices(device, spec)}"


def _mark(event: Event) -> tuple[str, str] | None:
    """Label and category of the marker for ``event``; ``None`` if it has none."""
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
