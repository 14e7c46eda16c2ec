"""`open_recording`: what is read back, also from files that are torn, foreign, newer or read-only."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from gpudash.system.foreign_files import READS_WITHIN
from gpudash.telemetry.recording import reading
from gpudash.telemetry.recording.reading import is_locked, open_recording
from gpudash.telemetry.recording.recorder import Recorder, RecordingError, log_files
from gpudash.telemetry.records import Marker, Record, RunEnd, RunStarted, Sample, State, StepFinished, Warning
from gpudash.telemetry.store import Store

RECORDS: list[Record] = [
    Sample(0.5, "host", None, {"used_bytes": 10, "cpu_utilisation": 0.25}),
    RunStarted(time_s=1.0, run_id=1, workload="training", device="cpu", spec={"steps": 2}),
    Sample(1.5, "gpu", "GPU-1", {"used_bytes": 2**40, "power_w": None}, {"power_w": State.NO_PERMISSION}),
    Sample(2.0, "process", "GPU-1", {"pid": 4711, "name": "python", "memory_bytes": 5}),
    StepFinished(time_s=2.5, run_id=1, step=1, steps=2, seconds=1.0, loss=float("inf")),
    Sample(3.0, "allocator", "cuda:0", {"allocated_bytes": 1, "reserved_bytes": 2}),
    Warning(time_s=3.5, level="warning", device="host", text="full", ratio=0.9, actions=["stop"]),
    RunEnd(time_s=4.0, run_id=1, status="finished", seconds=3.0, steps=2, result={"equal": True}),
    Marker(time_s=5.0, label="end"),
]


def record(path: Path, records: list[Record], *, close: bool = True) -> Recorder:
    recorder = Recorder(path, meta={"purpose": "test"})
    for item in records:
        recorder.add(item)
    recorder.commit()
    if close:
        recorder.close("closed")
    return recorder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.gpudash"


def test_every_record_comes_back_as_it_was_in_order_of_time(path: Path) -> None:
    record(path, [RECORDS[i] for i in (1, 2, 0, 4, 3, 5, 8, 7, 6)])
    with open_recording(path) as recording:
        assert list(recording.records()) == RECORDS
        assert recording.meta["purpose"] == "test"
        assert recording.meta["status"] != "running"
        assert [(run.id, run.workload, run.spec, run.status) for run in recording.runs] == [
            (1, "training", {"steps": 2}, "finished")
        ]
        assert recording.notices == []


def test_rows_for_export_name_the_state_of_a_gap(path: Path) -> None:
    record(path, RECORDS)
    with open_recording(path) as recording:
        gpu = [(row.metric, row.value, row.state) for row in recording.export_rows("gpu")]
        process = [(row.pid, row.metric, row.value) for row in recording.export_rows("process")]
    assert gpu == [("used_bytes", 2**40, "ok"), ("power_w", None, "no permission")]
    assert process == [(4711, "name", "python"), (4711, "memory_bytes", 5)]


def test_reading_a_read_only_recording_leaves_everything_as_it_is(path: Path) -> None:
    record(path, RECORDS)
    before = path.read_bytes()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with open_recording(path) as recording:
            assert len(list(recording.records())) == len(RECORDS)
    finally:
        path.parent.chmod(0o755)
    assert path.read_bytes() == before
    assert list(path.parent.glob("a*")) == [path]


def abandoned(path: Path, records: list[Record]) -> None:
    """A recording as ``kill -9`` leaves it: the file and its log, copied while it was being written."""
    source = path.with_name("source.gpudash")
    recorder = record(source, records, close=False)
    shutil.copyfile(source, path)
    shutil.copyfile(log_files(source)[0], log_files(path)[0])
    recorder.close()


def test_a_log_left_by_a_crash_is_read_and_left(path: Path) -> None:
    abandoned(path, RECORDS)
    before = [(entry.name, entry.read_bytes()) for entry in sorted(path.parent.glob("a.*"))]
    with open_recording(path) as recording:
        assert list(recording.records()) == RECORDS
        assert recording.meta["status"] == "running"
    assert [(entry.name, entry.read_bytes()) for entry in sorted(path.parent.glob("a.*"))] == before


def test_a_torn_log_gives_an_exact_beginning(path: Path) -> None:
    samples: list[Record] = [Sample(float(i), "host", None, {"used_bytes": i}) for i in range(400)]
    source = path.with_name("source.gpudash")
    recorder = Recorder(source, meta={})
    for i, item in enumerate(samples):
        recorder.add(item)
        if i % 20 == 19:
            recorder.commit()
    log = log_files(source)[0].read_bytes()
    main = source.read_bytes()
    recorder.close()
    chance, lengths = random.Random(3), set()
    for _ in range(30):
        path.write_bytes(main)
        log_files(path)[0].write_bytes(log[: chance.randrange(len(log) // 2, len(log))])
        with open_recording(path) as recording:
            found = list(recording.samples("host"))
        assert found == samples[: len(found)]
        lengths.add(len(found))
    assert len(lengths) > 3


def test_a_truncated_recording_gives_what_lies_before_the_damage(path: Path) -> None:
    samples: list[Record] = [Sample(float(i), "host", None, {"used_bytes": i}) for i in range(20_000)]
    record(path, samples)
    whole = path.read_bytes()
    torn = path.with_name("torn.gpudash")
    counts = []
    for part in (0.3, 0.6, 0.9):
        torn.write_bytes(whole[: int(len(whole) * part)])
        with open_recording(torn) as recording:
            found = list(recording.samples("host"))
            assert recording.meta["purpose"] == "test"
            assert len(recording.notices) == 1
            assert "is damaged" in recording.notices[0]
        assert found == samples[: len(found)]
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[0] > 0.2 * len(samples)
    assert counts[-1] < len(samples)


@pytest.mark.parametrize("size", [0, 50, 99, 100, 2000, 4096, 9000])
def test_a_stump_is_refused_in_one_sentence(path: Path, size: int) -> None:
    record(path, RECORDS)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RecordingError) as caught:
        open_recording(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("loss,accuracy\n1,2\n" * 100)
    with pytest.raises(RecordingError, match="not a recording: it is no SQLite file"):
        open_recording(path)
    assert path.read_text().startswith("loss,accuracy")


def test_another_programs_database_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmark (url)")
    with pytest.raises(RecordingError, match="without the table meta"):
        open_recording(path)


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("'2'", r"format 2.*install a newer gpudash"),
        *((value, "does not say its format") for value in ("'soon'", "NULL", f"'{'9' * 5000}'")),
    ],
)
def test_a_newer_format_and_one_that_is_no_number_are_refused(path: Path, value: str, said: str) -> None:
    record(path, RECORDS)
    change(path, f"UPDATE meta SET value = {value} WHERE key = 'format_version'")
    with pytest.raises(RecordingError, match=said):
        open_recording(path)


def test_a_meta_table_of_another_shape_is_refused(path: Path) -> None:
    change(path, "CREATE TABLE meta (a, b)")
    with pytest.raises(RecordingError, match="no keys and values"):
        open_recording(path)


def test_a_newer_minor_format_with_more_tables_columns_and_kinds_is_read(path: Path) -> None:
    record(path, RECORDS)
    change(
        path,
        "UPDATE meta SET value = '1.7' WHERE key = 'format_version'",
        "CREATE TABLE telepathy (time_s)",
        "ALTER TABLE gpu ADD COLUMN aura REAL",
        'UPDATE gpu SET aura = 1, states = \'{"aura": "lost", "power_w": "on holiday"}\'',
        'INSERT INTO event VALUES (9.0, NULL, \'Telepathy\', \'{"kind": "Telepathy", "time_s": 9.0}\')',
        "INSERT INTO event VALUES (9.0, NULL, 'Broken', 'no json')",
        "DROP TABLE allocator",
    )
    with open_recording(path) as recording:
        found = list(recording.records())
        assert recording.notices == []
    assert [item for item in found if isinstance(item, Marker)] == [RECORDS[-1]]
    gpu = next(item for item in found if isinstance(item, Sample) and item.table == "gpu")
    assert gpu.values == {"used_bytes": 2**40, "power_w": None}
    assert gpu.states == {"power_w": State.STALE}


def test_an_older_recording_without_a_column_is_read(path: Path) -> None:
    record(path, RECORDS)
    change(path, "ALTER TABLE host DROP COLUMN cpu_utilisation")
    with open_recording(path) as recording:
        assert next(recording.samples("host")).values == {"used_bytes": 10}


def test_a_missing_file_and_a_folder_are_refused(path: Path) -> None:
    with pytest.raises(RecordingError, match="does not exist"):
        open_recording(path)
    with pytest.raises(RecordingError, match="it is a folder, not a file"):
        open_recording(path.parent)


def test_a_recording_can_be_read_while_it_is_written(path: Path) -> None:
    recorder = record(path, RECORDS, close=False)
    with open_recording(path) as recording:
        assert len(list(recording.records())) == len(RECORDS)
    recorder.add(Marker(time_s=6.0, label="later"))
    recorder.close("closed")
    assert recorder.failed is None
    with open_recording(path) as recording:
        assert len(list(recording.records())) == len(RECORDS) + 1


@pytest.mark.parametrize(("value", "locked"), [("1", True), ("0", False), ("", False)])
def test_a_recording_is_locked_by_a_key_in_its_meta(path: Path, value: str, locked: bool) -> None:
    record(path, RECORDS)
    change(path, f"INSERT INTO meta VALUES ('locked', '{value}')")
    assert is_locked(path) is locked


def test_a_name_with_odd_characters_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "50 % #1? ü.gpudash"
    record(path, RECORDS)
    with open_recording(path) as recording:
        assert len(list(recording.records())) == len(RECORDS)


def test_no_damage_whatever_ends_in_anything_but_a_sentence(path: Path) -> None:
    record(path, [*RECORDS, *(Sample(float(i), "host", None, {"used_bytes": i}) for i in range(2000))])
    whole = path.read_bytes()
    chance, opened = random.Random(5), 0
    for _ in range(150):
        torn = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.5 else whole)
        for _ in range(chance.randrange(8)):
            if torn:
                torn[chance.randrange(len(torn))] = chance.randrange(256)
        path.write_bytes(torn)
        sentence = ""
        try:
            with open_recording(path) as recording:
                store = Store()
                for item in recording.records():
                    store.apply(item)
                opened += 1
        except RecordingError as error:
            sentence = str(error)
        assert "\n" not in sentence
    assert opened > 50


def test_a_log_that_goes_while_it_is_copied_leaves_no_folder_behind(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(path, RECORDS)
    log_files(path)[0].write_bytes(b"a log")
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))

    def copy_without_log(source: Path, target: Path) -> None:
        if source != path:
            raise FileNotFoundError(2, "No such file or directory", str(source))

    monkeypatch.setattr(reading, "copy_regular", copy_without_log)
    with pytest.raises(RecordingError, match="does not exist"):
        open_recording(path)
    assert list(copies.iterdir()) == []


@pytest.mark.parametrize("close", [True, False])
def test_where_reading_is_bounded_a_recording_is_read_as_ever_and_what_took_its_place_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, close: bool
) -> None:
    folder = tmp_path / "bounded"
    folder.mkdir()
    monkeypatch.setenv(READS_WITHIN, str(folder))
    recorder = record(folder / "a.gpudash", RECORDS, close=close)
    with open_recording(recorder.path) as recording:
        assert list(recording.records()) == RECORDS and recording.path == recorder.path
    recorder.close()
    secret = recorder.path.rename(tmp_path / "secret.gpudash")
    recorder.path.symlink_to(secret)
    with pytest.raises(RecordingError, match="leads out of the folder that may be read"):
        open_recording(recorder.path)
