"""Recordings made to do harm: what their schemas would compute, or repeat without end, is never run."""

from __future__ import annotations

import signal
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpudash.session import Replay
from gpudash.session.recordings.comparing.comparison_loader import load_run
from gpudash.session.report import write_report
from gpudash.telemetry.export.writing import export
from gpudash.telemetry.recording.facts import read_facts, set_title
from gpudash.telemetry.recording.pages import Pages
from gpudash.telemetry.recording.reading import is_locked, open_recording
from gpudash.telemetry.recording.recorder import RecordingError
from tests.unit.telemetry.recordings import record

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"

COLUMNS = "time_s REAL, device TEXT, used_bytes INTEGER, states TEXT"

HOSTILE = {
    "a view over an endless query": (
        f"CREATE VIEW gpu AS {ENDLESS} SELECT i AS time_s, '' AS device, 1 AS used_bytes, NULL AS states FROM n",
        "its gpu is a view, not a table",
    ),
    "a view in other letters": (f"CREATE VIEW GPU AS {ENDLESS} SELECT i AS time_s FROM n", "its GPU is a view"),
    "a generated column": (
        f"CREATE TABLE gpu ({COLUMNS}, power_w REAL AS (length(hex(zeroblob(300000000)))))",
        "its table gpu is defined by more than names and types",
    ),
    "a generated column behind a comment": (
        f"CREATE TABLE gpu ({COLUMNS}, power_w REAL AS --, PRIMARY KEY\n(1+1))",
        "its table gpu is defined by more than names and types",
    ),
    "an expensive check": (
        f"CREATE TABLE gpu ({COLUMNS}, CHECK (length(hex(zeroblob(300000000))) > 0))",
        "its table gpu is defined by more than names and types",
    ),
    "a virtual table": (
        "CREATE VIRTUAL TABLE gpu USING fts4(time_s, device, used_bytes, states)",
        "its gpu is a virtual table",
    ),
    "a column that hides the numbers of the rows": (
        f"CREATE TABLE gpu ({COLUMNS}, rowid TEXT)",
        "hides the numbers of the rows",
    ),
}

READERS: dict[str, Callable[[Path], object]] = {
    "export": lambda path: _exported(path),
    "report": lambda path: write_report(path, path.with_suffix(".html"), force=True),
    "compare": load_run,
    "replay": lambda path: Replay(path).close(),
    "summaries": lambda path: _summaries(path),
    "title": lambda path: set_title(path, "mine"),
}


def _exported(path: Path) -> None:
    with open_recording(path) as recording:
        export(recording, "csv", path.with_suffix(".csv"), force=True)


def _summaries(path: Path) -> None:
    with open_recording(path) as recording:
        Pages(recording)


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return record(tmp_path / "a.gpudash", device="cuda:0")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("attack", HOSTILE)
def test_a_table_that_computes_is_refused_in_one_sentence_by_every_reader(path: Path, attack: str, reader: str) -> None:
    statement, words = HOSTILE[attack]
    change(path, "DROP TABLE gpu", statement)
    with pytest.raises(RecordingError, match=words) as caught:
        READERS[reader](path)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize("attack", HOSTILE)
def test_the_library_says_what_is_wrong_with_such_a_recording(path: Path, attack: str) -> None:
    statement, words = HOSTILE[attack]
    change(path, "DROP TABLE gpu", statement)
    assert words in read_facts(path).damage
    assert not is_locked(path)


@pytest.mark.parametrize("table", ["meta", "run", "event", "page", "series", "coarse", "digest", "host", "rank"])
def test_no_table_of_a_recording_may_be_a_view(path: Path, table: str) -> None:
    change(path, f"DROP TABLE {table}", f"CREATE VIEW {table} AS {ENDLESS} SELECT i FROM n")
    with pytest.raises(RecordingError, match=f"its {table} is a view, not a table"):
        open_recording(path)


def test_a_definition_under_another_name_is_found_in_a_file_cut_short(path: Path) -> None:
    """SQLite takes a schema that may be written as it is: a view can be listed under any type and name."""
    view = f"CREATE VIEW gpu AS {ENDLESS} SELECT i AS time_s, NULL AS device, NULL AS states FROM n"
    change(
        path,
        "DROP TABLE gpu",
        "PRAGMA writable_schema = ON",
        f"INSERT INTO sqlite_master VALUES ('table', 'harmless', 'harmless', 0, '{view}')",
    )
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 1024])
    with pytest.raises(RecordingError, match="its table harmless is defined by more than names and types"):
        open_recording(path)


def test_what_the_owner_adds_beside_the_tables_is_neither_read_nor_refused(path: Path) -> None:
    change(
        path,
        f"CREATE VIEW mine AS {ENDLESS} SELECT i FROM n",
        "CREATE INDEX by_device ON gpu (device)",
        "CREATE TRIGGER late AFTER INSERT ON gpu BEGIN DELETE FROM gpu; END",
    )
    with open_recording(path) as recording:
        assert sum(1 for _ in recording.records()) > 20
        assert recording.notices == []
        for statement in ("SELECT * FROM mine", "SELECT name FROM sqlite_master", f"{ENDLESS} SELECT i FROM n"):
            assert recording.select(statement) == []


def test_nothing_is_written_through_a_recording_that_is_read(path: Path) -> None:
    with open_recording(path) as recording:
        for statement in ("DELETE FROM gpu", "CREATE TABLE more (x)", "PRAGMA writable_schema = ON", "ATTACH '' AS x"):
            assert recording.select(statement) == []
        assert len(list(recording.samples("gpu"))) == 22


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE TRIGGER t AFTER INSERT ON meta BEGIN INSERT INTO mine SELECT i FROM ({ENDLESS} SELECT i FROM n); END",
        "CREATE INDEX expensive ON meta (length(hex(value)))",
    ],
)
def test_a_recording_that_would_run_something_when_it_is_changed_is_left_as_it_is(path: Path, statement: str) -> None:
    change(path, "CREATE TABLE mine (i)", statement)
    with pytest.raises(RecordingError, match="holds triggers or indexes of its own and is left as it is"):
        set_title(path, "mine")


def test_a_table_whose_pages_repeat_each_other_ends_with_a_sentence(path: Path) -> None:
    repeat_pages(path, "gpu")
    with open_recording(path) as recording:
        assert recording.select("SELECT count(time_s) FROM gpu") == []
        assert next(recording.samples("host")).values


def test_ctrl_c_ends_a_query(path: Path) -> None:
    repeat_pages(path, "gpu")

    def pressed() -> bool:
        signal.raise_signal(signal.SIGINT)
        return False

    with open_recording(path) as recording:
        with pytest.raises(KeyboardInterrupt):
            recording.select("SELECT count(time_s) FROM gpu", pressed)
        assert recording.select("SELECT count(*) FROM host")[0][0] == 11


def repeat_pages(path: Path, table: str, levels: int = 12) -> None:
    """Put pages above a table's own page, each of which refers to the one below 300 times (fileformat2.html)."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        size = int(connection.execute("PRAGMA page_size").fetchone()[0])
        pages = int(connection.execute("PRAGMA page_count").fetchone()[0])
        root = int(connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0])
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (pages + levels, table))
    data = bytearray(path.read_bytes())
    child, cells = root, 300
    for _ in range(levels):
        cell = struct.pack(">IB", child, 1)
        start = size - cells * len(cell)
        head = struct.pack(">BHHHBI", 5, 0, cells, start, 0, child)
        places = b"".join(struct.pack(">H", start + number * len(cell)) for number in range(cells))
        data += (head + places).ljust(start, b"\0") + cell * cells
        child = len(data) // size
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)
