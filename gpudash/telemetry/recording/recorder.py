"""Writes a session to disk as it happens: one SQLite file, committed several times a second.

The file contains summaries, written as it grows, so that a long one is drawn without reading every row. A page ends
every `PAGE_ROWS` rows; it records the last row of each table, the page's samples of every series in buckets, and the
figures of the current run. A reader that does not know these tables just reads the rows.
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
from gpudash.telemetry.recording.lasting_locks import LastingLocks
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.records import Event, Record, RunEnd, RunStarted, Sample, Transfer, plain
from gpudash.telemetry.runs import RunView, run_of
from gpudash.telemetry.series import Floats, summary
from gpudash.telemetry.store import Store

logger = logging.getLogger(__name__)

COMMIT_S = 0.25
"""Longest time between commits, as long as `Recorder.tick` is called."""

COMMIT_ROWS = 1000
"""Number of rows that are committed even without a tick."""

CACHE_KIB = 512
"""Size of SQLite's page cache: rows are only appended, so a larger one would hold pages that are never read."""

WAL_BYTES = 4 * 1024**2
"""Size to which the write-ahead log is truncated; SQLite merges it every 1000 pages (4 MiB)."""

_writing: dict[tuple[int, int], Recorder] = {}
"""The recorder of each file that this process writes, by device and inode. Nothing of ours but SQLite opens and closes
these files, since that drops SQLite's locks on them; `LastingLocks` are for what is not ours."""

LOG_SUFFIX = "-wal"
"""SQLite's suffix for the write-ahead log."""

PAGE_ROWS = 4096
"""Rows of a page. A series keeps at least its newest 7168 samples unmerged, so that none is missed."""

TRANSFER_SAMPLES = 3
"""Samples that a transfer adds to its series; it counts as so many rows."""

WIDEST = 64
"""Most samples of a bucket."""

FEWEST = 8
"""Fewest buckets for a page's samples of a series; if there are fewer samples, they are kept one by one."""

Samples = tuple[Floats, Floats]


class RecordingError(Exception):
    """A recording cannot be written or read. The text is one sentence for the user."""


class _TakenError(RecordingError):
    """A file of that name exists."""


ANSWER_S = 1.0
"""Longest wait for the recorder, which checks four times a second, to write a fact."""


