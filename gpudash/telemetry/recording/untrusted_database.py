"""A recording's database, read as something that a stranger may have made.

People send recordings to each other, and SQLite runs what a file's schema says: a view over a query without end, a
column that a function computes, a table that an extension makes up (sqlite.org/security.html). So nothing but plain
tables of the recording's schema is read, and no query goes on for longer than the file has rows.
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
"""Steps of SQLite's machine (about 0.1 ms) after which a query asks whether it may go on."""

STEPS_PER_BYTE = 16
"""A row takes 13 bytes or more, and reading one some 25 steps: eight times what the longest honest query takes."""

FREE_STEPS = 50_000_000
"""Steps that any query may take, however small the file is; about half a second."""

LONGEST_SQL = 100_000
"""Characters of a table's definition that are looked at."""

TABLES = frozenset(
    {"meta", "run", "event", "page", "series", "coarse", "digest", *(str(table) for table in schema.TABLES)}
)
"""What is read of a file; a newer recording or its owner may have put more beside it."""

_PLAIN_TABLE = re.compile(
    r'CREATE\s+TABLE\s+"?(\w+)"?\s*\([\w\s,"]+(?:PRIMARY\s+KEY\s*\([\w\s,"]+\)\s*)?\)\s*(?:WITHOUT\s+ROWID\s*)?',
    re.IGNORECASE,
)
"""Names and types alone: whatever computes something (CHECK, AS) needs a parenthesis of its own."""

_INDEX = re.compile(r'CREATE\s+(?:UNIQUE\s+)?INDEX\s+"?(\w+)"?\s+ON\s', re.IGNORECASE)

_ROW_NUMBERS = re.compile(r"\b(?:rowid|_rowid_|oid|row_number)\b", re.IGNORECASE)

_FUNCTIONS = frozenset({"max", "count", "like"})

_Schema = list[tuple[str, str, str | None]]


class UntrustedDatabase:
    """The tables of a recording, for reading alone. Queries may come from any thread, one at a time.

    Args:
        path: the recording, as sentences call it.
        source: the file that is opened: the recording or a copy of it.
        options: of SQLite's address of the file, such as "mode=ro".

    Raises:
        RecordingError: one sentence, when it is no recording, or one whose tables are not plain tables.
        sqlite3.Error: when it cannot be read.
    """

    def __init__(self, path: Path, source: Path, options: str) -> None:
        self._path = path
        self._source = source
        self._steps = 0
        self._stopped: Callable[[], bool] | None = None
        self._interrupt: KeyboardInterrupt | None = None
        self._connection = sqlite3.connect(f"{source.resolve().as_uri()}?{options}", uri=True, check_same_thread=False)
        try:
            self._connection.row_factory = sqlite3.Row
            # Functions in a schema that the file's maker wrote are not run.
            self._connection.execute("PRAGMA trusted_schema = OFF")
            # Before the schema is read: that is a query as well.
            self._connection.set_progress_handler(self._ends, PROGRESS_STEPS)
            self._check(*self._schema())
            self._connection.execute("PRAGMA query_only = ON")
            # Last: the statements before are ours and need more than reading.
            self._connection.set_authorizer(_authorise)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @contextmanager
    def query(
        self, statement: str, parameters: Sequence[Any] = (), stopped: Callable[[], bool] | None = None
    ) -> Iterator[sqlite3.Cursor]:
        """The rows that ``statement`` finds, while the block is on.

        Args:
            statement: reads tables of the recording's schema.
            parameters: its parameters.
            stopped: asked now and then; once it says yes, the query ends with an error.

        Raises:
            sqlite3.Error: when they cannot be read, or the query goes on for longer than the file has rows.
            KeyboardInterrupt: when Ctrl+C came meanwhile; SQLite itself would only say "interrupted".
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
        """Whether the query has to end; called by SQLite, which swallows whatever is raised here."""
        try:
            self._steps += PROGRESS_STEPS
            if self._stopped is not None and self._stopped():
                return True
            # The size is asked for only beyond what any query may take.
            return self._steps > FREE_STEPS and self._steps > self._most_steps()
        except KeyboardInterrupt as error:
            self._interrupt = error
            return True

    def _most_steps(self) -> int:
        """Anew each time: a recording that is being written grows."""
        return FREE_STEPS + STEPS_PER_BYTE * self._source.stat().st_size

    def _schema(self) -> tuple[_Schema, bool]:
        """Type, name and definition of all there is; and whether definitions are taken without SQLite's own checks."""
        try:
            return self._definitions(), False
        except sqlite3.DatabaseError as error:
            if "not a database" in str(error):
                raise RecordingError(f"{self._path} is not a recording: it is no SQLite file") from None
            # SQLite refuses a file shorter than its header says, unless the schema may be written (btree.c, lockBtree).
            self._connection.execute("PRAGMA writable_schema = ON")
            # Definitions come from the file unchecked then, and each is looked at (`_check`).
            return self._definitions(), True

    def _definitions(self) -> _Schema:
        with self.query("SELECT type, name, sql FROM sqlite_master") as cursor:
            return [
                (str(kind), str(name), None if sql is None else str(sql)[:LONGEST_SQL]) for kind, name, sql in cursor
            ]

    def _check(self, found: _Schema, unchecked: bool) -> None:
        """Refuse a file whose tables are not what they seem.

        Raises:
            RecordingError: one sentence.
        """
        if not any(name.lower() == "meta" for kind, name, _sql in found if kind in ("table", "view")):
            raise RecordingError(f"{self._path} is not a recording: it is a SQLite file without the table meta")
        for kind, name, sql in found:
            strange = ""
            if kind in ("table", "view") and (unchecked or name.lower() in TABLES):
                strange = _strange(kind, name, sql or "")
            elif unchecked and sql is not None and not _names(_INDEX.match(sql), name):
                strange = f"its {kind} {name:.40} is none that a recording has"
            if strange:
                raise RecordingError(f"{self._path} is not a recording: {strange}")


def _strange(kind: str, name: str, sql: str) -> str:
    """What makes a table more than names and types of columns, or ""."""
    if kind == "view":
        return f"its {name:.40} is a view, not a table"
    if sql[:20].upper().startswith("CREATE VIRTUAL TABLE"):
        return f"its {name:.40} is a virtual table, not one of the file's own"
    if not _names(_PLAIN_TABLE.fullmatch(sql), name):
        return f"its table {name:.40} is defined by more than names and types of columns"
    # Rows are read by their numbers: a column of that name would be read in their place.
    if _ROW_NUMBERS.search(sql.rpartition(")")[0]):
        return f"a column of its table {name:.40} hides the numbers of the rows"
    return ""


def _names(match: re.Match[str] | None, name: str) -> bool:
    return match is not None and match[1].lower() == name.lower()


def _authorise(action: int, table: str | None, function: str | None, _database: str | None, within: str | None) -> int:
    """Whether a statement may be prepared: it reads tables of the schema, and nothing that a view reads for it."""
    if action == sqlite3.SQLITE_SELECT:
        # `within` names the view or trigger that a read is for: nothing of the kind is allowed.
        allowed = within is None
    elif action == sqlite3.SQLITE_READ:
        allowed = within is None and table is not None and table.lower() in TABLES
    else:
        allowed = action == sqlite3.SQLITE_FUNCTION and function is not None and function.lower() in _FUNCTIONS
    if allowed:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
