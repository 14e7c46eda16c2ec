"""Writes a session to disk while it happens: one SQLite file, committed several times a second.

It carries summaries, written as it grows, so that a long one is drawn without reading every row. Every `PAGE_ROWS` rows
end a page: where each table stood, the page's samples of every series in buckets, and the figures of the run that is
on. A reader that does not know these tables reads the rows alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import platform
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import gpudash
from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.foreign_files import open_regular
from gpudash.telemetry.readings import Key
from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.records import Event, Record, RunEnd, RunStarted, Sample, Transfer, plain
from gpudash.telemetry.runs import RunView, run_of
from gpudash.telemetry.series import Floats, summary
from gpudash.telemetry.store import Store

logger = logging.getLogger(__name__)

COMMIT_S = 0.25
"""Longest time between commits as long as `Recorder.tick` is called."""

COMMIT_ROWS = 1000
"""Rows that are committed at once even when no tick comes."""

CACHE_KIB = 512
"""SQLite's page cache: rows are only appended, so a larger one would hold pages that are never read."""

WAL_BYTES = 4 * 1024**2
"""Size the write-ahead log is cut back to; SQLite moves it into the file every 1000 pages (4 MiB)."""

_writing: dict[tuple[int, int], Recorder] = {}
"""The recorder of each file that this process writes, by device and inode. These files must not be opened and closed
beside SQLite: closing any descriptor of a file drops all of the process's POSIX locks on it
(sqlite.org/howtocorrupt.html, section 2.2)."""

LOG_SUFFIX = "-wal"
"""What SQLite puts behind a file's name for its write-ahead log."""

PAGE_ROWS = 4096
"""Rows of a page. A series keeps at least its newest 7168 samples as they came, so that none is missed."""

TRANSFER_SAMPLES = 3
"""Samples of its series that a transfer makes; it counts as so many rows."""

WIDEST = 64
"""Samples of a bucket, at most."""

FEWEST = 8
"""Buckets that a page's samples of a series are cut into at least; fewer samples are kept one by one."""

Samples = tuple[Floats, Floats]


class RecordingError(Exception):
    """A recording cannot be written or read. Its text is one sentence for the user."""


class _TakenError(RecordingError):
    """There is a file of that name already."""


ANSWER_S = 1.0
"""Longest wait until the recorder, which looks four times a second, has noted a fact."""


