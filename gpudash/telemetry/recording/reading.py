"""Reads recordings, skipping damaged parts, even after a crash, a full disk or a truncation. Never changes a file."""

from __future__ import annotations

import heapq
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from gpudash.system.foreign_files import copy_regular, open_regular, reads_within, require_regular
from gpudash.system.foreign_text import json_object
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.recorder import RecordingError, being_written, log_files
from gpudash.telemetry.recording.schema import Rows
from gpudash.telemetry.recording.untrusted_database import UntrustedDatabase
from gpudash.telemetry.records import Event, Record, Sample, State, Table, Value, event_from_json, size_in

MOST_GAPS = 200
"""Most damaged places of a table that are skipped in one pass."""

LARGEST_STEP = 1 << 40
"""Most rows that are skipped to find a readable one."""

LAST_ROWS = 9
"""Number of rows at a table's end whose median time limits how late a row may be."""

LATEST_S = 3600.0
"""How many seconds after the recording's end a row may be; a later one has a damaged time."""

COLUMNS: dict[str, set[str]] = {
    "meta": {"key", "value"},
    "run": {"id", "workload", "spec", "status", "began_s", "ended_s"},
    "event": {"time_s", "run_id", "kind", "json"},
    **{str(table): {"time_s", "device", "states"} for table in schema.TABLES},
}
"""Columns that a table's rows need to be of use: damage may have renamed one."""

LONGEST_S = 3.2e9
"""Longest session in seconds, a hundred years: larger times are invalid."""

FIRST_S = -60.0
"""Earliest time of a row: a rate may cover an interval that began shortly before the session."""

MOST_DEVICES = 4096
"""Most devices of each table that are accepted: the most credible ranks of a program. Each has up to some fifty
curves, and a file of 2 MB can name 50,000 devices."""

R = TypeVar("R", bound=Record)

_KINDS: dict[str, _Kinds] = {"INTEGER": (int,), "REAL": (int, float), "TEXT": (str,)}
"""Types allowed in a column: SQLite does not enforce them, and stores fractions or infinities in integer columns."""

_VERSION = re.compile(r"[0-9]{1,9}")

MOST_OUT_OF_TURN = 512
"""Window in rows in which late rows are sorted: lanes are out of order by a few rows, never by hundreds."""


class KnownDevices:
    """The devices with readings, up to `MOST_DEVICES` in each table."""

    def __init__(self) -> None:
        self._known: dict[str, set[str | None]] = {}

    def admits(self, table: str, device: str | None) -> bool:
        """Whether to accept readings of ``device``: it is known, or there is room for another one."""
        known = self._known.setdefault(table, set())
        if device in known:
            return True
        if len(known) >= MOST_DEVICES:
            return False
        known.add(device)
        return True


