"""The tables of a recording, shared by whoever writes and whoever reads one."""

from __future__ import annotations

from typing import get_args

from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Table

FORMAT_VERSION = "1"
"""Major version: a reader refuses a larger one, and reads any file of its own or a smaller one."""

APPLICATION_ID = 0x67706473
"""SQLite's application id of a recording, "gpds", so that ``file`` and we can tell one from another database."""

TABLES: tuple[Table, ...] = get_args(Table)

COLUMNS: dict[Table, tuple[str, ...]] = {
    table: ("time_s", "device", *(metric.name for metric in METRICS[table]), "states") for table in TABLES
}
"""Columns of each reading table, in the order they are written."""


def statements() -> list[str]:
    """What makes an empty recording."""
    readings = [
        f"CREATE TABLE {table} (time_s REAL NOT NULL, device TEXT, "
        + "".join(f"{metric.name} {metric.type}, " for metric in METRICS[table])
        + "states TEXT)"
        for table in TABLES
    ]
    return [
        f"PRAGMA application_id = {APPLICATION_ID}",
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)",
        "CREATE TABLE run (id INTEGER PRIMARY KEY, workload TEXT, spec TEXT, status TEXT, began_s REAL, ended_s REAL)",
        "CREATE TABLE event (time_s REAL NOT NULL, run_id INTEGER, kind TEXT, json TEXT)",
        *readings,
    ]


def insert(table: Table) -> str:
    """The statement that writes a row of a reading table, columns as in `COLUMNS`."""
    return f"INSERT INTO {table} VALUES ({', '.join('?' * len(COLUMNS[table]))})"
