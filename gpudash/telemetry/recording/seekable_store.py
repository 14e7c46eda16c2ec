"""What a recording knew at any moment of it: the store of a replay."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from gpudash.telemetry.recording.moments import Moment
from gpudash.telemetry.recording.recorded_series import Ask, RecordedSeries, Span, ask_nobody
from gpudash.telemetry.records import Event, Record, State, Value
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import NEVER_READ, Key, Reading, Store

Load = Callable[[Key], RecordedSeries | None]

DETAIL_BUCKETS = 512
"""Buckets of a part's series, which seldom has any: it is as short as its newest samples."""

MOST_WAITING = 24_576
"""Samples that wait for the older part of their history, more than reading a recording's end brings."""

AT_A_TIME = 256
"""Records that are taken in before whoever draws has a turn."""

MOST_DETAILS = 3
"""Spans known sample by sample at a time: the window, a selection and what was seen before."""


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
        self.ask: Ask = ask_nobody
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
        series = RecordedSeries()
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
        if isinstance(series, RecordedSeries):
            series.ask = self._asked
            found = ((span, detail.series(*key)) for span, detail in self._details)
            series.sharpen([(span, raw) for span, raw in found if raw is not None])

    def _asked(self, t0: float, t1: float) -> None:
        self.ask(t0, t1)


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
        self._views: dict[Key, Series] = {}
        self._seen: dict[Key, Series] = {}
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
                self._views.clear()  # they share memory with what has just grown
                self._seen.clear()
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
            self._views.clear()
            self._seen.clear()
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
        if key not in self._views:
            whole = self.whole.series(*key)
            if whole is None or self.position_s is None or self._moment is None:
                return whole
            self._views[key] = view = whole.until(self.position_s, self._seen.get(key))
            newest = self._moment.newest(key)
            if newest is not None and isinstance(view, RecordedSeries):
                view.end_with(*newest)
        return self._views[key]

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
        self._seen.update(self._views)
        self._views.clear()
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