def recorder_of(path: Path) -> Recorder | None:
    """What writes ``path`` in this process."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _writing.get((status.st_dev, status.st_ino))


def being_written(path: Path) -> bool:
    """Whether a living gpudash, this one included, writes ``path``; a file that cannot be opened counts as not."""
    try:
        status = path.stat()
        # Our own file: opening it here would drop SQLite's locks as it is closed (`_writing`).
        if (status.st_dev, status.st_ino) in _writing:
            return True
        with open_regular(path) as file:
            # A recorder holds an exclusive lock for as long as it lives: kill -9 ends it too.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@dataclass(slots=True)
class _Request:
    """A fact that is to be noted by the thread that writes; once it is `done`, whether it was `noted`."""

    key: str
    value: str
    noted: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Recorder:
    """Appends records to a new recording. Belongs to one thread.

    A row costs about 10 µs; what was committed survives ``kill -9`` (SQLite, WAL with synchronous NORMAL). When
    writing fails, for example because the disk is full, `failed` says so once and everything else is ignored, so that
    the session goes on; what was committed before stays readable.

    The file is made with mode 0600, and so are SQLite's files beside it; folders that are missing with mode 0700.

    Args:
        path: the file; its folder is made.
        meta: named facts of the session, kept as text, numbers or JSON. Known here and added: ``format_version``,
            ``gpudash_version``, ``python_version``, ``host``, ``system``, ``status``; and, unless given,
            ``wall_clock_origin``, the moment of session time 0 in ISO 8601.
        may_number: take a number into the name when the name is taken, for one that the user has not chosen.

    Raises:
        RecordingError: when the file cannot be made, exists or is being written by another gpudash.

    Attributes:
        path: the file that is written.
        failed: why recording ended early, in one sentence; ``None`` while all is well.
        annotations: what has been noted since with `annotate`, by key.
    """

    def __init__(self, path: Path, *, meta: Mapping[str, Any], may_number: bool = False) -> None:
        self.failed: str | None = None
        self.annotations: dict[str, str] = {}
        self._connection: sqlite3.Connection | None = None
        self._pages: PageWriter | None = None
        self._pending = 0
        self._committed = time.monotonic()
        self._newest_s = 0.0
        self._inserts = {table: schema.insert(table) for table in schema.TABLES}
        self._metrics = {table: schema.COLUMNS[table][2:-1] for table in schema.TABLES}
        self._requests: list[_Request] = []
        self._requests_lock = threading.Lock()
        self._lock: tuple[int, tuple[int, int]] | None
        if may_number:
            self.path, self._lock = _claim_free(self, path)
        else:
            self.path, self._lock = (path, _claim(self, path))
        try:
            self._create(meta)
        except (sqlite3.Error, OSError) as error:
            self._release()
            self.path.unlink(missing_ok=True)
            raise RecordingError(f"{self.path} cannot be written ({_cause(error)}); choose another place") from None
        logger.info("recording to %s", self.path.name)

    def add(self, record: Record) -> None:
        """Write a record. It is safe once committed, which `tick` does.

        Raises:
            OverflowError: the record has a number that no row can hold. It alone is missing then.
        """
        if self._connection is None:
            return
        try:
            # One transaction for many rows: a commit of each would cost a write to the disk.
            if not self._pending:
                self._connection.execute("BEGIN")
            self._pending += 1
            self._newest_s = record.time_s
            if isinstance(record, Sample):
                schema.write(self._connection, self._inserts[record.table], self._row(record))
            else:
                self._event(self._connection, record)
            # Within the same transaction: a summary is there exactly when its rows are.
            if self._pages is not None:
                self._pages.added(self._connection, record)
            # The end of a run is committed at once: what comes next may be a crash of the machine.
            if self._pending >= COMMIT_ROWS or isinstance(record, RunEnd):
                self._commit()
        except (sqlite3.Error, OSError) as error:
            self._fail(error)

    def summarise(self, store: Store) -> None:
        """Write summaries as well, with which a long recording opens fast; before the first record.

        Args:
            store: takes in every record before `add` does, on this thread.
        """
        self._pages = PageWriter(store)

    def tick(self) -> None:
        """Commit when the last commit is long enough ago. To be called at least four times a second."""
        if self._requests:
            self._write_annotations()
        if self._pending and time.monotonic() - self._committed >= COMMIT_S:
            self.commit()

    def commit(self) -> None:
        """Make everything added so far safe."""
        try:
            self._commit()
        except (sqlite3.Error, OSError) as error:
            self._fail(error)

    def copy_to(self, target: Path) -> None:
        """Write what is committed to ``target``, whole or not at all, while recording goes on. For any thread.

        Raises:
            RecordingError: when ``target`` is the recording itself or cannot be written.
        """
        copy_recording(self.path, target)

    def annotate(self, key: str, value: str) -> bool:
        """Have a named fact noted that the user wants kept, "" removes it; false when nothing is written any more.

        For any thread: this recorder's own notes it when it ticks next, or closes, so that the file has one writer.
        """
        request = _Request(key, value)
        # Under the lock: `_release` answers all callers so far, and none can come after it.
        with self._requests_lock:
            if self._connection is None:
                return False
            self._requests.append(request)
        return not request.done.wait(ANSWER_S) or request.noted

    def _write_annotations(self) -> None:
        """Write the annotations that were asked for, and commit them."""
        with self._requests_lock:
            requests, self._requests = self._requests, []
        try:
            for request in requests:
                if self._connection is not None:
                    schema.annotate(self._connection, request.key, request.value)
                    self.annotations[request.key] = request.value
            self._commit()
        except (sqlite3.Error, OSError) as error:
            self._fail(error)
        # Known only behind the commit.
        for request in requests:
            request.noted = self._connection is not None
            request.done.set()

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Note named facts of the session, also such as were given at first."""
        if self._connection is None:
            return
        rows = [(key, value if isinstance(value, str) else json.dumps(plain(value))) for key, value in facts.items()]
        try:
            for row in rows:
                schema.write(self._connection, "INSERT OR REPLACE INTO meta VALUES (?, ?)", row)
        except (sqlite3.Error, OSError) as error:
            self._fail(error)

    def close(self, status: str = "closed") -> None:
        """Commit, note how the session ended and leave one file without a log beside it. Never raises.

        Args:
            status: becomes the meta key ``status``. A run that is still on is noted as "cancelled".
        """
        connection = self._connection
        if connection is None:
            return
        self._write_annotations()
        try:
            self._commit()
            with connection:
                # A run that is on has no end of its own any more.
                connection.execute("BEGIN")
                connection.execute(
                    "UPDATE run SET status = 'cancelled', ended_s = ? WHERE status = 'running'", (self._newest_s,)
                )
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('status', ?)", (status,))
            # One file: what is in the log goes into it, and the log goes.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):  # a reader keeps the log in use, and it stays beside the file
                self._fail(error)
        except (sqlite3.Error, OSError) as error:
            self._fail(error)
        self._release()
        logger.info("the recording to %s ends: %s", self.path.name, status)

    def _create(self, meta: Mapping[str, Any]) -> None:
        # `isolation_level=None`: sqlite3 must not begin transactions by itself.
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
        self._connection = connection
        # WAL: what was committed survives kill -9, and readers do not wait for the writer.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        facts = {
            "wall_clock_origin": datetime.now(UTC).isoformat(),
            **meta,
            "format_version": schema.FORMAT_VERSION,
            "gpudash_version": gpudash.__version__,
            "python_version": platform.python_version(),
            "host": platform.node(),
            "system": platform.platform(),
            "status": "running",
        }
        with connection:
            connection.execute("BEGIN")
            for statement in schema.statements():
                connection.execute(statement)
            for key, value in facts.items():
                if not isinstance(value, str):
                    value = json.dumps(plain(value))
                schema.write(connection, "INSERT INTO meta VALUES (?, ?)", (key, value))

    def _row(self, sample: Sample) -> list[Any]:
        values = sample.values
        row: list[Any] = [sample.time_s, sample.device]
        row.extend([values.get(name) for name in self._metrics[sample.table]])
        states = sample.states
        # Mostly there is none, and then nothing is written.
        row.append(json.dumps({name: state.value for name, state in states.items()}) if states else None)
        return row

    def _event(self, connection: sqlite3.Connection, event: Event) -> None:
        row = (event.time_s, event.run_id, event.kind, event.to_json())
        connection.execute("INSERT INTO event VALUES (?, ?, ?, ?)", row)
        if isinstance(event, RunStarted):
            spec = json.dumps(plain(event.spec))
            statement = "INSERT OR REPLACE INTO run VALUES (?, ?, ?, 'running', ?, NULL)"
            schema.write(connection, statement, (event.run_id, event.workload, spec, event.time_s))
        elif isinstance(event, RunEnd):
            ended = (event.status, event.time_s, event.run_id)
            connection.execute("UPDATE run SET status = ?, ended_s = ? WHERE id = ?", ended)

    def _commit(self) -> None:
        if self._pending and self._connection is not None:
            self._connection.execute("COMMIT")
            self._pending = 0
        self._committed = time.monotonic()

    def _fail(self, error: Exception) -> None:
        if self.failed is None:
            logger.error("recording to %s stopped", self.path.name, exc_info=error)
            self.failed = (
                f"Recording to {self.path} stopped ({_cause(error)}); what was written before is readable, "
                "and the session goes on unrecorded."
            )
        # In any case: a file that cannot be written must not stay locked.
        self._release()

    def _release(self) -> None:
        """Let go of the file; what is uncommitted is rolled back."""
        with self._requests_lock:  # what is wanted from now on is for whoever opens the file
            connection, self._connection = self._connection, None
            requests, self._requests = self._requests, []
        for request in requests:
            request.done.set()
        self._pending = 0
        if connection is not None:
            # A full disk refuses the last checkpoint as well; then the log stays beside the file, and is read from it.
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            descriptor, identity = lock
            _writing.pop(identity, None)
            os.close(descriptor)


