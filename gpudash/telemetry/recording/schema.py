"""The file name and tables of a recording: shared by writers and readers."""

from __future__ import annotations

import glob
import itertools
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Table

FORMAT_VERSION = "1"
"""Major version: a reader refuses a larger one, and can read its own and all smaller ones."""

APPLICATION_ID = 0x67706473
"""SQLite's application id for a recording, "gpds", by which ``file`` and we recognise it."""

TABLES: tuple[Table, ...] = get_args(Table)

COLUMNS: dict[Table, tuple[str, ...]] = {
    table: ("time_s", "device", *(metric.name for metric in METRICS[table]), "states") for table in TABLES
}
"""Columns of each reading table, in the order of writing."""

Rows = Mapping[str, int]
"""Row numbers by table; the events' is "event"."""

FREQUENT = ("StepFinished", "StageFinished", "Transfer", "Output")
"""Kinds of events that occur by the million; an index finds all others."""

RARE = f"kind NOT IN ({', '.join(map(repr, FREQUENT))})"

RARE_INDEX = "rare_event"

SUFFIX = ".gpudash"

TRACE_SUFFIX = ".trace.json.gz"

_UNFIT = re.compile(r"[^\w.-]+")


def statements() -> list[str]:
    """The statements that create an empty recording."""
    readings = [
        f"CREATE TABLE {table} (time_s REAL NOT NULL, device TEXT, "
        + "".join(f"{metric.name} {metric.type}, " for metric in METRICS[table])
        + "states TEXT)"
        for table in TABLES
    ]
    counts = [f"{table} INTEGER" for table in (*TABLES, "event")]
    summaries = "series INTEGER, page INTEGER, samples INTEGER, crc INTEGER, data BLOB"
    return [
        f"PRAGMA application_id = {APPLICATION_ID}",
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)",
        "CREATE TABLE run (id INTEGER PRIMARY KEY, workload TEXT, spec TEXT, status TEXT, began_s REAL, ended_s REAL)",
        "CREATE TABLE event (time_s REAL NOT NULL, run_id INTEGER, kind TEXT, json TEXT)",
        *readings,
        f"CREATE INDEX {RARE_INDEX} ON event (time_s) WHERE {RARE}",
        f"CREATE TABLE page (id INTEGER PRIMARY KEY, time_s REAL, {', '.join(counts)}, summaries INTEGER, crc INTEGER)",
        'CREATE TABLE series (id INTEGER PRIMARY KEY, "table" TEXT, metric TEXT, device TEXT)',
        f"CREATE TABLE coarse ({summaries}, PRIMARY KEY (series, page)) WITHOUT ROWID",
        "CREATE TABLE digest (event INTEGER, run_id INTEGER, crc INTEGER, json TEXT)",
    ]


def insert(table: Table) -> str:
    """The statement that inserts a row in a reading table, with columns as in `COLUMNS`."""
    return f"INSERT INTO {table} VALUES ({', '.join('?' * len(COLUMNS[table]))})"


def annotate(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Set a key of ``meta``; "" removes it."""
    if value:
        write(connection, "INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    else:
        connection.execute("DELETE FROM meta WHERE key = ?", (key,))


def write(connection: sqlite3.Connection, statement: str, row: Sequence[Any]) -> None:
    """Write a row; invalid UTF-8, which the name of a process may contain, is escaped."""
    try:
        connection.execute(statement, row)
    # Most strings are valid: checking each beforehand would cost more than this.
    except UnicodeEncodeError:
        connection.execute(statement, [_utf8(value) if isinstance(value, str) else value for value in row])


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def recording_name(folder: Path, workload: str, when: datetime | None = None) -> Path:
    """``folder/YYYY-MM-DD-HHMMSS-workload.gpudash``; `numbered` has alternatives if it is taken.

    Args:
        folder: the folder; it need not exist.
        workload: name of the first run's workload, or "monitor"; characters not allowed in a file name become "-".
        when: local time of the beginning; now by default.
    """
    moment = when or datetime.now().astimezone()
    stem = f"{moment:%Y-%m-%d-%H%M%S}-{_UNFIT.sub('-', workload).strip('-.') or 'session'}"
    return folder / f"{stem}{SUFFIX}"


def numbered(path: Path) -> Iterator[Path]:
    """``path``, then the same name with "-2", "-3" and so on, endlessly."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def trace_name(stem: Path, step: int) -> Path:
    """``stem-step-N.trace.json.gz``, numbered from 2 if that is taken: the trace of a profile that starts at step N.

    Args:
        stem: path of its recording without suffix.
    """
    path, number = stem.with_name(f"{stem.name}-step-{step}{TRACE_SUFFIX}"), 2
    while path.exists():
        path = stem.with_name(f"{stem.name}-step-{step}-{number}{TRACE_SUFFIX}")
        number += 1
    return path


def traces_of(recording: Path) -> list[Path]:
    """The traces of profiles that belong to ``recording`` and are next to it; they move with it."""
    return sorted(recording.parent.glob(f"{glob.escape(recording.stem)}-step-*{TRACE_SUFFIX}"))
