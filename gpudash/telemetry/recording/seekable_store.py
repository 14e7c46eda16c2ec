"""What a recording knew at any moment of it: the store of a replay, its series (known whole in buckets, and sample by
sample where that has been read again), and the newest readings at a moment, found by looking back from it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.records import Event, Record, Sample, State, Table, Value
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.series import Request, Series, Span
from gpudash.telemetry.store import NEVER_READ, PROCESSES_S, Key, Reading, Store

LATE_ROWS = 64
"""Rows behind the one a moment falls on that are looked at as well: a lane may be a few rows late."""

MOST_ROWS = 1024
"""Rows of a table that are looked back over at most."""

KNOWN_ROWS = 64
"""Rows in a row that bring no metric that was not known: then the slowest have been seen."""

DETAIL_BUCKETS = 512
"""Buckets of a part's series, which seldom has any: it is as short as its newest samples."""

MOST_WAITING = 24_576
"""Samples that wait for the older part of their history, more than reading a recording's end brings."""

AT_A_TIME = 256
"""Records that are taken in before whoever draws has a turn."""

MOST_DETAILS = 3
"""Spans known sample by sample at a time: the window, a selection and what was seen before."""


class Moment(Store):
    """The newest readings only, without histories and events: what a store knew at one moment."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[Key, tuple[float, float]] = {}

    def take_older(self, sample: Sample) -> bool:
        """Take in a reading that is older than all before; whether it told anything new."""
        if sample.table == "process":
            return self._take_process(sample)
        reported = False
        for metric, value in sample.values.items():
            key = (sample.table, metric, sample.device)
            if key not in self._latest:
                state = State.OK if value is not None else sample.states.get(metric, State.STALE)
                self._latest[key] = Reading(value, state, sample.time_s)
                reported = True
        return reported

    def _take_process(self, sample: Sample) -> bool:
        time_s, rows = self._processes.setdefault(sample.device, (sample.time_s, []))
        if time_s != sample.time_s:
            return False
        if sample.values.get("pid") is not None:
            rows.insert(0, sample.values)
        return True

    def newest(self, key: Key) -> tuple[float, float] | None:
        """Time and value, NaN for a gap, of a metric or a band that is a number; ``None`` when it is not known."""
        if key in self._ends:
            return self._ends[key]
        reading = self._latest.get(key, NEVER_READ)
        if reading.time_s is None or isinstance(reading.value, str):
            return None
        return reading.time_s, math.nan if reading.value is None else reading.value

    def add_bands(self) -> None:
        """Work out the bands of every memory from its newest readings."""
        for table, metric, device in list(self._latest):
            reading = self._latest[table, metric, device]
            if metric == "used_bytes" and table in ("host", "gpu") and reading.time_s is not None:
                self._bands(Sample(reading.time_s, cast("Table", table), device, {metric: reading.value}))

    def _append(self, key: Key, time_s: float, value: float | None) -> None:
        self._ends[key] = time_s, math.nan if value is None else value

    def _event(self, event: Event) -> None:
        """Events are kept elsewhere."""


def read_moment(recording: Recording, rows: Rows, time_s: float, links: Mapping[str, str]) -> Moment:
    """The newest readings at ``time_s``, when each table had been written up to ``rows``.

    What was not read in the 1024 rows of its table before is not known. ``links`` are GPUs by torch's names.
    """
    moment = Moment()
    for device, uuid in links.items():
        moment.link(device, uuid)
    moment.newest_s = time_s
    for table in schema.TABLES:
        known = 0
        for number, sample in enumerate(recording.samples_before(table, rows.get(table, 0) + LATE_ROWS)):
            if sample.time_s > time_s:
                continue
            known = 0 if moment.take_older(sample) else known + 1
            outdated = table == "process" and sample.time_s < time_s - PROCESSES_S
            if outdated or known >= KNOWN_ROWS or number >= MOST_ROWS:
                break
    moment.add_bands()
    return moment


Load = Callable[[Key], Series | None]


class Detail(Store):
    """A short part of a recording, sample by sample."""

    def _begun(self, key: Key) -> Series:
        return Series(buckets=DETAIL_BUCKETS)


class Everything(Store):
    """All of a recording, with histories that are loaded when they are first asked for.

    Args:
        unloaded: the histories that `load` knows; samples that follow wait until one is loaded.
        load: reads the older part of a history; ``None`` when it cannot be read.
    """

    def __init__(self, unloaded: Collection[Key] = (), load: Load | None = None) -> None:
        super().__init__()
        self.request: Request | None = None
        self._waiting: dict[Key, list[tuple[float, float | None]]] = {key: [] for key in unloaded}
        self._load = load
        self._details: list[tuple[Span, Store]] = []

    def series(self, table: str, metric: str, device: str | None = None) -> Series | None:
        """The whole history of a metric; ``None`` when nothing of it was ever asked for."""
        self._fetch((table, metric, device))
        return super().series(table, metric, device)

    def curves(self) -> Sequence[tuple[Key, Series]]:
        """Every history there is, by table, metric and device."""
        for key in list(self._waiting):
            self._fetch(key)
        return super().curves()

    def sharpen(self, span: Span, detail: Store) -> None:
        """Answer within ``span`` from ``detail``, which knows every sample there; the oldest such span is forgotten."""
        with self.lock:
            self._details = [(span, detail), *self._details][:MOST_DETAILS]
            for key, series in self._series.items():
                self._sharpen(key, series)

    def mark(self, event: Event) -> None:
        """Have the marker of an event that is not applied, in its place among the others."""
        with self.lock:
            self._mark(event)
            self.markers = deque(sorted(self.markers, key=lambda marker: marker.time_s), self.markers.maxlen)

    @property
    def links(self) -> Mapping[str, str]:
        """The GPUs, by what torch calls them."""
        return dict(self._uuids)

    def take(self, records: Sequence[Record]) -> None:
        """Take in records that follow all before; the caller holds the lock."""
        for record in records:
            self._take(record)

    def _append(self, key: Key, time_s: float, value: float | None) -> None:
        waiting = self._waiting.get(key)
        if waiting is None:
            super()._append(key, time_s, value)
            return
        waiting.append((time_s, value))
        if len(waiting) > MOST_WAITING:
            self._fetch(key)

    def _begun(self, key: Key) -> Series:
        series = Series()
        self._sharpen(key, series)
        return series

    def _fetch(self, key: Key) -> None:
        """Load a history that waits for it, and append what came since."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        loaded = None if self._load is None else self._load(key)
        if loaded is not None:
            self._series[key] = loaded
            self._sharpen(key, loaded)
        for time_s, value in waiting:
            super()._append(key, time_s, value)

    def _sharpen(self, key: Key, series: Series) -> None:
        series.request = self._requested
        found = ((span, detail.series(*key)) for span, detail in self._details)
        series.sharpen([(span, raw) for span, raw in found if raw is not None])

    def _requested(self, t0: float, t1: float) -> None:
        if self.request is not None:
            self.request(t0, t1)