class TableReader:
    """The tables of an open recording.

    Attributes:
        path: the file.
        database: its tables, in the file itself or in a copy made after a crash.
        notices: one sentence for each table that could only be read in part.
    """

    def __init__(self, path: Path, database: UntrustedDatabase) -> None:
        self.path = path
        self.notices: list[str] = []
        self.database = database
        self._latest_s: float | None = None
        self._reported: set[str] = set()
        self._devices = KnownDevices()

    def select(self, statement: str, stopped: Callable[[], bool] | None = None) -> list[sqlite3.Row]:
        """The rows of a query; empty if they cannot be read, or ``stopped`` returned true."""
        try:
            with self.database.query(statement, stopped=stopped) as cursor:
                return cursor.fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            return []

    @property
    def latest_s(self) -> float:
        """The latest possible time of a row, by the ends of the tables; later times are damaged."""
        if self._latest_s is None:
            ends = []
            for table in (*schema.TABLES, "event"):
                rows = self.select(f"SELECT time_s FROM {table} ORDER BY rowid DESC LIMIT {LAST_ROWS}")
                times = sorted(row[0] for row in rows if isinstance(row[0], int | float) and row[0] < LONGEST_S)
                # The median of the last few: a single damaged time must not become the end of the recording.
                ends.extend(times[len(times) // 2 : len(times) // 2 + 1])
            if ends:
                self._latest_s = max(ends) + LATEST_S
            else:
                self._latest_s = LONGEST_S
        return self._latest_s

    def timed(self, table: str, after: int, until: int | None) -> Iterator[sqlite3.Row]:
        """Rows of a table of readings or events with plausible content."""
        return self.plausible(table, self.rows(table, after, until))

    def plausible(self, table: str, rows: Iterable[sqlite3.Row]) -> Iterator[sqlite3.Row]:
        """``rows`` without those that cannot have been written.

        SQLite reads the missing part of a truncated page as zeros, and zeros as a row without values. The rows after
        them may be incomplete, so a truncated file is read up to the first such row.
        """
        for row in rows:
            time_s = row["time_s"]
            if not isinstance(time_s, int | float):
                self.damaged(table, "a row has no time")
                # Zeros from a truncation: the rows after them may be incomplete.
                if self._cut_short():
                    return
            elif not FIRST_S <= time_s <= self.latest_s:
                self.damaged(table, "a row has an impossible time")
            elif table != "event" and not isinstance(row["device"], str | None):
                self.damaged(table, "a row has no device")
            elif table == "event" or self.admits(table, row["device"]):
                yield row

    def admits(self, table: str, device: str | None) -> bool:
        """Whether to accept readings of this device; adds a notice if not."""
        if self._devices.admits(table, device):
            return True
        self._note(
            f"devices of {table}",
            f"{self.path} has readings of more than {MOST_DEVICES:,} devices in the table {table}; those of further "
            "ones are left out",
        )
        return False

    def rows(self, table: str, after: int = 0, until: int | None = None) -> Iterator[sqlite3.Row]:
        """Rows of a table without damaged ones; empty if there is no such table."""
        if until is None:
            where = "rowid > ?"
        else:
            where = f"rowid > ? AND rowid <= {until}"
        statement = f"SELECT *, rowid AS row_number FROM {table} WHERE {where} ORDER BY rowid"
        return self.complete(table, self.scan(statement, after, lambda why: self.damaged(table, why)))

    def complete(self, table: str, rows: Iterable[sqlite3.Row]) -> Iterator[sqlite3.Row]:
        """``rows``, unless they lack a required column."""
        missing: set[str] | None = None
        for row in rows:
            if missing is None:
                missing = COLUMNS[table].difference(row.keys())
            if missing:
                self.damaged(table, f"the column {min(missing)} is missing")
                return
            yield row

    def scan(
        self, statement: str, after: int, report: Callable[[str], None] = lambda _why: None
    ) -> Iterator[sqlite3.Row]:
        """The rows of a query without damaged ones.

        Args:
            statement: selects an integer ``row_number``, sorts by it, and finds rows above its one parameter.
            after: first value of the parameter.
            report: callback with the cause when something cannot be read.
        """
        # Continue after the last readable row: each damaged place costs one round.
        row: int | None = after
        for _gap in range(MOST_GAPS):
            try:
                with self.database.query(statement, (row,)) as cursor:
                    for found in cursor:
                        row = found["row_number"]
                        yield found
                return
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    report(str(error))
                return
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                report(str(error))
            row = self._readable_behind(statement, row)
            if row is None:
                return

    def _readable_behind(self, statement: str, row: int | None) -> int | None:
        """The row before the first readable one after the damage at ``row``; ``None`` if there is none."""
        if row is None:
            return None
        bad, step = row, 1
        # Double the step until beyond the damage, then bisect to its end.
        while not self._reads(statement, row + step):
            bad, step = row + step, step * 2
            if step > LARGEST_STEP:
                return None
        good = row + step
        while good - bad > 1:
            middle = (good + bad) // 2
            if self._reads(statement, middle):
                bad, good = (bad, middle)
            else:
                bad, good = (middle, good)
        return good

    def _reads(self, statement: str, row: int) -> bool:
        try:
            with self.database.query(f"{statement} LIMIT 1", (row,)) as cursor:
                return cursor.fetchone() is not None
        except (sqlite3.Error, UnicodeDecodeError):
            return False

    def _cut_short(self) -> bool:
        """Whether the file is shorter than its header says (bytes 16 and 28, sqlite.org/fileformat.html)."""
        if being_written(self.database.path):
            # Closing any descriptor of a file drops the process's POSIX locks (sqlite.org/howtocorrupt.html).
            return False  # do not open it: closing would drop the writer's locks
        with open_regular(self.database.path) as file:
            header = file.read(32)
        # 1 means 65536, which does not fit in two bytes.
        page = int.from_bytes(header[16:18]) or 1
        return self.database.path.stat().st_size < int.from_bytes(header[28:32]) * (65536 if page == 1 else page)

    def damaged(self, table: str, why: str) -> None:
        """Add a notice that part of a table could not be read."""
        self._note(table, f"{self.path} is damaged ({why}); rows of the table {table} are missing")

    def _note(self, what: str, sentence: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self.notices.append(sentence)


_Kinds = tuple[type[int] | type[float] | type[str], ...]


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the recording's list; `status` is "running" if the session ended without closing it."""

    id: int | None
    workload: str
    spec: Mapping[str, Any]
    status: str
    began_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """A reading of one metric. `pid` distinguishes processes of one tick; `state` is "ok" or the reason for a gap."""

    time_s: float
    table: str
    device: str | None
    metric: str
    value: Value
    state: str
    pid: int | None = None


class Recording(TableReader):
    """A recording opened for reading; close it, or use it in a ``with`` statement.

    Attributes:
        path: the file.
        database: its tables, in the file itself or in a copy made after a crash.
        meta: facts by name, as strings.
        runs: the runs in the order they began.
        notices: one sentence for each table that could only be read in part.
    """

    def __init__(
        self, path: Path, database: UntrustedDatabase, folder: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        super().__init__(path, database)
        self._folder = folder
        self.meta: Mapping[str, str] = {str(row["key"]): str(row["value"]) for row in self.rows("meta")}
        self.runs = [run for row in self.rows("run") if (run := self._run(row)) is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.database.close()
        if self._folder is not None:
            self._folder.cleanup()

    def records(self, after: Rows | None = None, until: Rows | None = None) -> Iterator[Record]:
        """Readings and events in order of time: all, or those after rows ``after`` and up to rows ``until``."""
        after = after or {}
        if until is None:
            ends = {}
        else:
            ends = {**dict.fromkeys((*schema.TABLES, "event"), 0), **until}
        streams: list[Iterator[Record]] = [
            _in_order(self.samples(table, after.get(table, 0), ends.get(table))) for table in schema.TABLES
        ]
        events = self.events(after.get("event", 0), ends.get("event"))
        return heapq.merge(_in_order(events), *streams, key=lambda record: record.time_s)

    def events(self, after: int = 0, until: int | None = None) -> Iterator[Event]:
        """Events in the order of writing, with row numbers as in `records`; skips unknown kinds."""
        return self.events_of(self.timed("event", after, until))

    def rare_events(self, until: int, most: int) -> list[Event]:
        """The newest ``most`` events up to row ``until``, without steps, stages, transfers and output."""
        statement = f"SELECT *, rowid AS row_number FROM event {{}} WHERE {schema.RARE} AND rowid <= {until}"
        try:
            # INDEXED BY fails if the index is missing or damaged, instead of scanning the whole table.
            indexed = statement.format(f"INDEXED BY {schema.RARE_INDEX}") + f" ORDER BY time_s DESC LIMIT {most}"
            with self.database.query(indexed) as cursor:
                rows = cursor.fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            # An older recording lacks the index: scan its events.
            rows = [row for row in self.rows("event", 0, until) if row["kind"] not in schema.FREQUENT][-most:]
        rows = [row for row in rows if isinstance(row["row_number"], int)]
        rows.sort(key=lambda row: int(row["row_number"]))
        return list(self.events_of(self.plausible("event", self.complete("event", rows))))

    def samples(self, table: Table, after: int = 0, until: int | None = None) -> Iterator[Sample]:
        """Readings of a table in the order of writing, with row numbers as in `records`."""
        return self._samples(table, self.timed(table, after, until))

    def samples_before(self, table: Table, row: int) -> Iterator[Sample]:
        """Readings of a table up to row ``row``, newest first, as far as they are readable."""
        try:
            statement = f"SELECT * FROM {table} WHERE rowid <= ? ORDER BY rowid DESC"
            with self.database.query(statement, (row,)) as cursor:
                yield from self._samples(table, self.plausible(table, self.complete(table, cursor)))
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if "no such table" not in str(error):  # older recordings have fewer tables
                self.damaged(table, str(error))

    def last_rows(self) -> Rows:
        """The last row of each table of readings and of events."""
        found = {}
        for table in (*schema.TABLES, "event"):
            rows = self.select(f"SELECT max(rowid) FROM {table}")
            if rows and isinstance(rows[0][0], int):
                found[table] = int(rows[0][0])
            else:
                found[table] = 0
        return found

    def first_s(self) -> float:
        """Time of the first record; 0 without records."""
        times: list[float] = []
        for table in (*schema.TABLES, "event"):
            rows = self.select(f"SELECT time_s FROM {table} ORDER BY rowid LIMIT 1")
            times.extend(row[0] for row in rows if isinstance(row[0], int | float) and row[0] >= FIRST_S)
        return min(times, default=0.0)

    def rows_at(self, time_s: float, last: Rows) -> Rows:
        """The rows up to which tables had been written at ``time_s``; a row slightly out of order may come later.

        Args:
            time_s: session time in seconds.
            last: upper limits, as in `last_rows`.
        """
        return {table: self._row_at(table, time_s, row) for table, row in last.items()}

    def another(self) -> Recording:
        """The same recording for another thread; close it before this one.

        Raises:
            RecordingError: if it is no longer readable.
        """
        if self._folder is None:
            return open_recording(self.path)
        return _opened(self.path, self.database.path, "mode=ro", None)

    def _row_at(self, table: str, time_s: float, high: int) -> int:
        low, statement = 0, f"SELECT time_s FROM {table} WHERE rowid >= ? ORDER BY rowid LIMIT 1"
        while low < high:
            # Row times ascend nearly everywhere; an unreadable row counts as too late.
            middle = (low + high + 1) // 2
            try:
                with self.database.query(statement, (middle,)) as cursor:
                    row = cursor.fetchone()
            except sqlite3.Error:
                row = None
            if row is not None and isinstance(row[0], int | float) and row[0] <= time_s:
                low = middle
            else:
                high = middle - 1
        return low

    def events_of(self, rows: Iterable[sqlite3.Row]) -> Iterator[Event]:
        """The events in rows of their table; skips unknown kinds."""
        for row in rows:
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                event = event_from_json(row["json"])
                if isinstance(event.time_s, int | float) and FIRST_S <= event.time_s <= self.latest_s:
                    yield event

    def _samples(self, table: Table, rows: Iterable[sqlite3.Row]) -> Iterator[Sample]:
        known = METRICS[table]
        names: dict[str, _Kinds] | None = None
        for row in rows:
            if names is None:
                there = set(row.keys())
                names = {metric.name: _KINDS[metric.type] for metric in known if metric.name in there}
            yield _sample(table, row, names)

    def export_rows(self, table: Table) -> Iterator[ReadingRow]:
        """Every reading of a table, one metric a row."""
        for sample in self.samples(table):
            pid = sample.values.get("pid")
            for metric, value in sample.values.items():
                if metric == "pid":
                    continue
                if value is not None:
                    state = "ok"
                else:
                    state = sample.states.get(metric, State.STALE).value
                yield ReadingRow(sample.time_s, table, sample.device, metric, value, state, size_in(pid))

    def _run(self, row: sqlite3.Row) -> RunRow | None:
        number, texts = row["id"], (row["workload"], row["status"])
        times = row["began_s"], row["ended_s"]
        if not (
            isinstance(number, int | None)
            and all(isinstance(text, str) for text in texts)
            and isinstance(times[0], int | float)
            and isinstance(times[1], int | float | None)
        ):
            self.damaged("run", "a run has no name or time")
            return None
        return RunRow(number, texts[0], (json_object(row["spec"]) or {}), texts[1], *times)


def open_recording(path: Path) -> Recording:
    """Open a recording for reading, without changing it or writing next to it.

    If a crash left a recording with its log, it is read from a private copy, in which SQLite recovers it.

    Raises:
        RecordingError: in one sentence, if the file is missing, is not a recording, or has a newer major version.
    """
    folder: tempfile.TemporaryDirectory[str] | None = None
    try:
        require_regular(path)
        for log in log_files(path):
            if log.exists():
                require_regular(log)  # SQLite also opens it
        copy, options = path, "mode=ro"
        if reads_within():
            # SQLite opens the file by its name, which may belong to another file by then.
            folder = tempfile.TemporaryDirectory(prefix="gpudash-")
            copy, options = _copy_of_moment(path, Path(folder.name)), "mode=rw"
        # No writer: it can be opened without locks, and a log left by a crash must be recovered.
        elif not being_written(path):
            if any(log.exists() and log.stat().st_size for log in log_files(path)[:1]):
                folder = tempfile.TemporaryDirectory(prefix="gpudash-")
                copy, options = _copy(path, Path(folder.name)), "mode=rw"
            else:
                # `immutable`: SQLite neither locks nor looks for a log, so a read-only folder will do.
                options = "mode=ro&immutable=1"
    except (OSError, ValueError) as error:
        # Runs even if the file or its log disappeared meanwhile: the copy's folder exists by then.
        if folder is not None:
            folder.cleanup()
        if isinstance(error, FileNotFoundError):
            raise RecordingError(f"{error.filename} does not exist") from None
        which = getattr(error, "filename", None) or path
        raise RecordingError(f"{which} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return _opened(path, copy, options, folder)


def _opened(path: Path, copy: Path, options: str, folder: tempfile.TemporaryDirectory[str] | None) -> Recording:
    """The recording ``path``, read from ``copy``, which may be the file itself; closing it deletes ``folder``."""
    database: UntrustedDatabase | None = None
    try:
        database = UntrustedDatabase(copy, options)
        _check_version(database)
        return Recording(path, database, folder)
    except (sqlite3.Error, UnicodeDecodeError, OSError, RecordingError) as error:
        if database is not None:
            database.close()
        if folder is not None:
            folder.cleanup()
        if isinstance(error, RecordingError):
            raise RecordingError(f"{path} {error}") from None
        raise RecordingError(f"{path} cannot be read ({error})") from None


def is_locked(path: Path) -> bool:
    """Whether the recording has the meta key ``locked``; false if it cannot be read."""
    try:
        with open_recording(path) as recording:
            return recording.meta.get("locked", "") not in ("", "0", "false")
    except RecordingError:
        return False


_MOST_COPIES = 5
"""Most attempts to copy a recording whose log is merged meanwhile."""


def _copy_of_moment(path: Path, folder: Path) -> Path:
    """A consistent copy of a recording, which may be in use by a writer."""
    target = folder / "recording"
    for _ in range(_MOST_COPIES):
        before = path.stat().st_mtime_ns
        copy_regular(path, target)
        log_files(target)[0].unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            copy_regular(log_files(path)[0], log_files(target)[0])
        # The file only changes when the log is merged; the copied log then belongs to an older state.
        if path.stat().st_mtime_ns == before:
            break
    return target


def _copy(path: Path, folder: Path) -> Path:
    target = folder / "recording"
    copy_regular(path, target)
    copy_regular(log_files(path)[0], log_files(target)[0])
    return target


def _check_version(database: UntrustedDatabase) -> None:
    """Refuse a recording with an unsupported version; as `UntrustedDatabase`."""
    try:
        with database.query("SELECT value FROM meta WHERE key = 'format_version'") as cursor:
            row = cursor.fetchone()
    except sqlite3.Error:
        raise RecordingError("is not a recording: its table meta has no keys and values") from None
    if row is None:
        version = ""
    else:
        version = str(row[0]).split(".")[0]
    if not _VERSION.fullmatch(version):
        raise RecordingError("is not a recording: it does not say its format version")
    if int(version) > int(schema.FORMAT_VERSION):
        raise RecordingError(
            f"has format {version} and this gpudash reads up to {schema.FORMAT_VERSION}; install a newer gpudash"
        )


def _sample(table: Table, row: sqlite3.Row, names: Mapping[str, _Kinds]) -> Sample:
    text = row["states"]
    states = {}
    if text:
        states = {name: _state(word) for name, word in (json_object(text) or {}).items() if name in names}
    # Only values of the column's type: an untrusted file may contain anything.
    values: dict[str, Value] = {name: value for name, kinds in names.items() if isinstance(value := row[name], kinds)}
    values.update((name, None) for name in names if name in states and name not in values)
    return Sample(row["time_s"], table, row["device"], values, states)


def _state(text: Any) -> State:
    """A state by its text; states of a newer gpudash become "stale", which claims least."""
    try:
        return State(text)
    except ValueError:
        return State.STALE


def _in_order(records: Iterator[R]) -> Iterator[R]:
    """``records``, nearly ascending, sorted by time; equal times keep their order."""
    waiting: list[tuple[float, int, R]] = []
    for number, record in enumerate(records):
        # A sequence number breaks ties, so that records need not be comparable.
        heapq.heappush(waiting, (record.time_s, number, record))
        if len(waiting) > MOST_OUT_OF_TURN:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]
