"""Reads the rows of a recording's tables, around whatever is damaged in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.recorder import being_written
from gpudash.telemetry.recording.untrusted_database import UntrustedDatabase

MOST_GAPS = 200
"""Damaged places of a table that are stepped over in one reading of it."""

LARGEST_STEP = 1 << 40
"""Rows that are stepped over at most to find one that can be read again."""

LAST_ROWS = 9
"""Rows at the end of a table whose middle time tells how late a row may be."""

LATEST_S = 3600.0
"""Seconds that a row may be later than the end of the recording; one that is has a damaged time."""

COLUMNS: dict[str, set[str]] = {
    "meta": {"key", "value"},
    "run": {"id", "workload", "spec", "status", "began_s", "ended_s"},
    "event": {"time_s", "run_id", "kind", "json"},
    **{str(table): {"time_s", "device", "states"} for table in schema.TABLES},
}
"""Columns without which a table's rows say nothing: damage can rename one."""

LONGEST_S = 3.2e9
"""A session's longest time, a hundred years: beyond, it is no time."""

FIRST_S = -60.0
"""The earliest time that a row can have: rates are told for what began a little before the session."""


class TableReader:
    """The tables of an open recording.

    Attributes:
        path: the file.
        source: what is read: the file, or a copy of what a crash left.
        notices: one sentence for each table of which something could not be read; the rest of it was.
    """

    def __init__(self, path: Path, source: Path, database: UntrustedDatabase) -> None:
        self.path = path
        self.source = source
        self.notices: list[str] = []
        self._database = database
        self._latest_s: float | None = None
        self._told: set[str] = set()

    def select(self, statement: str, stopped: Callable[[], bool] | None = None) -> list[sqlite3.Row]:
        """The rows a query finds; none where they cannot be read, or ``stopped`` came true meanwhile."""
        try:
            with self._database.query(statement, stopped=stopped) as cursor:
                return cursor.fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            return []

    @property
    def latest_s(self) -> float:
        """The latest time that a row can have, by the ends of the tables; later ones are damaged."""
        if self._latest_s is None:
            ends = []
            for table in (*schema.TABLES, "event"):
                rows = self.select(f"SELECT time_s FROM {table} ORDER BY rowid DESC LIMIT {LAST_ROWS}")
                times = sorted(row[0] for row in rows if isinstance(row[0], int | float) and row[0] < LONGEST_S)
                ends.extend(times[len(times) // 2 : len(times) // 2 + 1])
            self._latest_s = max(ends) + LATEST_S if ends else LONGEST_S
        return self._latest_s

    def timed(self, table: str, after: int, until: int | None) -> Iterator[sqlite3.Row]:
        """Rows of a table of readings or events that can be some."""
        return self.plausible(table, self.rows(table, after, until))

    def plausible(self, table: str, rows: Iterable[sqlite3.Row]) -> Iterator[sqlite3.Row]:
        """``rows`` without those that cannot have been written.

        SQLite reads the missing part of a page cut in two as zeros, and zeros as a row without values; what follows
        there may be half a row, so that a file that was cut short is read up to the first of them.
        """
        for row in rows:
            time_s = row["time_s"]
            if not isinstance(time_s, int | float):
                self.damaged(table, "a row has no time")
                if self._cut_short():
                    return
            elif not FIRST_S <= time_s <= self.latest_s:
                self.damaged(table, "a row has an impossible time")
            elif table != "event" and not isinstance(row["device"], str | None):
                self.damaged(table, "a row has no device")
            else:
                yield row

    def rows(self, table: str, after: int = 0, until: int | None = None) -> Iterator[sqlite3.Row]:
        """Rows of a table, damaged places left out; none when there is no such table."""
        where = "rowid > ?" if until is None else f"rowid > ? AND rowid <= {until}"
        statement = f"SELECT *, rowid AS row_number FROM {table} WHERE {where} ORDER BY rowid"
        return self.complete(table, self.scan(statement, after, lambda why: self.damaged(table, why)))

    def complete(self, table: str, rows: Iterable[sqlite3.Row]) -> Iterator[sqlite3.Row]:
        """``rows``, unless they lack a column that the table must have."""
        missing: set[str] | None = None
        for row in rows:
            if missing is None:
                missing = COLUMNS[table].difference(row.keys())
            if missing:
                self.damaged(table, f"the column {min(missing)} is missing")
                return
            yield row

    def scan(
        self, statement: str, after: int, tell: Callable[[str], None] = lambda _why: None
    ) -> Iterator[sqlite3.Row]:
        """The rows a query finds, damaged places left out.

        Args:
            statement: names a number ``row_number``, by which it sorts, and finds those above its one parameter.
            after: the parameter at first.
            tell: called with the cause when something could not be read.
        """
        row: int | None = after
        for _gap in range(MOST_GAPS):
            try:
                with self._database.query(statement, (row,)) as cursor:
                    for found in cursor:
                        row = found["row_number"]
                        yield found
                return
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    tell(str(error))
                return
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                tell(str(error))
            row = self._readable_behind(statement, row)
            if row is None:
                return

    def _readable_behind(self, statement: str, row: int | None) -> int | None:
        """The row before the first one that can be read behind the damage at ``row``; ``None`` when there is none."""
        if row is None:
            return None
        bad, step = row, 1
        while not self._reads(statement, row + step):
            bad, step = row + step, step * 2
            if step > LARGEST_STEP:
                return None
        good = row + step
        while good - bad > 1:
            middle = (good + bad) // 2
            bad, good = (bad, middle) if self._reads(statement, middle) else (middle, good)
        return good

    def _reads(self, statement: str, row: int) -> bool:
        try:
            with self._database.query(f"{statement} LIMIT 1", (row,)) as cursor:
                return cursor.fetchone() is not None
        except (sqlite3.Error, UnicodeDecodeError):
            return False

    def _cut_short(self) -> bool:
        """Whether the file is shorter than its header says (bytes 16 and 28, sqlite.org/fileformat.html)."""
        if being_written(self.source):
            return False  # and closing a descriptor of it would drop the writer's locks
        with self.source.open("rb") as file:
            header = file.read(32)
        page = int.from_bytes(header[16:18]) or 1
        return self.source.stat().st_size < int.from_bytes(header[28:32]) * (65536 if page == 1 else page)

    def damaged(self, table: str, why: str) -> None:
        """Note that something of a table could not be read."""
        if table not in self._told:
            self._told.add(table)
            self.notices.append(f"{self.path} is damaged ({why}); rows of the table {table} are missing")
