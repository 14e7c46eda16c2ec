"""The newest readings at a moment of a recording, found by looking back from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.records import Event, Sample, State, Table
from gpudash.telemetry.store import NEVER_READ, PROCESSES_S, Key, Reading, Store

LATE_ROWS = 64
"""Rows behind the one a moment falls on that are looked at as well: a lane may be a few rows late."""

MOST_ROWS = 1024
"""Rows of a table that are looked back over at most."""

KNOWN_ROWS = 64
"""Rows in a row that bring no metric that was not known: then the slowest have been seen."""


class Moment(Store):
    """The newest readings only, without histories and events: what a store knew at one moment."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[Key, tuple[float, float]] = {}

    def take_older(self, sample: Sample) -> bool:
        """Take in a reading that is older than all before; whether it told anything new."""
        if sample.table == "process":
            return self._take_process(sample)
        told = False
        for metric, value in sample.values.items():
            key = (sample.table, metric, sample.device)
            if key not in self._latest:
                state = State.OK if value is not None else sample.states.get(metric, State.STALE)
                self._latest[key] = Reading(value, state, sample.time_s)
                told = True
        return told

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
