"""What a recording knew at any moment: the backend of a replay's store.

Readings are found by looking back from a moment, runs from their newest figures before it. Series are known whole in
buckets; a short part of them is read again, sample by sample, while the window goes on drawing.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gpudash.system.newest_request import NewestRequest
from gpudash.telemetry.readings import Instant, Key
from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.pages import Digest, Pages, digests
from gpudash.telemetry.recording.reading import Recording, open_recording
from gpudash.telemetry.recording.recorder import WIDEST, RecordingError
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.records import EpochFinished, Event, Note, StageFinished, StepFinished, Warning
from gpudash.telemetry.runs import PeakName, RunView
from gpudash.telemetry.series import Series, Span
from gpudash.telemetry.store import Store

logger = logging.getLogger(__name__)

LATE_ROWS = 64
"""Rows behind the one a moment falls on that are looked at as well: a lane may be a few rows late."""

DETAIL_BUCKETS = 512
"""Buckets of a part's series, which seldom has any: it is as short as its newest samples."""

MOST_ROWS = 40_000
"""Rows that are read again at most: less than a second's work."""

MARGIN = 0.5
"""Part of a span that is read on either side of it as well, so that a little panning finds it there."""

MOST_EVENTS = 20_000
"""Events before a moment that are read again at most to tell how far a run had come."""

CLOSE_S = 2.0
"""How long closing waits for a part that is being read again."""

_REPORTED = (EpochFinished, Note, Warning)


