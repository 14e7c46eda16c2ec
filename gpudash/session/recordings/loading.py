"""Reads a recording into a store: whole if it is short, else from its summaries and the rows after the last one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpudash.telemetry.readings import MAX_EVENTS
from gpudash.telemetry.recording.backend import RecordingBackend, read_instant, read_part
from gpudash.telemetry.recording.pages import Digest, Pages
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.records import Note, Output, Record, RunEnd, RunStarted, Topic
from gpudash.telemetry.runs import WATCH
from gpudash.telemetry.store import Store

logger = logging.getLogger(__name__)

WHOLE_ROWS = 60_000
"""Recordings up to this many rows are read whole, which takes a second or two."""

TAIL_ROWS = 16_384
"""Rows at the end of a longer recording that are read one by one, so that its newest part is exact."""

PROGRESS_ROWS = 2000
"""Rows between two progress reports."""

OUTPUT_EVENTS = 200
"""How many pieces of a program's output are searched for in a long recording, the newest."""

OUTPUT_WITHIN_S = 0.3
"""Longest search for them."""

Progress = Callable[[float], None]


@dataclass
class Loaded:
    """A loaded recording.

    Attributes:
        store: holds what was read.
        first_s: time of the first record.
        news: records of interest beyond the store: devices, output, starts of runs; in order.
        odd: number of invalid rows, which were left out.
    """

    store: Store
    first_s: float
    news: list[Record] = field(default_factory=list)
    odd: int = 0

    def take(self, records: Iterable[Record], progress: Progress | None = None, rows: int = 1) -> None:
        """Apply ``records``, about ``rows`` in total."""
        for number, record in enumerate(records):
            try:
                self.store.apply(record)
            except Exception:  # a damaged row can hold anything
                if not self.odd:
                    logger.warning("a row of the recording makes no sense; later ones are counted", exc_info=True)
                self.odd += 1
                continue
            if isinstance(record, (Note, Output, RunStarted)):
                if isinstance(record, Note):
                    take_links(self.store, record)
                self.news.append(record)
            if progress is not None and number % PROGRESS_ROWS == 0:
                progress(min(1.0, number / max(1, rows)))


def load(
    backend: RecordingBackend,
    recording: Recording,
    progress: Progress,
    *,
    growing: bool = False,
) -> Loaded:
    """Read a recording.

    Args:
        backend: reads later what is not read now.
        recording: the recording that it has open.
        progress: called with the fraction read, 0 to 1.
        growing: whether it is being written: rows that arrive meanwhile are left to its follower.
    """
    rows = recording.last_rows()
    ends = None
    if growing:
        ends = rows
    pages = Pages(recording)
    count = sum(rows.values())
    until = 0
    if count > WHOLE_ROWS:
        until = sum(sum(page.rows.values()) <= count - TAIL_ROWS for page in pages.pages)
    first = recording.first_s()
    if not until:
        loaded = Loaded(backend.store(pages, until), first)
        loaded.take(recording.records(None, ends), progress, count)
    else:
        _fix(recording, pages, until, progress)
        loaded = Loaded(backend.store(pages, until), first)
        _take_summaries(recording, loaded, pages, until)
        after = pages.pages[until - 1].rows
        loaded.take(recording.records(after, ends), progress, count - sum(after.values()))
        _restore(loaded, [digest for digest in pages.digests if _is_final(recording, digest, after)])
    backend.rows = rows
    return loaded


def take_links(store: Store, note: Note) -> None:
    """Register in the store which GPU is which torch device, if ``note`` says so."""
    names = None
    if note.topic == Topic.GPUS:
        names = note.details.get("torch_names")
    for name, uuid in names.items() if isinstance(names, dict) else ():
        if isinstance(uuid, str):
            store.link(name, uuid)


def _fix(recording: Recording, pages: Pages, until: int, progress: Progress) -> None:
    """Summarise the damaged pages among the first ``until`` again, from their rows."""
    damaged = sorted(page for page in pages.damaged if page < until)
    if not damaged:
        return
    links = Loaded(Store(), 0.0)
    links.take(event for event in recording.rare_events(pages.pages[until - 1].rows["event"], MAX_EVENTS))
    for number, page in enumerate(damaged):
        before = None
        if page:
            before = pages.pages[page - 1]
        after, time_s = ({}, 0.0) if before is None else (before.rows, before.time_s)
        part = read_part(recording, links.store.links, after, pages.pages[page].rows, time_s)
        pages.fix(page, {key: series.newest(len(series)) for key, series in part.curves()})
        progress(number / len(damaged))


def _take_summaries(recording: Recording, loaded: Loaded, pages: Pages, until: int) -> None:
    """Load events, runs and newest readings as of the end of page ``until``."""
    page = pages.pages[until - 1]
    loaded.take(recording.rare_events(page.rows["event"], MAX_EVENTS))
    loaded.store.begin_with(read_instant(recording, page.rows, page.time_s, loaded.store.links))
    _restore(loaded, [digest for digest in pages.digests if digest.event <= page.rows["event"]])
    for run in loaded.store.runs:
        for stage in run.stages.values():
            loaded.store.mark(stage.newest)
    watched = next((run for run in reversed(loaded.store.runs) if run.workload == WATCH), None)
    if watched is not None:
        where = f"kind = 'Output' AND rowid <= {page.rows['event']}"
        limit = time.monotonic() + OUTPUT_WITHIN_S
        found = recording.select(
            f"SELECT * FROM event WHERE {where} ORDER BY rowid DESC LIMIT {OUTPUT_EVENTS}",
            lambda: time.monotonic() > limit,
        )
        printed = (event for event in recording.events_of(reversed(found)) if isinstance(event, Output))
        loaded.news.extend(event for event in printed if event.time_s >= watched.began_s)


def _is_final(recording: Recording, digest: Digest, after: Rows) -> bool:
    """Whether the digest was written when its run ended, after rows ``after``: it then holds more than the steps."""
    ending = recording.events(digest.event - 1, digest.event) if digest.event > after["event"] else ()
    return any(isinstance(event, RunEnd) for event in ending)


def _restore(loaded: Loaded, digests: list[Digest]) -> None:
    """Restore the figures of runs from their newest digest."""
    for digest in {digest.run_id: digest for digest in digests}.values():
        run = next((run for run in reversed(loaded.store.runs) if run.run_id == digest.run_id), None)
        if run is not None:
            try:
                run.restore(digest.text)
            except ValueError:
                loaded.odd += 1
