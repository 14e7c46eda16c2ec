"""Reads recordings, also those that a crash, a full disk or a torn file left behind. Never changes one."""

from __future__ import annotations

import heapq
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from gpudash.telemetry import schema
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.recorder import RecordingError, being_written, log_files
from gpudash.telemetry.records import Event, Record, Sample, State, Table, Value, event_from_json

__all__ = ["ReadingRow", "Recording", "RecordingError", "RunRow", "is_locked", "open_recording"]

R = TypeVar("R", bound=Record)

LOOK_AHEAD = 512
"""Rows of a table within which late ones are put in order: lanes are a few rows, never hundreds, out of turn."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the recording lists it; `status` is "running" when the session ended without closing it."""

    id: int | None
    workload: str
    spec: Mapping[str, Any]
    status: str
    began_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """One reading of one metric. `pid` tells processes of one tick apart; `state` is "ok" or why there is no value."""

    time_s: float
    table: str
    device: str | None
    metric: str
    value: Value
    state: str
    pid: int | None = None


class Recording:
    """A recording opened for reading; close it, or use it in a ``with`` statement.

    Attributes:
        path: the file.
        meta: named facts, as text.
        runs: in the order they began.
        notices: one sentence for each thing that could not be read; what came before it was.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, folder: tempfile.TemporaryDirectory[str] | None):
        self.path = path
        self.notices: list[str] = []
        self._connection = connection
        self._folder = folder
        self.meta: Mapping[str, str] = {str(row["key"]): str(row["value"]) for row in self._rows("meta")}
        self.runs = [_run(row) for row in self._rows("run")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed_properly(self) -> bool:
        """Whether the session that wrote it ended by itself; false while it is on."""
        return self.meta.get("status", "running") != "running"

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
        if self._folder is not None:
            self._folder.cleanup()

    def records(self) -> Iterator[Record]:
        """All readings and events in order of time."""
        streams: list[Iterator[Record]] = [_in_order(self.samples(table)) for table in schema.TABLES]
        return heapq.merge(_in_order(self.events()), *streams, key=lambda record: record.time_s)

    def events(self) -> Iterator[Event]:
        """All events as they were written; those of a kind unknown here are left out."""
        for row in self._timed("event"):
            with suppress(ValueError, KeyError, TypeError):
                yield event_from_json(row["json"])

    def samples(self, table: Table) -> Iterator[Sample]:
        """All readings of a table as they were written."""
        known = [metric.name for metric in METRICS[table]]
        names: list[str] | None = None
        for row in self._timed(table):
            if names is None:
                there = set(row.keys())
                names = [name for name in known if name in there]
            yield _sample(table, row, names)

    def export_rows(self, table: Table) -> Iterator[ReadingRow]:
        """Every reading of a table, one metric a row."""
        for sample in self.samples(table):
            pid = sample.values.get("pid")
            for metric, value in sample.values.items():
                if metric == "pid":
                    continue
                state = "ok" if value is not None else sample.states.get(metric, State.STALE).value
                number = int(pid) if isinstance(pid, int | float) else None
                yield ReadingRow(sample.time_s, table, sample.device, metric, value, state, number)

    def _timed(self, table: str) -> Iterator[sqlite3.Row]:
        """Rows of a table of readings or events, up to the first that cannot be one.

        SQLite reads the missing part of a page cut in two as zeros, and zeros as a row without values.
        """
        for row in self._rows(table):
            if not isinstance(row["time_s"], int | float):
                self._damaged(table, "a row has no time")
                return
            yield row

    def _rows(self, table: str) -> Iterator[sqlite3.Row]:
        """All rows of a table up to the first damage; none when there is no such table."""
        try:
            with closing(self._connection.execute(f"SELECT * FROM {table} ORDER BY rowid")) as cursor:
                yield from cursor
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                self._damaged(table, str(error))
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            self._damaged(table, str(error))

    def _damaged(self, table: str, why: str) -> None:
        sentence = f"{self.path} is damaged ({why}); rows of the table {table} are missing from there on"
        if sentence not in self.notices:
            self.notices.append(sentence)


def open_recording(path: Path) -> Recording:
    """Open a recording for reading; nothing is written beside it, and nothing in it is changed.

    A recording that a crash left with its log is read from a private copy, in which SQLite recovers it.

    Raises:
        RecordingError: in one sentence, when the file is missing, is no recording, or is of a newer major version.
    """
    if not path.is_file():
        raise RecordingError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    folder: tempfile.TemporaryDirectory[str] | None = None
    connection: sqlite3.Connection | None = None
    try:
        source, options = path, "mode=ro"
        if not being_written(path):
            if any(log.exists() and log.stat().st_size for log in log_files(path)[:1]):
                folder = tempfile.TemporaryDirectory(prefix="gpudash-")
                source, options = _copy(path, Path(folder.name)), "mode=rw"
            else:
                options = "mode=ro&immutable=1"
        connection = sqlite3.connect(f"{source.resolve().as_uri()}?{options}", uri=True, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        _check(path, connection)
        return Recording(path, connection, folder)
    except (sqlite3.Error, UnicodeDecodeError, OSError, RecordingError) as error:
        if connection is not None:
            connection.close()
        if folder is not None:
            folder.cleanup()
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"{path} cannot be read ({error})") from None


def is_locked(path: Path) -> bool:
    """Whether the recording has the meta key ``locked``; one that cannot be read counts as not."""
    try:
        with open_recording(path) as recording:
            return recording.meta.get("locked", "") not in ("", "0", "false")
    except RecordingError:
        return False


def _copy(path: Path, folder: Path) -> Path:
    target = folder / "recording"
    shutil.copyfile(path, target)
    shutil.copyfile(log_files(path)[0], log_files(target)[0])
    return target


def _check(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse what is not a recording, or one that this version does not understand."""
    try:
        tables = _tables(connection)
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error):
            raise RecordingError(f"{path} is not a recording: it is no SQLite file") from None
        # SQLite refuses a file shorter than its header says, unless the schema may be written (btree.c, lockBtree).
        connection.execute("PRAGMA writable_schema = ON")
        tables = _tables(connection)
    if "meta" not in tables:
        raise RecordingError(f"{path} is not a recording: it is a SQLite file without the table meta")
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = 'format_version'").fetchone()
    except sqlite3.Error:
        raise RecordingError(f"{path} is not a recording: its table meta has no keys and values") from None
    version = None if row is None else str(row[0]).split(".")[0]
    if version is None or not version.isdecimal():
        raise RecordingError(f"{path} is not a recording: it does not say its format version")
    if int(version) > int(schema.FORMAT_VERSION):
        raise RecordingError(
            f"{path} has format {version} and this gpudash reads up to {schema.FORMAT_VERSION}; install a newer gpudash"
        )


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _run(row: sqlite3.Row) -> RunRow:
    return RunRow(row["id"], row["workload"], _mapping(row["spec"]), row["status"], row["began_s"], row["ended_s"])


def _sample(table: Table, row: sqlite3.Row, names: list[str]) -> Sample:
    states = {name: _state(text) for name, text in _mapping(row["states"]).items() if name in names}
    values = {name: row[name] for name in names if isinstance(row[name], int | float | str)}
    values.update((name, None) for name in names if name in states and name not in values)
    return Sample(row["time_s"], table, row["device"], values, states)


def _state(text: Any) -> State:
    """A state by its words; one that only a newer gpudash knows reads as "stale", which claims least."""
    try:
        return State(text)
    except ValueError:
        return State.STALE


def _mapping(text: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _in_order(records: Iterator[R]) -> Iterator[R]:
    """``records``, nearly ascending, in order of time; equal times keep their order."""
    waiting: list[tuple[float, int, R]] = []
    for number, record in enumerate(records):
        heapq.heappush(waiting, (record.time_s, number, record))
        if len(waiting) > LOOK_AHEAD:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]