class PositionedStore(Store):
    """A recording's store whose answers are those of a position in it, or of its end.

    Attributes:
        whole: all of the recording; takes what is still being written.
        position_s: the moment that answers are of, in session time; ``None`` is the end, which may move on.
    """

    def __init__(self, whole: Everything) -> None:
        super().__init__()
        self.whole = whole
        self.lock = whole.lock
        self.position_s: float | None = None
        self._moment: Moment | None = None
        with self.lock:
            self._show_end()

    def apply(self, record: Record) -> None:
        """Take in a record that was written since. Called by one thread."""
        self.apply_all((record,))

    def apply_all(self, records: Sequence[Record]) -> None:
        """Take in records that were written since. Called by one thread."""
        for first in range(0, len(records), AT_A_TIME):
            with self.lock:
                self.whole.take(records[first : first + AT_A_TIME])
                if self.position_s is None:
                    self._show_end()

    def show(self, position_s: float, moment: Moment, runs: list[RunView]) -> None:
        """Answer as of ``position_s`` from now on.

        Args:
            position_s: session time in seconds.
            moment: the newest readings of then.
            runs: those that had begun, as they were then.
        """
        with self.lock:
            self._leave(position_s)
            self.position_s, self._moment, self.runs = position_s, moment, runs
            whole = self.whole
            self.events = deque((event for event in whole.events if event.time_s <= position_s), whole.events.maxlen)
            self.event_count = whole.event_count - (len(whole.events) - len(self.events))
            self.markers = type(whole.markers)(mark for mark in whole.markers if mark.time_s <= position_s)
            self.newest_s = position_s

    def show_end(self) -> None:
        """Answer as of the end from now on."""
        with self.lock:
            self._leave(self.whole.newest_s)
            self._show_end()

    def sharpen(self, span: Span, detail: Store) -> None:
        """Answer within ``span`` from ``detail``, which knows every sample there."""
        self.whole.sharpen(span, detail)
        with self.lock:
            self.version += 1
            self.sharpened += 1

    def link(self, device: str, uuid: str) -> None:
        """Say that torch's ``device`` ("cuda:0") is the GPU ``uuid``; bands and peaks need it."""
        self.whole.link(device, uuid)

    def torch_name(self, uuid: str) -> str | None:
        """What torch calls the GPU ``uuid``; ``None`` where no `link` said so."""
        return self.whole.torch_name(uuid)

    def process_devices(self) -> list[str | None]:
        """Where lists of processes were read: ``None`` is the host, the others GPUs by UUID."""
        return (self._moment or self.whole).process_devices()

    def series(self, table: str, metric: str, device: str | None = None) -> Series | None:
        """The history of a metric up to the position; empty when it begins later, ``None`` when there never was one."""
        key = (table, metric, device)
        whole = self.whole.series(*key)
        if whole is None or self.position_s is None or self._moment is None:
            return whole
        return whole.until(self.position_s, self._moment.newest(key))

    def curves(self) -> Sequence[tuple[Key, Series]]:
        """Every history up to the position, by table, metric and device."""
        return [(key, series) for key, _ in self.whole.curves() if (series := self.series(*key)) is not None]

    def latest(self, table: str, metric: str, device: str | None = None) -> Reading:
        """The newest reading of a metric at the position; `NEVER_READ` when it had not been asked for."""
        found = (self._moment or self.whole).latest(table, metric, device)
        if found is not NEVER_READ or self._moment is None:
            return found
        series = self.series(table, metric, device)
        return found if series is None else _reading(series)

    def processes(self, device: str | None = None) -> Sequence[Mapping[str, Value]]:
        """Rows of the list of processes of then; empty when it was out of date."""
        return (self._moment or self.whole).processes(device)

    def _leave(self, position_s: float) -> None:
        """Another moment is shown: forget what only held before."""
        if position_s < self.newest_s:
            self.rewound += 1
        self.version += 1
        self.sharpened += 1

    def _show_end(self) -> None:
        whole = self.whole
        self.position_s, self._moment = None, None
        self.runs, self.events, self.markers = whole.runs, whole.events, whole.markers
        self.event_count, self.newest_s = whole.event_count, whole.newest_s
        self.version += 1


def _reading(series: Series) -> Reading:
    """The newest number of a metric that is read too seldom to be among the readings before a position."""
    last = series.last()
    return NEVER_READ if last is None or math.isnan(last[1]) else Reading(last[1], State.OK, last[0])
