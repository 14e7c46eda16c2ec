"""Recordings that are damaged, half written, cut short, or hold impossible numbers: what can be read is shown, the
rest is said in a sentence, by a `Replay` and by every command."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run as gpudash
from gpudash.session import Replay
from gpudash.session.recordings import loading
from gpudash.telemetry.recording.facts import read_facts
from gpudash.telemetry.recording.recorder import Recorder, RecordingError, log_files
from gpudash.telemetry.records import (
    EpochFinished,
    Marker,
    Note,
    Output,
    Record,
    RunEnd,
    RunStarted,
    Sample,
    StageFinished,
    StepFinished,
    Warning,
)
from gpudash.telemetry.store import Store
from gpudash.units import GIB, MIB
from tests.unit.session.recordings import records, write
from tests.unit.telemetry.copies import copied

TICKS = 200
PAGE = 4096
CASES = 240
KEY = ("host", "used_bytes", None)

UUID = "GPU-1"

GPU = {"nvml_index": 0, "uuid": UUID, "pci_bus_id": "41:00.0", "product": "X", "total_bytes": 24 * GIB}

RESULT = {
    "memory": {"peak_allocated_bytes": MIB, "peak_reserved_bytes": MIB, "capacity_bytes": GIB},
    "rates": [
        {
            "from": "cpu",
            "to": "cuda:0",
            "memory": "pinned",
            "blocking": True,
            "block_bytes": MIB,
            "bytes_per_second_median": 1e9,
            "bytes_per_second_iqr": 1e7,
        }
    ],
    "unigram_entropy": 3.0,
    "parameters": 826_208,
    "corpus": {"source": "text", "bytes": MIB, "sha256": "ab"},
    "placement": {"groups": {"parameters": {"cuda:0": {"bytes": 5}}}, "strays": []},
    "ranks": [{"rank": 0, "host": "a", "device": "cuda:0", "seconds": 1.0}],
}

RECORDS: list[Record] = [
    Note(time_s=0.0, topic="gpus", text="", details={"gpus": [GPU], "torch_names": {"cuda:0": UUID}}),
    RunStarted(time_s=0.5, run_id=1, workload="training", device="cuda:0", spec={"steps": 2}),
    Note(
        time_s=0.6, run_id=1, topic="ranks", text="two", details={"run": "a", "world_size": 2, "ranks": [{"rank": 0}]}
    ),
    Output(time_s=0.7, run_id=1, stream="stdout", lines=["a"]),
    StageFinished(time_s=0.8, run_id=1, name="move", seconds=0.1, bytes=5, shape=[2, 3], first_values=[0.1, 0.2]),
    copied(0.9, 5, 0.1),
    *(
        record
        for step in range(1, 3)
        for record in (
            Sample(float(step), "host", None, {"total_bytes": GIB, "used_bytes": MIB, "process_bytes": MIB}),
            Sample(float(step), "gpu", UUID, {"total_bytes": GIB, "used_bytes": MIB, "power_w": 5.0}),
            Sample(float(step), "allocator", "cuda:0", {"allocated_bytes": 5, "reserved_bytes": 6}),
            Sample(float(step), "process", UUID, {"pid": 4711, "name": "python", "memory_bytes": 5}),
            StepFinished(time_s=float(step), run_id=1, step=step, steps=2, seconds=0.5, loss=1.0, throughput=8.0),
        )
    ),
    EpochFinished(time_s=3.0, run_id=1, epoch=1, device="cuda:0", loss=1.0, accuracy=0.5, seconds=2.0, observation="o"),
    Warning(time_s=3.0, run_id=1, level="warning", device=UUID, text="full", ratio=0.9, actions=["stop"]),
    Marker(time_s=3.5, label="here"),
    RunEnd(time_s=4.0, run_id=1, status="finished", seconds=3.0, steps=2, result=RESULT),
]

IMPOSSIBLE = {
    "an infinity": "inf",
    "a word": "later",
    "nothing": None,
    "less than nothing": -5,
    "an integer of 300 digits": 10**300,
    "a list": [[1, "x"]],
    "an object": {"a": {}},
    "yes": True,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A recording of about 750 rows, with pages of summaries."""
    path = tmp_path_factory.mktemp("whole") / "whole.gpudash"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 128)
        write(path, records(TICKS))
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.gpudash"


