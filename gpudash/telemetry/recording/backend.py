"""The state of a recording at any moment: the backend of a replay's store.

Readings are found by scanning back from a moment, runs from the last digest before it. Series are known as buckets
over the whole recording; a short part can be read again, sample by sample, while the window keeps drawing.
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
"""Rows after a moment's own that are also checked: a lane may be a few rows late."""

DETAIL_BUCKETS = 512
"""Buckets for a part's series, which rarely needs any: it is as short as its newest samples."""

MOST_ROWS = 40_000
"""Most rows that are read again: less than a second's work."""

MARGIN = 0.5
"""Part of a span that is also read on either side of it, so that slight panning needs no new read."""

MOST_EVENTS = 20_000
"""Most events before a moment that are read again to reconstruct a run's progress."""

CLOSE_S = 2.0
"""Longest wait in `close` for a part that is being read."""

_REPORTED = (EpochFinished, Note, Warning)


class RecordingBackend:
    """Reads a recording for the store that holds it. The file stays open, unless it is still being written: that would
    disturb the writer.

    Args:
        path: the file.
        growing: whether it is still being written.

    Raises:
        RecordingError: one sentence, if it cannot be read.

    Attributes:
        recording: the open recording; ``None`` while it is being written.
        rows: last row of each table that is in the store: the last of all, or increasing while it is followed.
        notices: what could not be read, one sentence each.
        keys: as in `StoreBackend.keys`.
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
        """The store for this recording; the first ``until`` pages of its series are read on demand."""
        # Without pages there are no summaries: all rows are read now.
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
        """Read the span from ``t0`` to ``t1`` sample by sample. Returns immediately."""
        if self._requests is not None:
            self._requests.submit((t0, t1))

    def load(self, key: Key) -> Series | None:
        """A series from the pages; ``None`` if they do not contain it."""
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
        """The state at ``time_s``. Takes some milliseconds, however long the recording is.

        Raises:
            RecordingError: if it cannot be read.
        """
        if not runs:
            with self.reading() as recording:
                return read_instant(recording, recording.rows_at(time_s, self.rows), time_s, store.links)
        # One seek at a time: `PastPosition` continues from the previous moment.
        with self._seeking, self.reading() as recording:
            rows = recording.rows_at(time_s, self.rows)
            found = read_instant(recording, rows, time_s, store.links)
            found.runs = self._past.runs_at(recording, rows, time_s)
        return found

    @contextmanager
    def reading(self) -> Iterator[Recording]:
        """The open recording."""
        self._reopen()
        if self.recording is not None:
            yield self.recording
            self.note(*self.recording.notices)
            return
        with open_recording(self._path) as recording:
            yield recording

    @contextmanager
    def own_reading(self) -> Iterator[Recording]:
        """The recording, opened for another thread."""
        self._reopen()
        # With its own connection, so that it does not wait for another thread's queries.
        with open_recording(self._path) if self.recording is None else self.recording.another() as opened:
            yield opened

    def note(self, *sentences: str) -> None:
        """Add a notice of what could not be read, once."""
        self.notices.extend(sentence for sentence in sentences if sentence not in self.notices)

    def release(self) -> None:
        """Close the file until its writer has ended."""
        opened, self.recording = self.recording, None
        if opened is not None:
            opened.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all requests are answered; false on timeout."""
        return self._requests is None or self._requests.wait(timeout_s)

    def close(self, store: Store) -> bool:
        """Stop reading and close the file; false if a thread did not end in time."""
        self._closed = True
        if self._requests is not None:
            self._requests.close()
        # Wait before closing the file under its reader.
        ended = self.wait(CLOSE_S)
        with self._seeking, store.lock:
            if ended:
                self.release()
            self.recording = None
        return ended

    def _sharpen(self, store: Store, span: Span) -> bool:
        """Answer a request; false if that is not possible."""
        try:
            return self._read_part(store, span)
        except RecordingError as error:
            self.note(str(error))
        except Exception as error:  # a damaged row can contain anything
            logger.exception("a part of a recording cannot be read again")
            self.note(f"A part of the recording cannot be read again ({type(error).__name__}: {error})")
        return False

    def _read_part(self, store: Store, span: Span) -> bool:
        """Read ``span`` with a margin; false if it has too many rows."""
        margin = (span[1] - span[0]) * MARGIN
        with self.own_reading() as recording:
            # First with a margin, so that slight panning needs no new read; without it if that is too much.
            for low, high in ((span[0] - margin, span[1] + margin), span):
                last = self.rows
                # A lane may write a few rows late: read those too; their times hide them.
                after = {table: max(0, row - LATE_ROWS) for table, row in recording.rows_at(low, last).items()}
                until = {table: row + LATE_ROWS for table, row in recording.rows_at(high, last).items()}
                if sum(until.values()) - sum(after.values()) <= MOST_ROWS:
                    part = read_part(recording, store.links, after, until, low)
                    store.sharpen((low, high), part)
                    return True
        return False

    def _reopen(self) -> None:
        """Open the recording for good once its writer has ended."""
        with self._opening:
            if self.recording is None and not self._closed and not self._growing():
                self.recording = open_recording(self._path)