class RecordingBackend:
    """Reads a recording for the store that holds it. The file stays open, unless it is being written: that would
    disturb its writer.

    Args:
        path: the file.
        growing: whether it is being written now.

    Raises:
        RecordingError: one sentence, when it cannot be read.

    Attributes:
        recording: what is read; ``None`` while it is being written.
        rows: up to which each table is read into the store: at once, or piece by piece while it is followed.
        notices: what could not be read, a sentence each.
        keys: see `StoreBackend.keys`.
    """

    thinned = False

    def __init__(self, path: Path, growing: Callable[[], bool]) -> None:
        self.recording: Recording | None = open_recording(path)
        self.rows: Rows = {}
        self.notices: list[str] = []
        self.keys: Collection[Key] = ()
        self._path = path
        self._growing = growing
        self._closed = False
        self._seeking = threading.Lock()
        self._opening = threading.Lock()
        self._requests: NewestRequest[Span] | None = None

    def store(self, pages: Pages, until: int) -> Store:
        """The store of this recording, whose series are, as far as the first ``until`` pages, read when asked for."""
        # Without pages nothing is summarised: the rows are read at once.
        self._pages = pages
        self._until = until
        if until:
            self.keys = pages.keys
        else:
            self.keys = ()
        store = Store(self)
        self._past = PastPosition(store, pages.digests)
        self._requests = NewestRequest("gpudash-sharpen", partial(self._sharpen, store))
        return store

    def request(self, t0: float, t1: float) -> None:
        """Have the span from ``t0`` to ``t1`` read sample by sample. Returns at once."""
        if self._requests is not None:
            self._requests.submit((t0, t1))

    def load(self, key: Key) -> Series | None:
        """What the pages tell of a series; ``None`` when they tell nothing."""
        try:
            with self.reading() as recording:
                rows, count = self._pages.buckets(recording, key, self._until)
        except RecordingError as error:
            self.note(str(error))
            return None
        if rows.shape[1]:
            return Series.preloaded(rows, count, WIDEST)
        return None

    def instant(self, store: Store, time_s: float, *, runs: bool) -> Instant:
        """What was known at ``time_s``. Takes some milliseconds, whatever the recording's length.

        Raises:
            RecordingError: when it cannot be read.
        """
        if not runs:
            with self.reading() as recording:
                return read_instant(recording, recording.rows_at(time_s, self.rows), time_s, store.links)
        # One seek at a time: `PastPosition` goes on from the moment before.
        with self._seeking, self.reading() as recording:
            rows = recording.rows_at(time_s, self.rows)
            found = read_instant(recording, rows, time_s, store.links)
            found.runs = self._past.runs_at(recording, rows, time_s)
        return found

    @contextmanager
    def reading(self) -> Iterator[Recording]:
        """The recording, open."""
        self._reopen()
        if self.recording is not None:
            yield self.recording
            self.note(*self.recording.notices)
            return
        with open_recording(self._path) as opened:
            yield opened

    @contextmanager
    def own_reading(self) -> Iterator[Recording]:
        """The recording, open for a thread of its own."""
        self._reopen()
        # A connection of its own: queries of another thread would otherwise wait for this one.
        with open_recording(self._path) if self.recording is None else self.recording.another() as opened:
            yield opened

    def note(self, *sentences: str) -> None:
        """Keep what could not be read, once."""
        self.notices.extend(sentence for sentence in sentences if sentence not in self.notices)

    def release(self) -> None:
        """Close the file, until the one who writes it has ended."""
        opened, self.recording = self.recording, None
        if opened is not None:
            opened.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything that was requested has been read; false when the time passed first."""
        return self._requests is None or self._requests.wait(timeout_s)

    def close(self, store: Store) -> bool:
        """End what reads the file, and close it; false when a thread did not end in time."""
        self._closed = True
        if self._requests is not None:
            self._requests.close()
        # Waited for before the file is closed under its reader.
        ended = self.wait(CLOSE_S)
        with self._seeking, store.lock:
            if ended:
                self.release()
            self.recording = None
        return ended

    def _sharpen(self, store: Store, span: Span) -> bool:
        """Answer a request; false when it cannot be answered."""
        try:
            return self._read_part(store, span)
        except RecordingError as error:
            self.note(str(error))
        except Exception as error:  # a damaged row can hold anything
            logger.exception("a part of a recording cannot be read again")
            self.note(f"A part of the recording cannot be read again ({type(error).__name__}: {error})")
        return False

    def _read_part(self, store: Store, span: Span) -> bool:
        """Read what lies in ``span`` and around it; false when it is too much."""
        margin = (span[1] - span[0]) * MARGIN
        with self.own_reading() as recording:
            # With a margin first, so that a little panning needs nothing new; the bare span where that is too much.
            for low, high in ((span[0] - margin, span[1] + margin), span):
                last = self.rows
                # A lane may write a few rows late: they are read as well, and hidden by their times.
                after = {table: max(0, row - LATE_ROWS) for table, row in recording.rows_at(low, last).items()}
                until = {table: row + LATE_ROWS for table, row in recording.rows_at(high, last).items()}
                if sum(until.values()) - sum(after.values()) <= MOST_ROWS:
                    part = read_part(recording, store.links, after, until, low)
                    store.sharpen((low, high), part)
                    return True
        return False

    def _reopen(self) -> None:
        """Keep the recording open once its writer has ended."""
        with self._opening:
            if self.recording is None and not self._closed and not self._growing():
                self.recording = open_recording(self._path)


def read_instant(recording: Recording, rows: Rows, time_s: float, links: Mapping[str, str]) -> Instant:
    """The newest readings at ``time_s``, when each table had been written up to ``rows``.

    What was not read in the 1024 rows of its table before is not known. ``links`` are GPUs by torch's names.
    """
    instant = Instant(time_s)
    for table in schema.TABLES:
        # Late rows are behind the one that the moment falls on.
        instant.scan_back(recording.samples_before(table, rows.get(table, 0) + LATE_ROWS))
    instant.add_bands({uuid: name for name, uuid in links.items()})
    return instant


def read_part(recording: Recording, links: Mapping[str, str], after: Rows, until: Rows, time_s: float) -> Store:
    """The rows behind ``after`` up to ``until``, of which the first is of about ``time_s``, sample by sample."""
    part = Store(buckets=DETAIL_BUCKETS)
    for device, uuid in links.items():
        part.link(device, uuid)
    # What was known when the span begins, for bands and runs that rest on it.
    part.begin_with(read_instant(recording, after, time_s, links))
    for record in recording.records(after, until):
        part.apply(record)
    return part


class PastPosition:
    """Makes the runs of a moment, going on from the moment before where it can.

    Args:
        store: of the recording.
        known: the digests that the recording had when it was opened; newer ones are read when they are needed.
    """

    def __init__(self, store: Store, known: Sequence[Digest]) -> None:
        self._store = store
        self._digests = list(known)
        self._run: RunView | None = None
        self._event = 0

    def runs_at(self, recording: Recording, rows: Rows, time_s: float) -> list[RunView]:
        """Those that had begun at ``time_s``, when each table had been written up to ``rows``."""
        with self._store.lock:
            begun = [run for run in self._store.end.runs if run.began_s <= time_s]
        found = []
        for run in begun:
            # A run that had ended is as it is now; of one that was on its figures of then are made.
            if run.ended_s is None or run.ended_s > time_s:
                run = self._then(recording, run, rows, time_s)
            found.append(run)
        return found

    def _then(self, recording: Recording, run: RunView, rows: Rows, time_s: float) -> RunView:
        view, digest = self._run, self._newest_digest(recording, run, rows)
        if digest is None:
            known = -1
        else:
            known = digest.event
        # Another run, an earlier moment, or a digest that is further on: begin anew from the digest.
        if view is None or view.began_s != run.began_s or not known <= self._event <= rows["event"]:
            view = RunView(run.run_id, run.workload, run.device, run.spec, run.simulated, run.began_s)
            if digest is None:
                known = recording.rows_at(run.began_s, {"event": rows["event"]})["event"]
            else:
                view.restore(digest.text)
            self._event = known
        steps = [
            event
            # Bounded: behind so many events the figures are those of the digest.
            for event in recording.events(max(self._event, rows["event"] - MOST_EVENTS), rows["event"])
            if isinstance(event, StepFinished | StageFinished) and self._concerns(event, run)
        ]
        with self._store.lock:
            reported = [
                e for e in self._store.end.events if isinstance(e, _REPORTED) and run.began_s <= e.time_s <= time_s
            ]
            # Taken anew each time: some of them may lie behind the moment that is shown now.
            view.notes, view.epochs, view.warnings = [], [], []
            for event in (*steps, *(event for event in reported if self._concerns(event, run))):
                view.apply(event)
            self._peaks(view, time_s)
        # Kept: a slider that moves on needs only the events in between.
        self._run, self._event = view, rows["event"]
        return view

    def _newest_digest(self, recording: Recording, run: RunView, rows: Rows) -> Digest | None:
        """The newest digest of a run among the events of then; a recording that is being written gets more of them."""
        known = -1
        if self._digests:
            known = self._digests[-1].event
        # A recording that is being written gets new digests with each page.
        if rows["event"] - known > MOST_EVENTS:
            self._digests.extend(digests(recording, known))
        return self._digest(run, rows)

    def _digest(self, run: RunView, rows: Rows) -> Digest | None:
        """The newest digest of a run among the events of then."""
        of_run = (digest for digest in reversed(self._digests) if digest.run_id == run.run_id)
        return next((digest for digest in of_run if digest.event <= rows["event"]), None)

    @staticmethod
    def _concerns(event: Event, run: RunView) -> bool:
        return event.run_id is None or event.run_id == run.run_id

    def _peaks(self, view: RunView, time_s: float) -> None:
        """Raise the peaks to the highest readings since the run began; the caller holds the lock."""
        uuid = self._store.links.get(view.device)
        if view.device == "cpu":
            used: Key = ("host", "process_bytes", None)
        else:
            used = ("gpu", "used_bytes", uuid)
        keys: tuple[tuple[PeakName, Key], ...] = (
            ("used_bytes", used),
            ("allocated_bytes", ("allocator", "allocated_bytes", view.device)),
            ("allocated_bytes", ("allocator", "peak_allocated_bytes", view.device)),
            ("reserved_bytes", ("allocator", "reserved_bytes", view.device)),
            ("reserved_bytes", ("allocator", "peak_reserved_bytes", view.device)),
        )
        for name, key in keys:
            # `at=inf`: of all there is, since the range of the statistics says what counts.
            series = self._store.series(*key, at=math.inf)
            found = None
            if series is not None:
                found = series.statistics(view.began_s, time_s, exactly=False)
            if found is not None:
                view.memory.raise_to(name, found.max)
        where = ("host", None) if view.device == "cpu" else ("gpu", uuid)
        total = self._store.latest(where[0], "total_bytes", where[1], at=math.inf)
        if isinstance(total.value, int | float):
            view.memory.capacity_bytes = int(total.value)
