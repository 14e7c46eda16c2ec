"""Summaries that a recording carries, written as it grows, so that a long one is drawn without reading every row.

Every `PAGE_ROWS` rows end a page: where each table stood, the page's samples of every series in buckets, and the
figures of the run that is on. Whoever does not know these tables reads the rows alone.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.records import Record, RunEnded, Sample, Transfer
from gpudash.telemetry.runs import RunView, run_of
from gpudash.telemetry.series import Floats, summary
from gpudash.telemetry.store import Key, Store

PAGE_ROWS = 4096
"""Rows of a page. A series keeps at least its newest 7168 samples as they came, so that none is missed."""

TRANSFER_SAMPLES = 3
"""Samples of its series that a transfer makes; it counts as so many rows."""

WIDEST = 64
"""Samples of a bucket, at most."""

FEWEST = 8
"""Buckets that a page's samples of a series are cut into at least; fewer samples are kept one by one."""

Samples = tuple[Floats, Floats]


class PageWriter:
    """Writes the summaries of one recording, within the transactions of its rows. Belongs to the recorder's thread.

    Args:
        store: what takes in the same records, each before its row is written.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = dict.fromkeys((*schema.TABLES, "event"), 0)
        self._weight = 0
        self._page = 0
        self._ids: dict[Key, int] = {}
        self._taken: dict[Key, int] = {}

    def added(self, connection: sqlite3.Connection, record: Record) -> None:
        """A row was written: write what is due."""
        if isinstance(record, Sample):
            self._rows[record.table] += 1
            self._weight += 1
        else:
            self._rows["event"] += 1
            self._weight += TRANSFER_SAMPLES if isinstance(record, Transfer) else 1
            if isinstance(record, RunEnded):
                self._digest(connection, run_of(self._store.runs, record.run_id))
        if self._weight >= PAGE_ROWS:
            self._weight = 0
            self._digest(connection, self._store.run)
            self.write(connection, record.time_s, self._rows, self._new_samples())

    def write(self, connection: sqlite3.Connection, time_s: float, rows: Rows, samples: Mapping[Key, Samples]) -> None:
        """End a page at ``rows`` with what its rows brought of every series."""
        self._page += 1
        counts = [rows[table] for table in (*schema.TABLES, "event")]
        page = (self._page, time_s, *counts, len(samples))
        connection.execute(f"INSERT INTO page VALUES ({', '.join('?' * (len(page) + 1))})", (*page, crc32(page)))
        coarse = []
        for key, (times, values) in samples.items():
            data = np.ascontiguousarray(summary(times, values, width_of(len(times))).T).tobytes()
            number = self._number(connection, key)
            coarse.append((number, self._page, len(times), crc32((number, self._page, len(times), data)), data))
        connection.executemany("INSERT INTO coarse VALUES (?, ?, ?, ?, ?)", coarse)

    def _new_samples(self) -> dict[Key, Samples]:
        """What every series has got since the page before."""
        found = {}
        for key, series in self._store.curves():
            count = len(series) - self._taken.get(key, 0)
            if count:
                found[key] = series.newest(count)
                self._taken[key] = len(series)
        return found

    def _number(self, connection: sqlite3.Connection, key: Key) -> int:
        if key not in self._ids:
            self._ids[key] = len(self._ids) + 1
            schema.write(connection, "INSERT INTO series VALUES (?, ?, ?, ?)", (self._ids[key], *key))
        return self._ids[key]

    def _digest(self, connection: sqlite3.Connection, run: RunView | None) -> None:
        if run is not None:
            self.write_digest(connection, self._rows["event"], run.run_id, run.digest())

    def write_digest(self, connection: sqlite3.Connection, event: int, run_id: int | None, text: str) -> None:
        """Keep the figures of a run as far as row ``event`` of the events."""
        row = (event, run_id, text)
        connection.execute("INSERT INTO digest VALUES (?, ?, ?, ?)", (event, run_id, crc32(row), text))


def width_of(samples: int) -> int:
    """Samples of a bucket, a power of two: so many that a page with few of them is not drawn in steps."""
    return min(WIDEST, max(1, 1 << (samples // FEWEST).bit_length() >> 1))


def crc32(facts: Iterable[object]) -> int:
    """Checksum of what a row says: texts and bytes as they are, numbers as Python writes them."""
    crc = 0
    for fact in facts:
        crc = zlib.crc32(fact if isinstance(fact, bytes) else repr(fact).encode(), crc)
    return crc
