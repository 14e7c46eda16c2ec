"""Reads a recording's database as untrusted input.

People send recordings to each other, and SQLite executes what a file's schema contains: a view over an endless query,
a computed column, a virtual table of an extension (sqlite.org/security.html). Therefore only plain tables of the
recording's schema are read, and no query runs longer than the file's size justifies.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.recorder import RecordingError

PROGRESS_STEPS = 10_000
"""Interval of the checks on a query, in steps of SQLite's virtual machine (about 0.1 ms)."""

STEPS_PER_BYTE = 16
"""A row takes 13 bytes or more, and some 25 steps to read: this is eight times the cost of the longest honest
query."""

FREE_STEPS = 50_000_000
"""Steps allowed to any query, however small the file is; about half a second."""

LONGEST_SQL = 100_000
"""Longest table definition that is checked, in characters."""

TABLES = frozenset({"meta", "run", "event", "page", "series", "coarse", "digest", *map(str, schema.TABLES)})
"""Tables that are read; a newer recording or its owner may have added others."""

_PLAIN_TABLE = re.compile(
    r'CREATE\s+TABLE\s+"?(\w+)"?\s*\([\w\s,"]+(?:PRIMARY\s+KEY\s*\([\w\s,"]+\)\s*)?\)\s*(?:WITHOUT\s+ROWID\s*)?',
    re.IGNORECASE,
)
"""Only names and types: anything that computes (CHECK, AS) needs a parenthesis of its own."""

_INDEX = re.compile(r'CREATE\s+(?:UNIQUE\s+)?INDEX\s+"?(\w+)"?\s+ON\s', re.IGNORECASE)

_ROW_NUMBERS = re.compile(r"\b(?:rowid|_rowid_|oid|row_number)\b", re.IGNORECASE)

_FUNCTIONS = frozenset({"max", "count", "like"})

_Schema = list[tuple[str, str, str | None]]


class UntrustedDatabase:
    """The tables of a recording, read-only. Queries may come from any thread, one at a time.

    Args:
        path: the file to open: the recording or a copy of it.
        options: parameters of SQLite's URI for the file, such as "mode=ro".

    Raises:
        RecordingError: why it is none, as what follows its name in a sentence.
        sqlite3.Error: if it cannot be read.
    """

    def __init__(self, path: Path, options: str) -> None:
        self.path = path
        self._steps = 0
        self._stopped: Callable[[], bool] | None = None
        self._interrupt: KeyboardInterrupt | None = None
        self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True, check_same_thread=False)
        try:
            self._connection.row_factory = sqlite3.Row
            # Do not run functions used in an untrusted schema.
            self._connection.execute("PRAGMA trusted_schema = OFF")
            # Before the schema is read, since that is a query too.
            self._connection.set_progress_handler(self._ends, PROGRESS_STEPS)
            self._check(*self._schema())
            self._connection.execute("PRAGMA query_only = ON")
            # Last: our own statements before need more than reading.
            self._connection.set_authorizer(_authorise)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def query(
        self, statement: str, parameters: Sequence[Any] = (), stopped: Callable[[], bool] | None = None
    ) -> Iterator[sqlite3.Cursor]:
        """The rows of ``statement``, for the duration of the block.

        Args:
            statement: query on tables of the recording's schema.
            parameters: parameters of the statement.
            stopped: checked from time to time; when it returns true, the query fails.

        Raises:
            sqlite3.Error: if they cannot be read, or the query runs longer than the file's size justifies.
            KeyboardInterrupt: after Ctrl+C; SQLite itself would only report "interrupted".
        """
        self._steps, self._stopped = 0, stopped
        try:
            with closing(self._connection.execute(statement, parameters)) as cursor:
                yield cursor
        except sqlite3.OperationalError:
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                raise interrupt from None
            raise
        finally:
            self._stopped = None

    def _ends(self) -> bool:
        """Whether to abort the query; called by SQLite, which swallows exceptions raised here."""
        try:
            self._steps += PROGRESS_STEPS
            if self._stopped is not None and self._stopped():
                return True
            # The size only matters beyond the steps allowed to any query.
            return self._steps > FREE_STEPS and self._steps > self._most_steps()
        except KeyboardInterrupt as error:
            self._interrupt = error
            return True

    def _most_steps(self) -> int:
        """Computed each time: a recording may grow."""
        return FREE_STEPS + STEPS_PER_BYTE * self.path.stat().st_size

    def _schema(self) -> tuple[_Schema, bool]:
        """Type, name and definition of everything in the schema; and whether SQLite skipped its own checks."""
        try:
            return self._definitions(), False
        except sqlite3.DatabaseError as error:
            if "not a database" in str(error):
                raise RecordingError("is not a recording: it is no SQLite file") from None
            # SQLite refuses a file shorter than its header says, unless the schema is writable (btree.c, lockBtree).
            self._connection.execute("PRAGMA writable_schema = ON")
            # SQLite then does not check definitions, so `_check` examines each.
            return self._definitions(), True

    def _definitions(self) -> _Schema:
        with self.query("SELECT type, name, sql FROM sqlite_master") as cursor:
            return [
                (str(kind), str(name), None if sql is None else str(sql)[:LONGEST_SQL]) for kind, name, sql in cursor
            ]

    def _check(self, found: _Schema, unchecked: bool) -> None:
        """Refuse a file whose tables are not plain tables.

        Raises:
            RecordingError: as for the class.
        """
        if not any(name.lower() == "meta" for kind, name, _sql in found if kind in ("table", "view")):
            raise RecordingError("is not a recording: it is a SQLite file without the table meta")
        for kind, name, sql in found:
            strange = ""
            if kind in ("table", "view") and (unchecked or name.lower() in TABLES):
                strange = _strange(kind, name, sql or "")
            elif unchecked and sql is not None and not _names(_INDEX.match(sql), name):
                strange = f"its {kind} {name:.40} is none that a recording has"
            if strange:
                raise RecordingError(f"is not a recording: {strange}")


def _strange(kind: str, name: str, sql: str) -> str:
    """What makes a table more than names and types of columns, or ""."""
    if kind == "view":
        return f"its {name:.40} is a view, not a table"
    if sql[:20].upper().startswith("CREATE VIRTUAL TABLE"):
        return f"its {name:.40} is a virtual table, not one of the file's own"
    if not _names(_PLAIN_TABLE.fullmatch(sql), name):
        return f"its table {name:.40} is defined by more than names and types of columns"
    # Rows are read by their number: a column of that name would be read instead.
    if _ROW_NUMBERS.search(sql.rpartition(")")[0]):
        return f"a column of its table {name:.40} hides the numbers of the rows"
    return ""


def _names(match: re.Match[str] | None, name: str) -> bool:
    return match is not None and match[1].lower() == name.lower()


def _authorise(action: int, table: str | None, function: str | None, _database: str | None, within: str | None) -> int:
    """Whether a statement is allowed: only reading tables of the schema, and nothing on behalf of a view."""
    if action == sqlite3.SQLITE_SELECT:
        # `within` names the view or trigger that causes the read: neither is allowed.
        allowed = within is None
    elif action == sqlite3.SQLITE_READ:
        allowed = within is None and table is not None and table.lower() in TABLES
    else:
        allowed = action == sqlite3.SQLITE_FUNCTION and function is not None and function.lower() in _FUNCTIONS
    if allowed:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
