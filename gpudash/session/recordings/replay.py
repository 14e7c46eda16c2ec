"""A recording in place of a live session: the same store at any moment of it, nothing to command.

One that is still being written, by whichever process, is followed. A short part of a long one is read again, sample by
sample, while the window goes on drawing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpudash.devices.names import Device, Gpu, shown_name
from gpudash.session.recordings.loading import Progress, load, read_part, series_of, take_links
from gpudash.session.source import PastSource
from gpudash.session.watching.output_log import OutputLine, OutputLog
from gpudash.settings import Settings
from gpudash.system.files import written_whole
from gpudash.system.foreign_files import copy_regular
from gpudash.telemetry.recording.facts import run_title, wall_clock_s
from gpudash.telemetry.recording.pages import Digest, Pages, digests
from gpudash.telemetry.recording.reading import Recording, open_recording
from gpudash.telemetry.recording.recorder import RecordingError, being_written, copy_recording
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.recording.seekable_store import (
    LATE_ROWS,
    Everything,
    PositionedStore,
    read_moment,
)
from gpudash.telemetry.records import (
    EpochFinished,
    Event,
    Note,
    Output,
    Record,
    RunStarted,
    StageFinished,
    StepFinished,
    Topic,
    Warning,
)
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.telemetry.series import Series, Span
from gpudash.telemetry.store import Key

logger = logging.getLogger(__name__)

MOST_EVENTS = 20_000
"""Events before a moment that are read again at most to tell how far a run had come."""

_REPORTED = (EpochFinished, Note, Warning)


class PastPosition:
    """Makes the runs of a moment, going on from the moment before where it can.

    Args:
        whole: all of the recording.
        known: the digests that the recording had when it was opened; newer ones are read when they are needed.
    """

    def __init__(self, whole: Everything, known: Sequence[Digest]) -> None:
        self._whole = whole
        self._digests = list(known)
        self._run: RunView | None = None
        self._event = 0

    def runs_at(self, recording: Recording, rows: Rows, time_s: float) -> list[RunView]:
        """Those that had begun at ``time_s``, when each table had been written up to ``rows``."""
        with self._whole.lock:
            begun = [run for run in self._whole.runs if run.began_s <= time_s]
        return [
            run if run.ended_s is not None and run.ended_s <= time_s else self._then(recording, run, rows, time_s)
            for run in begun
        ]

    def _then(self, recording: Recording, run: RunView, rows: Rows, time_s: float) -> RunView:
        view, digest = self._run, self._newest_digest(recording, run, rows)
        known = -1 if digest is None else digest.event
        if view is None or view.began_s != run.began_s or not known <= self._event <= rows["event"]:
            view = RunView(run.run_id, run.workload, run.device, run.spec, run.simulated, run.began_s)
            if digest is None:
                known = recording.rows_at(run.began_s, {"event": rows["event"]})["event"]
            else:
                view.restore(digest.text)
            self._event = known
        steps = [
            event
            for event in recording.events(max(self._event, rows["event"] - MOST_EVENTS), rows["event"])
            if isinstance(event, StepFinished | StageFinished) and self._concerns(event, run)
        ]
        with self._whole.lock:
            reported = [e for e in self._whole.events if isinstance(e, _REPORTED) and run.began_s <= e.time_s <= time_s]
            view.notes, view.epochs, view.warnings = [], [], []
            for event in (*steps, *(event for event in reported if self._concerns(event, run))):
                view.apply(event)
            self._peaks(view, time_s)
        self._run, self._event = view, rows["event"]
        return view

    def _newest_digest(self, recording: Recording, run: RunView, rows: Rows) -> Digest | None:
        """The newest digest of a run among the events of then; a recording that is being written gets more of them."""
        known = self._digests[-1].event if self._digests else -1
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
        uuid = self._whole.links.get(view.device)
        used: Key = ("host", "process_bytes", None) if view.device == "cpu" else ("gpu", "used_bytes", uuid)
        keys: tuple[tuple[str, Key], ...] = (
            ("used_bytes", used),
            ("allocated_bytes", ("allocator", "allocated_bytes", view.device)),
            ("allocated_bytes", ("allocator", "peak_allocated_bytes", view.device)),
            ("reserved_bytes", ("allocator", "reserved_bytes", view.device)),
            ("reserved_bytes", ("allocator", "peak_reserved_bytes", view.device)),
        )
        for name, key in keys:
            series = self._whole.series(*key)
            found = None if series is None else series.statistics(view.began_s, time_s, exactly=False)
            if found is not None:
                view.memory.raise_to(name, found.max)  # type: ignore[arg-type]  # three literals
        total = self._whole.latest(*(("host", "total_bytes") if view.device == "cpu" else ("gpu", "total_bytes", uuid)))
        if isinstance(total.value, int | float):
            view.memory.capacity_bytes = int(total.value)


MOST_ROWS = 40_000
"""Rows that are read again at most: less than a second's work."""

