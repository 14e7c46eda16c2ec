"""What the tests of the sources share: a place for records, and monitors that are always ended."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

from gpudash.sources.monitor import Monitor
from gpudash.telemetry.records import Event, Record, Sample

PATIENCE_S = 20.0


class Collector:
    """Takes records from any thread, never making it wait, and lets a test wait for what it needs."""

    def __init__(self) -> None:
        self._arriving: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self._records: list[Record] = []

    def __call__(self, record: Record) -> None:
        self._arriving.put(record)

    @property
    def records(self) -> list[Record]:
        while not self._arriving.empty():
            self._records.append(self._arriving.get())
        return list(self._records)

    def wait(self, holds: Callable[[list[Record]], bool]) -> list[Record]:
        """The records once ``holds`` is true of them."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(self.records):
            self._next(deadline)
        return self.records

    def wait_for(self, matches: Callable[[Record], bool], count: int = 1) -> list[Record]:
        """The first ``count`` records that match."""
        deadline = time.monotonic() + PATIENCE_S
        found = [record for record in self.records if matches(record)]
        while len(found) < count:
            record = self._next(deadline)
            if matches(record):
                found.append(record)
        return found[:count]

    def _next(self, deadline: float) -> Record:
        try:
            record = self._arriving.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"never came; the last were {self._records[-3:]}") from None
        self._records.append(record)
        return record

    def wait_past(self, time_s: float, device: str | None = None) -> list[Record]:
        """All records once a reading of ``device`` (``None``: the host) is later than ``time_s``."""
        table = "host" if device is None else "gpu"
        self.wait_for(lambda r: isinstance(r, Sample) and (r.table, r.device) == (table, device) and r.time_s > time_s)
        return self.records


def rows(records: list[Record], device: str | None, metric: str | None = None) -> list[Sample]:
    """The rows of the host (``None``) or of a GPU, those that hold ``metric``, in the order they came."""
    table = "host" if device is None else "gpu"
    found = [r for r in records if isinstance(r, Sample) and (r.table, r.device) == (table, device)]
    return [row for row in found if metric is None or metric in row.values]


def events(records: list[Record], kind: type[Event], source: str | None = None) -> list[Event]:
    found = [record for record in records if isinstance(record, kind)]
    return [event for event in found if source is None or event.source == source]


def longest_gap_s(samples: list[Sample]) -> float:
    """The longest time between two of these rows, by their own times."""
    return max(later.time_s - earlier.time_s for earlier, later in pairwise(samples))


@contextlib.contextmanager
def running(monitor: Monitor, release: Callable[[], None] = lambda: None) -> Iterator[Monitor]:
    """A started monitor that has ended afterwards; ``release`` lets hanging calls return."""
    monitor.start()
    try:
        yield monitor
    finally:
        release()
        assert monitor.stop(PATIENCE_S)


def session_clock() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began