def recorder_of(path: Path) -> Recorder | None:
    """The recorder of ``path`` in this process."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _writing.get((status.st_dev, status.st_ino))


def being_written(path: Path) -> bool:
    """Whether a running gpudash, this one included, writes ``path``; false if the file cannot be opened."""
    try:
        status = path.stat()
        # Our own file: opening and closing it here would drop SQLite's locks (`_writing`).
        if (status.st_dev, status.st_ino) in _writing:
            return True
        with open_regular(path) as file:
            # A recorder holds an exclusive lock as long as it lives; even kill -9 releases it.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@dataclass(slots=True)
class _Request:
    """A fact for the writing thread; once it is `done`, `noted` says whether it was written."""

    key: str
    value: str
    noted: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Recorder:
    """Appends records to a new recording. Belongs to one thread.

    A row costs about 10 µs; committed rows survive ``kill -9`` (SQLite, WAL with synchronous NORMAL). If writing
    fails, for example because the disk is full, `failed` gives the reason and everything else is ignored, so that the
    session can go on; committed rows stay readable.

    The file gets mode 0600, as do SQLite's files next to it; missing folders are created with mode 0700.

    Args:
        path: the file; its folder is created.
        meta: facts of the session by name, stored as text, numbers or JSON. Added here: ``format_version``,
            ``gpudash_version``, ``python_version``, ``host``, ``system``, ``status``; and, unless given,
            ``wall_clock_origin``, session time 0 in ISO 8601.
        may_number: whether to add a number if the name is taken, for names that the user did not choose.

    Raises:
        RecordingError: if the file cannot be created, exists, or is being written by another gpudash.

    Attributes:
        path: the file.
        failed: why recording ended early, in one sentence; ``None`` if it did not.
        annotations: facts added by `annotate`, by key.
    """

    def __init__(self, path: Path, *, meta: Mapping[str, Any], may_number: bool = False) -> None:
        self.failed: str | None = None
        self.annotations: dict[str, str] = {}
        self._connection: sqlite3.Connection | None = None
        self._locks: LastingLocks | None = None
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
            self._locks = LastingLocks(self._lock[0], log_files(self.path)[1])
        except (sqlite3.Error, OSError) as error:
            self._release()
            self.path.unlink(missing_ok=True)
            raise RecordingError(f"{self.path} cannot be written ({_cause(error)}); choose another place") from None
        logger.info("recording to %s", self.path.name)

    def add(self, record: Record) -> None:
        """Write a record. It is safe once committed, which `tick` does.

        Raises:
            OverflowError: if a number is too large for a row; only this record is then missing.
        """
        if self._connection is None:
            return
        try:
            # One transaction for many rows: committing each would cost a disk write.
            if not self._pending:
                self._connection.execute("BEGIN")
            self._pending += 1
            self._newest_s = record.time_s
            if isinstance(record, Sample):
                schema.write(self._connection, self._inserts[record.table], self._row(record))
            else:
                self._event(self._connection, record)
            # In the same transaction: a summary exists exactly if its rows do.
            if self._pages is not None:
                self._pages.added(self._connection, record)
            # Commit the end of a run immediately: the machine may crash next.
            if self._pending >= COMMIT_ROWS or isinstance(record, RunEnd):
                self._commit()
        except (sqlite3.Error, OSError) as error:
            self._fail(error)

    def summarise(self, store: Store) -> None:
        """Also write summaries, which make long recordings open fast. Call it before the first record.

        Args:
            store: receives every record before `add` does, on this thread.
        """
        self._pages = PageWriter(store)

    def tick(self) -> None:
        """Commit if the last commit is long enough ago. Call this at least four times a second."""
        if self._requests:
            self._write_annotations()
        if self._pending and time.monotonic() - self._committed >= COMMIT_S:
            self.commit()

    def commit(self) -> None:
        """Commit everything added so far."""
        try:
            self._commit()
        except (sqlite3.Error, OSError) as error:
            self._fail(error)

    def copy_to(self, target: Path) -> None:
        """Copy the committed rows to ``target``, whole or not at all, while recording goes on. Safe from any thread.

        Raises:
            RecordingError: if ``target`` is the recording itself or cannot be written.
        """
        copy_recording(self.path, target)

    def annotate(self, key: str, value: str) -> bool:
        """Store a fact from the user by name; "" removes it; returns false if recording has ended.

        Safe from any thread: the recorder's own writes it at its next tick or on closing, so that the file has one
        writer.
        """
        request = _Request(key, value)
        # Under the lock: `_release` answers all requests so far, and no more can follow.
        with self._requests_lock:
            if self._connection is None:
                return False
            self._requests.append(request)
        return not request.done.wait(ANSWER_S) or request.noted

    def _write_annotations(self) -> None:
        """Write the requested annotations and commit them."""
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
        # Publish them only after the commit.
        for request in requests:
            request.noted = self._connection is not None
            request.done.set()

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Store facts of the session by name; existing ones are replaced."""
        if self._connection is None:
            return
        rows = [(key, value if isinstance(value, str) else json.dumps(plain(value))) for key, value in facts.items()]
        try:
            for row in rows:
                schema.write(self._connection, "INSERT OR REPLACE INTO meta VALUES (?, ?)", row)
        except (sqlite3.Error, OSError) as error:
            self._fail(error)

    def close(self, status: str = "closed") -> None:
        """Commit, record how the session ended, and leave a single file without a log. Never raises.

        Args:
            status: value of the meta key ``status``. A current run is recorded as "cancelled".
        """
        connection = self._connection
        if connection is None:
            return
        self._write_annotations()
        try:
            self._commit()
            with connection:
                # The current run will not get an end of its own.
                connection.execute("BEGIN")
                connection.execute(
                    "UPDATE run SET status = 'cancelled', ended_s = ? WHERE status = 'running'", (self._newest_s,)
                )
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('status', ?)", (status,))
            # A single file: merge the log and delete it.
            if self._locks is not None:
                self._locks.release_file()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):  # a reader is using the log, which then stays
                self._fail(error)
        except (sqlite3.Error, OSError) as error:
            self._fail(error)
        self._release()
        logger.info("the recording to %s ends: %s", self.path.name, status)

    def _create(self, meta: Mapping[str, Any]) -> None:
        # `isolation_level=None`: sqlite3 must not begin transactions by itself.
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
        self._connection = connection
        # WAL: commits survive kill -9, and readers do not wait for the writer.
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
        row.extend(map(values.get, self._metrics[sample.table]))
        states = sample.states
        # Mostly there are none, and NULL is written.
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
        """Close the file; uncommitted rows are rolled back."""
        with self._requests_lock:  # later requests must open the file themselves
            connection, self._connection = self._connection, None
            requests, self._requests = self._requests, []
        for request in requests:
            request.done.set()
        self._pending = 0
        locks, self._locks = self._locks, None
        if locks is not None:
            locks.release_file()
        if connection is not None:
            # A full disk also prevents the last checkpoint; the log then stays, and readers use it.
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        if locks is not None:
            locks.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            descriptor, identity = lock
            _writing.pop(identity, None)
            os.close(descriptor)