MARGIN = 0.5
"""Part of a span that is read on either side of it as well, so that a little panning finds it there."""


class Sharpening:
    """Brings what a store's series ask for. Its thread is there only while there is something to read.

    Args:
        store: whose series ask, and are told.
        reading: opens the recording for a thread of its own.
        rows: up to which each table is known.
    """

    def __init__(
        self,
        store: PositionedStore,
        reading: Callable[[], AbstractContextManager[Recording]],
        rows: Callable[[], Rows],
    ) -> None:
        self._store = store
        self._reading = reading
        self._rows = rows
        self._lock = threading.Lock()
        self._wanted: Span | None = None
        self._refused: Span | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.problem = ""
        store.whole.request = self.ask

    def ask(self, t0: float, t1: float) -> None:
        """Have the span from ``t0`` to ``t1`` read; the newest request wins. Returns at once."""
        with self._lock:
            if self._closed or (t0, t1) == self._refused:
                return
            self._wanted = (t0, t1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gpudash-sharpen", daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything that was asked for has been answered; false when the time passed first."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        """Read nothing more."""
        with self._lock:
            self._closed, self._wanted = True, None

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None:
                    self._thread = None
                    return
            try:
                if not self._read(wanted):
                    self._refused = wanted
            except RecordingError as error:
                self.problem, self._refused = str(error), wanted
            except Exception as error:  # a damaged row can hold anything
                logger.exception("a part of a recording cannot be read again")
                self.problem = f"A part of the recording cannot be read again ({type(error).__name__}: {error})"
                self._refused = wanted

    def _read(self, span: Span) -> bool:
        """Read what lies in ``span`` and around it; false when it is too much."""
        margin = (span[1] - span[0]) * MARGIN
        with self._reading() as recording:
            for low, high in ((span[0] - margin, span[1] + margin), span):
                last = self._rows()
                after = {table: max(0, row - LATE_ROWS) for table, row in recording.rows_at(low, last).items()}
                until = {table: row + LATE_ROWS for table, row in recording.rows_at(high, last).items()}
                if sum(until.values()) - sum(after.values()) <= MOST_ROWS:
                    part = read_part(recording, self._store.whole, after, until, low)
                    self._store.sharpen((low, high), part)
                    return True
        return False


CLOSE_S = 2.0
"""How long closing waits for a part that is being read again."""


class Replay(PastSource):
    """A recording, in a store that answers as of any moment of it: of its end, until `seek` goes elsewhere.

    A `DashboardSource` in which nothing can be run.

    Reading takes up to a second or two, so that it belongs in a thread. Close it when it is done with.

    Args:
        recording: the file.
        progress: called now and then, on the thread that reads, with the part that has been read, from 0 to 1.

    Raises:
        RecordingError: one sentence, when it cannot be read.

    Attributes:
        store: everything the recording holds, at `position_s`.
        output: what a watched program printed, the newest lines.
    """

    gpus: tuple[Gpu, ...] = ()

    def __init__(self, recording: Path, progress: Progress = lambda _part: None) -> None:
        self.recording = recording
        self.settings = Settings()
        self.output = OutputLog()
        self._notices: list[str] = []
        self._following: Following | None = None
        self._seeking, self._opening = threading.Lock(), threading.Lock()
        self._closed = False
        written = being_written(recording)
        self._opened: Recording | None = open_recording(recording)
        opened = self._opened
        try:
            self.began_wall_s = origin(opened.meta.get("wall_clock_origin"), recording)
            self._meta = dict(opened.meta)
            self._product = opened.meta.get("host_product", "CPU")
            self.host_capacity_source = opened.meta.get("host_capacity_source", "RAM")
            loaded = load(opened, self._buckets, progress, growing=written)
        except BaseException:
            opened.close()
            raise
        self._first_s, self._rows = loaded.first_s, loaded.rows
        self._odd = loaded.odd
        self._report(opened)
        self.store = PositionedStore(loaded.whole)
        self._looking_back = PastPosition(loaded.whole, loaded.pages.digests)
        self._sharpening = Sharpening(self.store, self._own_reading, lambda: self._rows)
        self._news(loaded.reported)
        if written:
            self._opened = None
            opened.close()
            self._following = Following(recording, loaded.rows, self._take)

    @property
    def extent_s(self) -> tuple[float, float]:
        """Session times of the first record and of the newest."""
        return self._first_s, max(self._first_s, self.store.whole.newest_s)

    @property
    def position_s(self) -> float:
        """The moment that the store answers of, in session time."""
        return self.store.newest_s

    @property
    def at_end(self) -> bool:
        """Whether the position is the end, and moves on with it."""
        return self.store.position_s is None

    @property
    def following(self) -> bool:
        """Whether the recording is still being written and may grow."""
        return self._following is not None and self._following.on

    @property
    def notices(self) -> list[str]:
        """What could not be read, a sentence each."""
        odd = [f"{self._odd} rows of {self.recording.name} make no sense and are left out"] if self._odd else []
        late = [] if self._following is None else [self._following.problem]
        return [*self._notices, *odd, *(text for text in (*late, self._sharpening.problem) if text)]

    def seek(self, time_s: float | None) -> None:
        """Have the store answer as of ``time_s``; ``None``, or a time past the end, is the end.

        Takes some milliseconds, whatever the recording's length.
        """
        low, high = self.extent_s
        if time_s is None or time_s >= high:
            self.store.show_end()
            return
        time_s = max(time_s, low)
        try:
            with self._seeking, self._reading() as recording:
                rows = recording.rows_at(time_s, self._rows)
                moment = read_moment(recording, rows, time_s, self.store.whole.links)
                runs = self._looking_back.runs_at(recording, rows, time_s)
        except RecordingError as error:
            self._note(str(error))
            return
        self.store.show(time_s, moment, runs)

    def settle(self, timeout_s: float) -> bool:
        """Wait until every part that the store's series have asked for is read; false when the time passed first."""
        return self._sharpening.wait(timeout_s)

    def close(self) -> bool:
        """Let go of the file and end what reads it; false when a thread did not end in time."""
        self._closed = True
        self._sharpening.close()
        ended = self._following is None or self._following.close()
        ended = self._sharpening.wait(CLOSE_S) and ended
        with self._seeking, self.store.lock:
            opened, self._opened = self._opened, None
            if opened is not None and ended:
                opened.close()
        return ended

    def _take(self, records: Sequence[Record], rows: Rows) -> None:
        """New records of a recording that is being written; on the thread that follows it."""
        for record in records:
            if isinstance(record, Note):
                take_links(self.store.whole, record)  # bands and peaks of the readings beside it need them
        self.store.apply_all(records)
        self._news(records)
        self._rows = rows

    def _news(self, records: Sequence[Record]) -> None:
        """Take in what concerns more than the store."""
        for record in records:
            if isinstance(record, Note) and record.topic == Topic.GPUS:
                self._devices(record)
            elif isinstance(record, Output):
                self.output.add([OutputLine(record.stream, line) for line in record.lines])
            elif isinstance(record, RunStarted) and record.workload == WATCH:
                self.output.begin()

    def _devices(self, note: Note) -> None:
        found, reported = [], note.details.get("gpus", ())
        for facts in reported if isinstance(reported, list | tuple) else ():
            try:
                found.append(_gpu(facts))
            except (TypeError, AttributeError):
                self._odd += 1
        known = {gpu.uuid: gpu for gpu in (*self.gpus, *found)}  # a program's simulated card may be listed no more
        self.gpus = tuple(known.values())[:MOST_GPUS]
        take_links(self.store.whole, note)

    def _buckets(self, pages: Pages, key: Key, until: int) -> Series | None:
        try:
            with self._reading() as recording:
                return series_of(pages, recording, key, until)
        except RecordingError as error:
            self._note(str(error))
            return None

    @contextmanager
    def _reading(self) -> Iterator[Recording]:
        """The recording, open: kept open, unless it is being written, whose writer that would disturb."""
        self._reopen()
        if self._opened is not None:
            yield self._opened
            self._report(self._opened)
            return
        with open_recording(self.recording) as opened:
            yield opened

    def _reopen(self) -> None:
        """Keep the recording open once its writer has ended."""
        with self._opening:
            if self._opened is None and not self.following and not self._closed:
                self._opened = open_recording(self.recording)

    @contextmanager
    def _own_reading(self) -> Iterator[Recording]:
        """The recording, open for a thread of its own."""
        self._reopen()
        with open_recording(self.recording) if self._opened is None else self._opened.another() as opened:
            yield opened

    def _report(self, recording: Recording) -> None:
        for text in recording.notices:
            self._note(text)

    def _note(self, text: str) -> None:
        if text not in self._notices:
            self._notices.append(text)

    @property
    def host_name(self) -> str:
        """What the machine was called that it is of; the file's name where that is not known."""
        return self._meta.get("host_name") or self.recording.stem

    def devices(self) -> list[Device]:
        """The devices the recording knows of."""
        return [
            self._host(self._product),
            *(
                Device(name, gpu.product, gpu.total_bytes, gpu.uuid)
                for gpu in self.gpus
                if (name := self.store.torch_name(gpu.uuid)) is not None
            ),
        ]

    def default_device(self) -> str:
        """The device of the last run."""
        run = self.store.whole.run
        return "cpu" if run is None else run.device

    def device_text(self, device: str) -> str:
        """How a reading's device is called."""
        return "cpu" if device == "host" else shown_name(self.store.torch_name(device) or device)

    def run_title(self, number: int) -> str:
        """What the user had called the run ``number``, counted from 1, when the recording was opened."""
        return run_title(self._meta, number, len(self.store.whole.runs))

    def save_recording(self, target: Path) -> None:
        """Copy the recording.

        Raises:
            RecordingError: when the target is the recording itself or cannot be written.
        """
        opened = self._opened
        if opened is None or opened.source != self.recording:
            copy_recording(self.recording if opened is None else opened.source, target)
            return
        if target.resolve() == self.recording.resolve():
            raise RecordingError(f"{target} is the recording itself; choose another name")
        try:
            with written_whole(target, private=True) as part:
                copy_regular(self.recording, part)  # byte by byte: also one that is damaged
        except OSError as error:
            raise RecordingError(f"{target} cannot be written ({error.strerror}); choose another place") from None


def origin(text: str | None, recording: Path) -> float:
    """Seconds since the epoch at session time 0; when the file was last written where it does not say."""
    found = wall_clock_s(text or "")
    return recording.stat().st_mtime if found is None else found


def _gpu(facts: Mapping[str, Any]) -> Gpu:
    known = {field.name: facts[field.name] for field in fields(Gpu) if field.name in facts}
    sizes = (known.get("total_bytes"), known.get("nvml_index", 0))
    if not all(isinstance(known.get(name, ""), str) for name in ("uuid", "product", "pci_bus_id", "parent")) or not all(
        isinstance(size, int | None) for size in sizes
    ):
        raise TypeError("not the facts of a GPU")
    capability = known.get("cuda_capability")
    return Gpu(**{**known, "cuda_capability": None if capability is None else tuple(capability)})


MOST_GPUS = 1024
"""GPUs of a recording that are listed."""

POLL_S = 0.25
"""Seconds between two looks: as often as the recorder commits."""

MOST_RECORDS = 5000
"""Records that are handed on at a time."""


class Following:
    """A thread that hands on new records until the writer ends.

    It opens the file anew for every look: a reader that stayed would keep the writer from leaving one tidy file.

    Args:
        path: the recording.
        rows: up to which each table is known.
        take: is given new records, in order of time, and the rows up to which they go.

    Attributes:
        on: whether the recording may still grow.
        problem: why following ended early, in one sentence.
    """

    def __init__(self, path: Path, rows: Rows, take: Callable[[Sequence[Record], Rows], None]) -> None:
        self.on = True
        self.problem = ""
        self._path = path
        self._rows = rows
        self._take = take
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gpudash-follow", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the thread; false when it did not end in time."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _follow(self) -> None:
        try:
            while not self._stop.wait(POLL_S):
                written = being_written(self._path)
                self._poll()
                if not written:
                    break
        except RecordingError as error:
            self.problem = str(error)
        except Exception as error:  # a damaged row can hold anything
            logger.exception("a recording cannot be followed any more")
            self.problem = f"{self._path} cannot be followed any more ({type(error).__name__}: {error})"
        finally:
            self.on = False

    def _poll(self) -> None:
        with open_recording(self._path) as recording:
            last = recording.last_rows()
            waiting: list[Record] = []
            for record in recording.records(self._rows, last):
                waiting.append(record)
                if len(waiting) >= MOST_RECORDS:
                    self._take(waiting, self._rows)
                    waiting = []
            self._rows = last
            self._take(waiting, last)