def copy_recording(path: Path, target: Path) -> None:
    """Write what is committed of the recording ``path`` to ``target``, whole or not at all, also while it is written.

    Its mode is 0600, as a recording's.

    Raises:
        RecordingError: when ``target`` is the recording itself or cannot be written.
    """
    if target.resolve() == path.resolve():
        raise RecordingError(f"{target} is the recording itself; choose another name")
    try:
        with (
            written_whole(target, private=True) as part,
            contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            # SQLite's own copy: pages that change meanwhile are taken again.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except (sqlite3.Error, OSError) as error:
        raise RecordingError(f"{target} cannot be written ({_cause(error)}); choose another place") from None


def _claim_free(recorder: Recorder, path: Path) -> tuple[Path, tuple[int, tuple[int, int]]]:
    """Make and lock the first file of this name, or with a number in it, that is not there."""
    names = schema.numbered(path)
    while True:
        free = next(names)
        with contextlib.suppress(_TakenError):
            return free, _claim(recorder, free)


def _claim(recorder: Recorder, path: Path) -> tuple[int, tuple[int, int]]:
    """Make and lock the file. Its descriptor may only be closed when SQLite no longer has the file open."""
    try:
        make_private_folder(path.parent)
    except FileExistsError:
        raise RecordingError(
            f"{path} cannot be written ({path.parent} is not a folder); choose another place"
        ) from None
    except OSError as error:
        raise RecordingError(f"{path} cannot be written ({_cause(error)}); choose another place") from None
    try:
        # O_EXCL decides: two gpudash may have found the same name free.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise _TakenError(_why_taken(path)) from None
    except OSError as error:
        raise RecordingError(f"{path} cannot be written ({_cause(error)}); choose another place") from None
    with contextlib.suppress(OSError):  # a file system without locks: the recording is worth more than the protection
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for `being_written` elsewhere at most: the file is new
    status = os.fstat(descriptor)
    identity = (status.st_dev, status.st_ino)
    # Known before anything is opened: see `_writing`.
    _writing[identity] = recorder
    return descriptor, identity


def _why_taken(path: Path) -> str:
    if not path.exists():
        return f"{path} cannot be made, something of that name is in the way; choose another"
    if being_written(path):
        return f"{path} is being written by another gpudash; choose another name"
    return f"{path} exists already; choose another name or remove it"


def log_files(path: Path) -> tuple[Path, Path]:
    """SQLite's write-ahead log and its index beside an open or abandoned recording."""
    return path.with_name(path.name + LOG_SUFFIX), path.with_name(path.name + "-shm")


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    else:
        text = str(error)
    return text[:1].lower() + text[1:]


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
        # Of a run that ended: its figures are known whole.
        else:
            self._rows["event"] += 1
            self._weight += TRANSFER_SAMPLES if isinstance(record, Transfer) else 1
            if isinstance(record, RunEnd):
                self._digest(connection, run_of(self._store.runs, record.run_id))
        if self._weight >= PAGE_ROWS:
            self._weight = 0
            # At the end of each page as well: a crash then costs a page's worth of figures, not all.
            self._digest(connection, self._store.run)
            self.write(connection, record.time_s, self._rows, self._new_samples())

    def write(self, connection: sqlite3.Connection, time_s: float, rows: Rows, samples: Mapping[Key, Samples]) -> None:
        """End a page at ``rows`` with what its rows brought of every series."""
        self._page += 1
        counts = [rows[table] for table in (*schema.TABLES, "event")]
        page = (self._page, time_s, *counts, len(samples))
        # A checksum over each row: a file that was cut short is noticed where it is.
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
            # What came since the page before: pages have no sample twice.
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