def read_summaries(patch: pytest.MonkeyPatch) -> None:
    """Have recordings of these tests count as long."""
    patch.setattr(loading, "WHOLE_ROWS", 100)
    patch.setattr(loading, "TAIL_ROWS", 250)


def flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 20)):
        data[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data) // 10, len(data)) :]


def zero_a_page(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(2, len(data) // PAGE) * PAGE
    data[at : at + PAGE] = bytes(PAGE)


def overwrite(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(200, len(data) - 500)
    data[at : at + 500] = chance.randbytes(500)


DAMAGE: list[Callable[[bytearray, random.Random], None]] = [flip, cut, zero_a_page, overwrite]


@pytest.mark.parametrize("from_summaries", [False, True])
def test_whatever_is_damaged_there_is_a_picture_or_a_sentence_and_the_file_stays_as_it_is(
    path: Path, whole: bytes, from_summaries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if from_summaries:
        read_summaries(monkeypatch)
    opened, told, most = 0, 0, 0
    for case in range(CASES // 2):
        chance, data = random.Random(case), bytearray(whole)
        DAMAGE[case % len(DAMAGE)](data, chance)
        path.write_bytes(data)
        before = hashlib.sha256(data).digest()
        refused = ""
        try:
            replay = Replay(path)
        except RecordingError as error:
            refused = str(error)
            assert refused
        else:
            look_everywhere(replay)
            opened += 1
            told += bool(replay.notices)
            assert all("\n" not in notice for notice in replay.notices)
            series = replay.store.series(*KEY)
            most = max(most, 0 if series is None else len(series))
            assert replay.close()
        assert "\n" not in refused
        assert hashlib.sha256(path.read_bytes()).digest() == before
        assert list(path.parent.glob("a.gpudash*")) == [path]
    assert opened > CASES // 2 * 0.7
    assert told > opened * 0.3
    assert most == TICKS


def look_everywhere(replay: Replay) -> None:
    """What a window asks of a replay."""
    low, high = replay.extent_s
    assert high < 1e5
    for part in (0.2, 0.9, 0.5):
        replay.seek(low + part * (high - low))
        replay.devices()
        replay.store.processes("GPU-0")
        for _key, series in replay.store.curves():
            series.window(low, high + 1.0, 300)
            series.last()
        for run in replay.store.runs:
            run.summary()
    replay.seek(None)


def test_a_zeroed_page_of_rows_costs_those_rows_only(path: Path) -> None:
    ticks = 2 * TICKS
    write(path, records(ticks))
    with closing(sqlite3.connect(path)) as connection:
        pages = [
            row[0]
            for row in connection.execute(
                "SELECT pageno FROM dbstat WHERE name = 'host' AND pagetype = 'leaf' ORDER BY pageno"
            )
        ]
    at = (pages[len(pages) // 2] - 1) * PAGE
    data = bytearray(path.read_bytes())
    data[at : at + PAGE] = bytes(PAGE)
    path.write_bytes(data)
    replay = Replay(path)
    series = replay.store.series(*KEY)
    assert series is not None
    assert ticks * 0.6 < len(series) < ticks
    assert series.extent() == (0.0, pytest.approx((ticks - 1) * 0.05))
    assert len(replay.notices) == 1
    assert "rows of the table host are missing" in replay.notices[0]
    replay.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE coarse SET data = zeroblob(length(data)) WHERE page = 1",
        "UPDATE coarse SET samples = 7",
        "DELETE FROM coarse WHERE series = 2",
        "DROP TABLE coarse",
        "UPDATE page SET time_s = 1e9",
        "DELETE FROM page",
        "DROP TABLE page",
        "UPDATE digest SET json = '{}'",
        "DROP TABLE series",
        "DROP INDEX rare_event",
    ],
)
def test_summaries_that_are_not_what_was_written_are_made_again_from_the_rows(
    path: Path, whole: bytes, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_summaries(monkeypatch)
    path.write_bytes(whole)
    sound = Replay(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    fixed = Replay(path)
    for key, series in sound.store.curves():
        again = fixed.store.series(*key)
        assert again is not None
        assert len(again) == len(series)
        for found in (again, series):
            statistics = found.statistics(-1e9, 1e9)
            assert statistics is not None
        assert again.last() == pytest.approx(series.last(), nan_ok=True)
    assert len(fixed.store.events) == len(sound.store.events)
    assert sound.close()
    assert fixed.close()


@pytest.mark.parametrize(
    ("table", "column"),
    [("host", "states"), ("gpu", "time_s"), ("process", "device"), ("event", "json"), ("run", "id")],
)
@pytest.mark.parametrize("from_summaries", [False, True])
def test_a_table_that_lost_a_column_is_said_and_the_others_are_shown(
    path: Path, whole: bytes, table: str, column: str, from_summaries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if from_summaries:
        read_summaries(monkeypatch)
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO bent")
        connection.commit()
    replay = Replay(path)
    look_everywhere(replay)
    assert (
        f"{path} is damaged (the column {column} is missing); rows of the table {table} are missing" in replay.notices
    )
    assert replay.store.latest(*(("gpu", "used_bytes", "GPU-0") if table == "host" else KEY)).value is not None
    assert replay.close()


def test_a_row_of_a_time_that_cannot_be_is_left_out(path: Path) -> None:
    recorder = Recorder(path, meta={})
    for i in range(100):
        recorder.add(Sample(1e300 if i == 50 else float(i), "host", None, {"used_bytes": i}))
    recorder.close()
    replay = Replay(path)
    assert replay.extent_s == (0.0, 99.0)
    assert "impossible time" in replay.notices[0]
    replay.close()


def test_what_a_kill_leaves_opens_with_every_committed_row_and_stays(path: Path) -> None:
    source = path.with_name("source.gpudash")
    _, recorder = write(source, records(300), close=False)
    shutil.copyfile(source, path)
    shutil.copyfile(log_files(source)[0], log_files(path)[0])
    recorder.close()
    before = [(entry.name, entry.read_bytes()) for entry in sorted(path.parent.glob("a.*"))]
    replay = Replay(path)
    series = replay.store.series(*KEY)
    assert series is not None
    assert len(series) == 300
    replay.seek(4.0)
    assert replay.store.latest(*KEY).value == 1080
    assert not replay.following
    assert replay.close()
    assert [(entry.name, entry.read_bytes()) for entry in sorted(path.parent.glob("a.*"))] == before


def test_a_recording_that_vanishes_while_it_is_looked_at_is_said_and_stays_in_sight(path: Path) -> None:
    _, recorder = write(path, records(300), close=False)
    replay = Replay(path)
    path.unlink()
    replay.seek(5.0)
    replay.seek(6.0)
    assert replay.at_end
    assert replay.notices == [f"{path} does not exist"]
    replay.close()
    recorder.close()


def test_readings_of_a_store_survive_rows_of_the_wrong_kind(path: Path, whole: bytes) -> None:
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE host SET used_bytes = 'many' WHERE rowid = 7")
        connection.execute("UPDATE gpu SET device = x'00ff' WHERE rowid = 8")
        connection.execute("""UPDATE event SET json = '{"kind": "StepFinished", "time_s": "soon"}' WHERE rowid = 9""")
        connection.execute("UPDATE run SET workload = NULL")
        connection.commit()
    replay = Replay(path)
    assert isinstance(replay.store, Store)
    look_everywhere(replay)
    assert any("table gpu" in notice for notice in replay.notices)
    replay.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "sound.gpudash"
    recorder = Recorder(path, meta={"host_cpus": "8", "host_product": "CPU"})
    for record in RECORDS:
        recorder.add(record)
    recorder.close("closed")
    return path


@pytest.fixture
def copied(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(sound, tmp_path / "a.gpudash"))


def read_in_every_way(
    path: Path,
    sound: Path,
    capsys: pytest.CaptureFixture[str],
    formats: Sequence[str] = ("csv", "json", "trace", "html"),
) -> None:
    """Every command that reads a recording; a traceback or an exception of its own fails."""
    out = path.with_name("out")
    for command in (
        *(["export", str(path), "--to", to, "--out", str(out), "--force"] for to in formats),
        ["compare", str(path), str(sound)],
    ):
        code = gpudash(command)
        assert "Traceback" not in capsys.readouterr().err
        assert code in (0, 1, 2), command
    read_facts(path)
    replay = Replay(path)
    low, high = replay.extent_s
    replay.seek((low + high) / 2)
    replay.devices()
    for run in replay.store.runs:
        run.summary()
    assert replay.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE host SET total_bytes = 9e999; UPDATE gpu SET total_bytes = 9e999, used_bytes = 9e999",
        "UPDATE host SET total_bytes = -9e999, process_bytes = 9e999",
        "UPDATE process SET memory_bytes = 9e999, pid = 9e999",
        "UPDATE gpu SET power_w = 9e999, used_bytes = -5, total_bytes = 'x'; UPDATE host SET total_bytes = -1",
        "UPDATE allocator SET allocated_bytes = 9e999, reserved_bytes = 1e300",
        "UPDATE host SET time_s = 9e999; UPDATE gpu SET time_s = 9e999; UPDATE event SET time_s = 9e999",
        "UPDATE host SET time_s = 1e300; UPDATE gpu SET time_s = 1e300; UPDATE allocator SET time_s = 1e300",
        "UPDATE meta SET value = '9999-12-31T23:59:59+00:00' WHERE key = 'wall_clock_origin'",
        "UPDATE meta SET value = '0001-01-01T00:00:00+14:00' WHERE key = 'wall_clock_origin'",
        "UPDATE meta SET value = replace(hex(zeroblob(2500)), '0', '9') WHERE key = 'host_cpus'",
        "UPDATE run SET began_s = 9e999, ended_s = -9e999",
        "UPDATE run SET spec = replace(hex(zeroblob(50000)), '0', '[')",
        "UPDATE event SET json = replace(hex(zeroblob(50000)), '0', '[') WHERE kind = 'Note'",
        "UPDATE gpu SET states = replace(hex(zeroblob(50000)), '0', '[')",
    ],
)
def test_an_impossible_cell_costs_itself(
    copied: Path, sound: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(copied)) as connection:
        connection.executescript(change)
    read_in_every_way(copied, sound, capsys)


@pytest.mark.parametrize("impossible", IMPOSSIBLE)
def test_an_impossible_value_in_the_json_of_an_event_costs_that_event_or_figure(
    copied: Path, sound: Path, impossible: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(copied, isolation_level=None)) as connection:
        rows = [(row, json.loads(text)) for row, text in connection.execute("SELECT rowid, json FROM event")]
        places = {row: list(_places(event)) for row, event in rows}
        for number in range(max(map(len, places.values()))):
            for row, event in rows:
                bent = (
                    event if number >= len(places[row]) else _with(event, places[row][number], IMPOSSIBLE[impossible])
                )
                connection.execute("UPDATE event SET json = ? WHERE rowid = ?", (json.dumps(bent), row))
            read_in_every_way(copied, sound, capsys, ("trace", "html"))


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _places(item, (*place, key))


def _with(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = _with(value[place[0]], place[1:], new)
    return copy
