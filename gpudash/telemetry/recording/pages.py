"""Reads the summaries in a recording; see `PageWriter`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpudash.telemetry.readings import Key
from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.recorder import Samples, crc32, width_of
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.series import BucketRow, Floats, merged_pairs, summary

MOST_BUCKETS = 16_384
"""Most buckets of a series in memory; beyond that, neighbours merge. Some 3 MB."""

LEAST_FACTS = 5
"""Columns of a page besides those of the reading tables; older recordings have fewer tables."""

_SUMMARIES = "SELECT page AS row_number, samples, crc, data FROM coarse WHERE series = {} AND page > ? ORDER BY page"

MOST_SERIES = 65_536
"""Most series whose summaries are read; 512 GPUs have 25,000."""


@dataclass(frozen=True, slots=True)
class SummaryPage:
    """The end of a page: time of its last record, last row of each table, and its number of series."""

    time_s: float
    rows: Rows
    summaries: int


@dataclass(frozen=True, slots=True)
class Digest:
    """Figures of a run up to row ``event`` of the events; `text` is written by `digests.digest`."""

    event: int
    run_id: int | None
    text: str


class Pages:
    """The intact summaries of a recording.

    Attributes:
        pages: pages in order, up to the first that is damaged.
        keys: series with summaries.
        digests: figures of runs, in order of the events.
        damaged: indices (from 0) of pages with damaged summaries.
    """

    def __init__(self, recording: Recording) -> None:
        self.pages = _pages(recording)
        self._ids = _series(recording)
        self.keys = frozenset(self._ids)
        self.digests = digests(recording)
        self.damaged: set[int] = set()
        self._fixed: dict[int, Mapping[Key, Samples]] = {}
        if self.pages:
            self._check(recording)

    def fix(self, page: int, samples: Mapping[Key, Samples]) -> None:
        """Replace the summaries of a damaged page by samples from its rows."""
        # Once its rows have been read again, a damaged page is as good as an intact one.
        self._fixed[page] = samples
        self.keys |= frozenset(samples)
        self.damaged.discard(page)

    def buckets(self, recording: Recording, key: Key, until: int) -> tuple[Floats, int]:
        """The first ``until`` pages of a series as at most 16384 buckets, shape (13, n); and the number of samples."""
        found: dict[int, tuple[bytes, int]] = {}
        for row in recording.scan(_SUMMARIES.format(self._ids.get(key, 0)), 0):
            # Fixed pages replace those of the file.
            if row[0] <= until and row[0] - 1 not in self._fixed:
                found[row[0] - 1] = (row["data"], row["samples"])
        for page, samples in self._fixed.items():
            if key in samples and page < until:
                times, values = samples[key]
                data = np.ascontiguousarray(summary(times, values, width_of(len(times))).T).tobytes()
                found[page] = data, len(times)
        whole = b"".join(found[page][0] for page in sorted(found))
        rows = np.frombuffer(whole).reshape(-1, len(BucketRow)).T
        # Merge neighbours until there are few enough, as in a live series.
        while rows.shape[1] > MOST_BUCKETS:
            rows = merged_pairs(rows)
        return np.ascontiguousarray(rows), sum(count for _data, count in found.values())

    def _check(self, recording: Recording) -> None:
        """Find the pages with damaged summaries by their checksums."""
        # A page has its number of series: missing summaries at the end mean damage.
        left = [page.summaries for page in self.pages]
        for number in self._ids.values():
            for row in recording.scan(_SUMMARIES.format(number), 0):
                page, samples, crc, data = tuple(row)
                if isinstance(data, bytes) and crc == crc32((number, page, samples, data)) and 0 < page <= len(left):
                    left[page - 1] -= 1
        self.damaged = {page for page, missing in enumerate(left) if missing}


def _pages(recording: Recording) -> list[SummaryPage]:
    pages: list[SummaryPage] = []
    before = dict.fromkeys((*schema.TABLES, "event"), 0)
    time_s = float("-inf")
    for number, row in enumerate(recording.select("SELECT * FROM page ORDER BY id")):
        facts = tuple(row)
        # Stop at the first damaged page: rows after it are read one by one.
        if len(facts) < LEAST_FACTS or facts[0] != number + 1 or facts[-1] != crc32(facts[:-1]):
            break
        there = dict(zip(row.keys()[2:-2], facts[2:-2], strict=True))
        rows = {**before, **{table: count for table, count in there.items() if table in before}}
        time_s = max(time_s, facts[1])
        pages.append(SummaryPage(time_s, rows, facts[-2]))
    return pages


def _series(recording: Recording) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for row in recording.select("SELECT * FROM series"):
        number, table, metric, device = tuple(row)[:4]
        if not (isinstance(table, str) and isinstance(metric, str) and isinstance(device, str | None)):
            continue
        if len(found) < MOST_SERIES and recording.admits(table, device):
            found[table, metric, device] = number
    return found


def newest_digest(recording: Recording, run_id: int | None) -> str | None:
    """The newest intact digest of a run; ``None`` if there is none."""
    number = "NULL" if run_id is None else int(run_id)
    statement = f"SELECT event, run_id, crc, json FROM digest WHERE run_id IS {number} ORDER BY rowid DESC LIMIT 1"
    found = list(map(tuple, recording.select(statement)))
    return next((t for event, run, crc, t in found if isinstance(t, str) and crc == crc32((event, run, t))), None)


def digests(recording: Recording, after: int = -1) -> list[Digest]:
    """Digests of runs in order of the events, those after row ``after`` of the events."""
    statement = f"SELECT event, run_id, crc, json FROM digest WHERE event > {after} ORDER BY rowid"
    return [
        Digest(event, run_id, text)
        for event, run_id, crc, text in map(tuple, recording.select(statement))
        if isinstance(text, str) and crc == crc32((event, run_id, text))
    ]