def copy_recording(path: Path, target: Path) -> None:
    """Copy the committed rows of the recording ``path`` to ``target``, whole or not at all; it may have a writer.

    The copy has mode 0600, like every recording.

    Raises:
        RecordingError: if ``target`` is the recording itself or cannot be written.
    """
    if target.resolve() == path.resolve():
        raise RecordingError(f"{target} is the recording itself; choose another name")
    try:
        with (
            written_whole(target, private=True) as part,
            contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            # SQLite's own backup: pages that change meanwhile are copied again.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except (sqlite3.Error, OSError) as error:
        raise RecordingError(f"{target} cannot be written ({_cause(error)}); choose another place") from None


def _claim_free(recorder: Recorder, path: Path) -> tuple[Path, tuple[int, tuple[int, int]]]:
    """Create and lock the first free file with this name, or with a number added."""
    names = schema.numbered(path)
    while True:
        free = next(names)
        with contextlib.suppress(_TakenError):
            return free, _claim(recorder, free)


def _claim(recorder: Recorder, path: Path) -> tuple[int, tuple[int, int]]:
    """Create and lock the file. Its descriptor must stay open as long as SQLite has the file open."""
    try:
        make_private_folder(path.parent)
    except FileExistsError:
        raise RecordingError(
            f"{path} cannot be written ({path.parent} is not a folder); choose another place"
        ) from None
    except OSError as error:
        raise RecordingError(f"{path} cannot be written ({_cause(error)}); choose another place") from None
    try:
        # O_EXCL decides: two gpudash processes may have found the same name free.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise _TakenError(_why_taken(path)) from None
    except OSError as error:
        raise RecordingError(f"{path} cannot be written ({_cause(error)}); choose another place") from None
    with contextlib.suppress(OSError):  # a file system without locks: record without protection
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the file is new: only `being_written` elsewhere can hold it
    status = os.fstat(descriptor)
    identity = (status.st_dev, status.st_ino)
    # Register it before anything is opened: see `_writing`.
    _writing[identity] = recorder
    return descriptor, identity


def _why_taken(path: Path) -> str:
    if not path.exists():
        return f"{path} cannot be made, something of that name is in the way; choose another"
    if being_written(path):
        return f"{path} is being written by another gpudash; choose another name"
    return f"{path} exists already; choose another name or remove it"


def log_files(path: Path) -> tuple[Path, Path]:
    """SQLite's write-ahead log and its index, next to an open or abandoned recording."""
    return path.with_name(path.name + LOG_SUFFIX), path.with_name(path.name + "-shm")


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    else:
        text = str(error)
    return text[:1].lower() + text[1:]


class PageWriter:
    """Writes the summaries of one recording, in the same transactions as its rows. Belongs to the recorder's thread.

    Args:
        store: receives the same records, each before its row is written.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = dict.fromkeys((*schema.TABLES, "event"), 0)
        self._weight = 0
        self._page = 0
        self._ids: dict[Key, int] = {}
        self._taken: dict[Key, int] = {}

    def added(self, connection: sqlite3.Connection, record: Record) -> None:
        """Called after a row was written: writes summaries that are due."""
        if isinstance(record, Sample):
            self._rows[record.table] += 1
            self._weight += 1
        # For a run that ended: its figures are final.
        else:
            self._rows["event"] += 1
            self._weight += TRANSFER_SAMPLES if isinstance(record, Transfer) else 1
            if isinstance(record, RunEnd):
                self._digest(connection, run_of(self._store.runs, record.run_id))
        if self._weight >= PAGE_ROWS:
            self._weight = 0
            # Also at the end of each page: a crash then costs one page's worth of figures, not all.
            self._digest(connection, self._store.run)
            self.write(connection, record.time_s, self._rows, self._new_samples())

    def write(self, connection: sqlite3.Connection, time_s: float, rows: Rows, samples: Mapping[Key, Samples]) -> None:
        """End a page at ``rows``, with its samples of every series."""
        self._page += 1
        counts = [rows[table] for table in (*schema.TABLES, "event")]
        page = (self._page, time_s, *counts, len(samples))
        # A checksum for each row, to locate damage after a truncation.
        connection.execute(f"INSERT INTO page VALUES ({', '.join('?' * (len(page) + 1))})", (*page, crc32(page)))
        coarse = []
        for key, (times, values) in samples.items():
            data = np.ascontiguousarray(summary(times, values, width_of(len(times))).T).tobytes()
            number = self._number(connection, key)
            coarse.append((number, self._page, len(times), crc32((number, self._page, len(times), data)), data))
        connection.executemany("INSERT INTO coarse VALUES (?, ?, ?, ?, ?)", coarse)

    def _new_samples(self) -> dict[Key, Samples]:
        """The samples of each series since the previous page."""
        found = {}
        for key, series in self._store.curves():
            # Only new samples: pages contain no sample twice.
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
        """Store the figures of a run up to row ``event`` of the events."""
        row = (event, run_id, text)
        connection.execute("INSERT INTO digest VALUES (?, ?, ?, ?)", (event, run_id, crc32(row), text))


def width_of(samples: int) -> int:
    """Samples of a bucket, a power of two: small enough that a page with few samples is not drawn in steps."""
    return min(WIDEST, max(1, 1 << (samples // FEWEST).bit_length() >> 1))


def crc32(facts: Iterable[object]) -> int:
    """Checksum of a row's content: strings and bytes as they are, numbers as Python writes them."""
    crc = 0
    for fact in facts:
        crc = zlib.crc32(fact if isinstance(fact, bytes) else repr(fact).encode(), crc)
    return crc