def read_instant(recording: Recording, rows: Rows, time_s: float, links: Mapping[str, str]) -> Instant:
    """The newest readings at ``time_s``, when each table had been written up to ``rows``.

    Looks at the last 1024 rows of each table. ``links`` are GPUs by torch's names.
    """
    instant = Instant(time_s)
    for table in schema.TABLES:
        # Late rows come after the moment's own.
        instant.scan_back(recording.samples_before(table, rows.get(table, 0) + LATE_ROWS))
    instant.add_bands({uuid: name for name, uuid in links.items()})
    return instant


def read_part(recording: Recording, links: Mapping[str, str], after: Rows, until: Rows, time_s: float) -> Store:
    """The rows after ``after`` up to ``until``, the first of which is at about ``time_s``, sample by sample."""
    part = Store(buckets=DETAIL_BUCKETS)
    for device, uuid in links.items():
        part.link(device, uuid)
    # The state at the beginning of the span, which bands and runs continue.
    part.begin_with(read_instant(recording, after, time_s, links))
    for record in recording.records(after, until):
        part.apply(record)
    return part


class PastPosition:
    """Reconstructs the runs at a moment, continuing from the previous moment if possible.

    Args:
        store: store of the recording.
        known: the recording's digests at the time it was opened; newer ones are read on demand.
    """

    def __init__(self, store: Store, known: Sequence[Digest]) -> None:
        self._store = store
        self._digests = list(known)
        self._run: RunView | None = None
        self._event = 0

    def runs_at(self, recording: Recording, rows: Rows, time_s: float) -> list[RunView]:
        """Runs that had begun at ``time_s``, when each table had been written up to ``rows``."""
        with self._store.lock:
            begun = [run for run in self._store.end.runs if run.began_s <= time_s]
        found = []
        for run in begun:
            # A run that had ended is unchanged; for a current one, reconstruct its figures at that time.
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
        # Another run, an earlier moment, or a later digest: start again from the digest.
        if view is None or view.began_s != run.began_s or not known <= self._event <= rows["event"]:
            view = RunView(run.run_id, run.workload, run.device, run.spec, run.simulated, run.began_s)
            if digest is None:
                known = recording.rows_at(run.began_s, {"event": rows["event"]})["event"]
            else:
                view.restore(digest.text)
            self._event = known
        steps = [
            event
            # Limited: after so many events, the figures are those of the digest.
            for event in recording.events(max(self._event, rows["event"] - MOST_EVENTS), rows["event"])
            if isinstance(event, StepFinished | StageFinished) and self._concerns(event, run)
        ]
        with self._store.lock:
            reported = [
                e for e in self._store.end.events if isinstance(e, _REPORTED) and run.began_s <= e.time_s <= time_s
            ]
            # Collected again each time: some of them may be later than the moment shown now.
            view.notes, view.epochs, view.warnings = [], [], []
            for event in (*steps, *(event for event in reported if self._concerns(event, run))):
                view.apply(event)
            self._peaks(view, time_s)
        # Cached: a slider that moves on only needs the events in between.
        self._run, self._event = view, rows["event"]
        return view

    def _newest_digest(self, recording: Recording, run: RunView, rows: Rows) -> Digest | None:
        """The newest digest of a run among the events up to then."""
        known = -1
        if self._digests:
            known = self._digests[-1].event
        # A recording that is being written gets new digests with each page.
        if rows["event"] - known > MOST_EVENTS:
            self._digests.extend(digests(recording, known))
        return self._digest(run, rows)

    def _digest(self, run: RunView, rows: Rows) -> Digest | None:
        """The newest digest of a run among the events up to then, of those known."""
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
            # `at=inf` for all samples, since the range of the statistics selects them.
            found = self._store.statistics(key, view.began_s, time_s, math.inf, exactly=False)
            if found is not None:
                view.memory.raise_to(name, found.max)
        where = ("host", None) if view.device == "cpu" else ("gpu", uuid)
        total = self._store.latest(where[0], "total_bytes", where[1], at=math.inf)
        if total.size is not None:
            view.memory.capacity_bytes = total.size
