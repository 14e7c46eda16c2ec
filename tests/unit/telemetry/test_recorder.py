"""`Recorder`: what is on disk after a good end, a kill, a full disk, and when the file cannot be had."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.lasting_locks import CONNECTED_BYTE
from gpudash.telemetry.recording.pages import Pages
from gpudash.telemetry.recording.reading import Recording, open_recording
from gpudash.telemetry.recording.recorder import COMMIT_ROWS, Recorder, RecordingError, being_written, log_files
from gpudash.telemetry.records import Marker, RunEnd, RunStarted, Sample, State
from gpudash.telemetry.store import Store

GPU_COLUMNS = """used_bytes, free_bytes, total_bytes, driver_reserved_bytes, gpu_utilisation, memory_utilisation,
temperature_c, power_w, energy_j, sm_clock_hz, memory_clock_hz, pcie_rx_bytes_per_second, pcie_tx_bytes_per_second"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recordings" / "a.gpudash"


@pytest.fixture
def recorder(path: Path) -> Iterator[Recorder]:
    made = Recorder(path, meta={"purpose": "test"})
    yield made
    made.close()


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def reading(t: float, **values: int | None) -> Sample:
    states = {name: State.LOST for name, value in values.items() if value is None}
    return Sample(t, "gpu", "GPU-1", values, states)


def test_the_tables_are_those_of_the_contract(recorder: Recorder, path: Path) -> None:
    def columns(table: str) -> list[str]:
        return [row[1] for row in rows(path, f"PRAGMA table_info({table})")]

    assert columns("meta") == ["key", "value"]
    assert columns("run") == ["id", "workload", "spec", "status", "began_s", "ended_s"]
    assert columns("event") == ["time_s", "run_id", "kind", "json"]
    for table in schema.TABLES:
        assert columns(table)[:2] == ["time_s", "device"]
        assert columns(table)[-1] == "states"
    assert columns("gpu")[2:15] == GPU_COLUMNS.replace("\n", " ").split(", ")


def test_meta_names_the_format_and_the_origin_of_time(recorder: Recorder, path: Path) -> None:
    meta = dict(rows(path, "SELECT key, value FROM meta"))
    assert meta["format_version"] == "1"
    assert meta["purpose"] == "test"
    assert meta["status"] == "running"
    assert {"wall_clock_origin", "gpudash_version", "python_version", "host", "system"} <= meta.keys()


def test_a_gap_is_null_with_its_state_and_what_was_not_due_is_null_alone(recorder: Recorder, path: Path) -> None:
    recorder.add(reading(1.0, used_bytes=None, free_bytes=5))
    recorder.add(reading(2.0, used_bytes=2**40))
    recorder.commit()
    found = rows(path, "SELECT time_s, device, used_bytes, free_bytes, total_bytes, states FROM gpu")
    assert found[0][:5] == (1.0, "GPU-1", None, 5, None)
    assert json.loads(found[0][5]) == {"used_bytes": "lost"}
    assert found[1] == (2.0, "GPU-1", 2**40, None, None, None)


def test_runs_are_listed_with_their_end(recorder: Recorder, path: Path) -> None:
    for run_id in (1, 2, 3):
        recorder.add(RunStarted(time_s=run_id, run_id=run_id, workload="matmul", device="cpu", spec={"size": 4}))
    recorder.add(RunEnd(time_s=5.0, run_id=1, status="finished", seconds=4, steps=1, result={}))
    recorder.add(
        RunEnd(status="out_of_memory", time_s=6.0, run_id=2, error="guard", message="", remedy="", seconds=4, steps=1)
    )
    recorder.close("cancelled")
    assert rows(path, "SELECT id, workload, spec, status, began_s, ended_s FROM run") == [
        (1, "matmul", '{"size": 4}', "finished", 1.0, 5.0),
        (2, "matmul", '{"size": 4}', "out_of_memory", 2.0, 6.0),
        (3, "matmul", '{"size": 4}', "cancelled", 3.0, 6.0),
    ]


def test_closing_leaves_one_file_that_says_how_it_ended(recorder: Recorder, path: Path) -> None:
    recorder.add(Marker(time_s=1.0, label="here"))
    recorder.close("closed")
    recorder.close("closed")
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert rows(path, "SELECT value FROM meta WHERE key = 'status'") == [("closed",)]
    assert rows(path, "SELECT kind FROM event") == [("Marker",)]
    assert recorder.failed is None


def test_what_comes_after_closing_is_ignored(recorder: Recorder, path: Path) -> None:
    recorder.close()
    recorder.add(Marker(time_s=1.0, label="late"))
    recorder.tick()
    assert rows(path, "SELECT * FROM event") == []
    assert recorder.failed is None


def test_a_flood_without_ticks_is_committed_all_the_same(recorder: Recorder, path: Path) -> None:
    for i in range(COMMIT_ROWS):
        recorder.add(Marker(time_s=float(i), label="m"))
    assert rows(path, "SELECT count(*) FROM event") == [(COMMIT_ROWS,)]


@pytest.mark.timed
def test_a_tick_commits_when_the_last_commit_is_long_enough_ago(
    recorder: Recorder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    recorder.commit()
    recorder.add(Marker(time_s=1.0, label="m"))
    recorder.tick()
    assert rows(path, "SELECT count(*) FROM event") == [(0,)]
    now += 0.3
    recorder.tick()
    assert rows(path, "SELECT count(*) FROM event") == [(1,)]


def test_the_log_beside_a_long_recording_stays_small(recorder: Recorder, path: Path) -> None:
    for i in range(30_000):
        recorder.add(reading(float(i), used_bytes=i, free_bytes=i, total_bytes=i))
        if i % 10 == 0:
            recorder.commit()  # each writes two pages or more to the log: over 24 MB in all
    recorder.commit()
    assert path.stat().st_size > 500_000
    assert log_files(path)[0].stat().st_size < 8 * 1024**2


def test_a_copy_is_a_whole_recording_and_recording_goes_on(recorder: Recorder, path: Path, tmp_path: Path) -> None:
    recorder.add(Marker(time_s=1.0, label="one"))
    recorder.commit()
    copy = tmp_path / "copy.gpudash"
    recorder.copy_to(copy)
    recorder.add(Marker(time_s=2.0, label="two"))
    recorder.close()
    assert rows(copy, "SELECT count(*) FROM event") == [(1,)]
    assert rows(path, "SELECT count(*) FROM event") == [(2,)]
    assert sorted(entry.name for entry in tmp_path.glob("copy*")) == ["copy.gpudash"]


def test_a_copy_onto_itself_or_into_nowhere_is_refused(recorder: Recorder, path: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is the recording itself"):
        recorder.copy_to(path)
    with pytest.raises(RecordingError, match="cannot be written"):
        recorder.copy_to(tmp_path / "missing" / "copy.gpudash")


def test_an_existing_file_is_not_overwritten(recorder: Recorder, path: Path) -> None:
    recorder.close()
    before = path.read_bytes()
    with pytest.raises(RecordingError, match="exists already"):
        Recorder(path, meta={})
    assert path.read_bytes() == before


def test_a_file_that_is_being_written_is_refused(recorder: Recorder, path: Path) -> None:
    assert being_written(path)
    with pytest.raises(RecordingError, match="being written by another gpudash"):
        Recorder(path, meta={})
    recorder.close()
    assert not being_written(path)


def test_somebody_who_looks_at_a_new_file_does_not_keep_it_from_being_recorded_to(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking: list[int] = []
    begun, make, lock = threading.Event(), os.open, fcntl.flock

    def made_and_seen(name: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = make(name, flags, mode)
        if flags & os.O_EXCL:
            looking.append(make(name, os.O_RDONLY))
            lock(looking[0], fcntl.LOCK_SH)
        return descriptor

    def wait_for_it(descriptor: int, how: int) -> None:
        begun.set()
        lock(descriptor, how)

    monkeypatch.setattr(os, "open", made_and_seen)
    monkeypatch.setattr(fcntl, "flock", wait_for_it)
    looker = threading.Thread(target=lambda: (begun.wait(20.0), os.close(looking[0])))
    looker.start()
    Recorder(path, meta={}).close()
    looker.join()
    assert rows(path, "SELECT value FROM meta WHERE key = 'status'") == [("closed",)]


def test_a_folder_that_cannot_be_made_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match=r"^\S+ cannot be (written|made).*choose another") as caught:
        Recorder(tmp_path / "file" / "a.gpudash", meta={})
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError):
        Recorder(tmp_path, meta={})
    assert tmp_path.is_dir()


CHILD = """
    import sys, time
    from pathlib import Path
    from gpudash.telemetry.recording import recorder as recording
    from gpudash.telemetry.recording.recorder import Recorder
    from gpudash.telemetry.records import RunStarted, Sample, StepFinished
    from gpudash.telemetry.store import Store

    recording.PAGE_ROWS = 32
    recorder, store = Recorder(Path(sys.argv[1]), meta={}), Store()
    if sys.argv[2] == "summaries":
        recorder.summarise(store)

    def add(record):
        store.apply(record)
        recorder.add(record)

    add(RunStarted(time_s=0.0, run_id=1, workload="training", device="cpu", spec={}))
    """

FOREVER = """
    began = time.monotonic()
    while True:
        now = time.monotonic() - began
        add(Sample(now, "host", None, {"used_bytes": int(now * 1e6)}))
        recorder.tick()
        print(now, flush=True)
        time.sleep(0.005)
    """

UNTIL_FULL = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    i = 0
    while recorder.failed is None and i < 1_000_000:
        i += 1
        add(Sample(float(i), "host", None, {"used_bytes": i}))
        if i % 50 == 0:
            recorder.commit()
            if recorder.failed is None:
                print(i, flush=True)
    first = recorder.failed
    add(Sample(float(i), "host", None, {"used_bytes": i}))
    recorder.tick()
    recorder.close("finished")
    assert recorder.failed is first
    print(recorder.failed, flush=True)
    """

OPENING_ITS_FILES = """
    def add_thousand(first):
        for i in range(first, first + 1000):
            add(Sample(float(i), "host", None, {"used_bytes": i}))
        recorder.commit()

    add_thousand(1)
    for file in sorted(Path(sys.argv[1]).parent.iterdir()):
        file.read_bytes()
    print("opened", flush=True)
    sys.stdin.readline()
    add_thousand(1001)
    print(recorder.failed, flush=True)
    recorder.close("finished")
    """


def child(code: str, path: Path, kind: str) -> subprocess.Popen[str]:
    script = textwrap.dedent(CHILD) + textwrap.dedent(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(schema.__file__).parents[3])}
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def check_summaries(recording: Recording, kind: str, samples: int) -> None:
    """Every page that was begun by the rows is there and whole, and no other."""
    pages = Pages(recording)
    assert len(pages.pages) == ((samples + 1) // 32 if kind == "summaries" else 0)
    assert not pages.damaged
    for number, page in enumerate(pages.pages):
        assert page.rows["host"] + page.rows["event"] == 32 * (number + 1)
    assert pages.buckets(recording, ("host", "used_bytes", None), len(pages.pages))[1] == max(
        0, 32 * len(pages.pages) - 1
    )


@pytest.mark.process
@pytest.mark.parametrize("kind", ["rows", "summaries"])
def test_after_kill_9_all_but_the_last_second_is_there(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "killed.gpudash"
    with child(FOREVER, path, kind) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if float(line) > 1.0:
                break
        assert being_written(path)
        process.kill()
        last = float((process.stdout.read().splitlines() or [line])[-1])
    assert not being_written(path)
    names = sorted(entry.name for entry in tmp_path.iterdir())
    with open_recording(path) as recording:
        times = [sample.time_s for sample in recording.samples("host")]
        assert times[-1] > last - 1.0
        assert times == sorted(times)
        assert recording.runs[0].status == "running"
        assert recording.meta["status"] == "running"
        assert recording.notices == []
        check_summaries(recording, kind, len(times))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == names
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.process
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_opening_its_files_in_its_process_leaves_a_recording_whole_when_another_process_reads_it(
    tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "opened.gpudash"
    with child(OPENING_ITS_FILES, path, "rows") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "opened\n"
        # What SQLite asks before it truncates the index of the log (os_unix.c, unixLockSharedMemory).
        with log_files(path)[1].open("r+b") as index, pytest.raises(BlockingIOError):
            fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, *reversed(CONNECTED_BYTE))
        with closing(sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True)) as connection:
            assert connection.execute("SELECT count(*) FROM host").fetchone() == (1000,)
        # It still has a writer, with a log.
        assert all(log.exists() for log in log_files(path))
        output, _ = process.communicate("go on\n", timeout=60)
    assert output == "None\n"
    assert process.returncode == 0
    assert not any(log.exists() for log in log_files(path))
    assert rows(path, "SELECT count(*) FROM host") == [(2000,)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["rows", "summaries"])
def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "full.gpudash"
    with child(UNTIL_FULL, path, kind) as process:
        output, _ = process.communicate(timeout=60)
    *committed, sentence = output.splitlines()
    assert process.returncode == 0
    assert sentence.startswith(f"Recording to {path} stopped (")
    assert "readable" in sentence
    with open_recording(path) as recording:
        times = [sample.time_s for sample in recording.samples("host")]
        assert times == [float(i + 1) for i in range(len(times))]
        assert len(times) >= int(committed[-1]) > 0
        check_summaries(recording, kind, len(times))


@pytest.mark.parametrize("kind", ["rows", "summaries"])
def test_another_writer_ends_the_recording_and_spoils_nothing(recorder: Recorder, path: Path, kind: str) -> None:
    store = Store()
    if kind == "summaries":
        recorder.summarise(store)
    recorder._connection.execute("PRAGMA busy_timeout = 0")  # type: ignore[union-attr]

    def add(count: int) -> None:
        for i in range(count):
            record = Sample(float(i), "host", None, {"used_bytes": i})
            store.apply(record)
            recorder.add(record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 32)
        add(100)
        recorder.commit()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            add(50)
            other.execute("INSERT INTO meta VALUES ('other', 'was here')")
            other.execute("COMMIT")
    assert recorder.failed is not None
    assert "database is locked" in recorder.failed
    recorder.close()
    with open_recording(path) as recording:
        assert len(list(recording.samples("host"))) == 100
        assert len(Pages(recording).pages) == (3 if kind == "summaries" else 0)
        assert not Pages(recording).damaged
        assert recording.meta["other"] == "was here"
        assert recording.notices == []


def test_a_database_that_may_not_grow_fails_once_and_in_words(recorder: Recorder, path: Path) -> None:
    recorder._connection.execute("PRAGMA max_page_count = 30")  # type: ignore[union-attr]
    count = 0
    while recorder.failed is None:
        recorder.add(reading(float(count), used_bytes=count))
        recorder.commit()
        count += 1
        assert count < 100_000
    assert "full" in recorder.failed
    recorder.close()
    with open_recording(path) as recording:
        assert len(list(recording.samples("gpu"))) == count - 1


def test_a_name_that_is_no_utf_8_is_kept_as_an_escape(recorder: Recorder, path: Path) -> None:
    recorder.describe({"host": "h\udcff"})
    recorder.add(Sample(1.0, "process", "GPU-\udcff", {"pid": 7, "name": "a\udcff"}))
    recorder.add(RunStarted(time_s=1.0, run_id=1, workload="w\udcff", device="cpu", spec={}))
    recorder.commit()
    assert recorder.failed is None
    assert rows(path, "SELECT device, pid, name FROM process") == [("GPU-\\udcff", 7, "a\\udcff")]
    assert rows(path, "SELECT workload FROM run") == [("w\\udcff",)]
    assert rows(path, "SELECT value FROM meta WHERE key = 'host'") == [("h\\udcff",)]


def test_a_number_beyond_sqlite_costs_its_record_alone(recorder: Recorder) -> None:
    with pytest.raises(OverflowError):
        recorder.add(reading(0.0, used_bytes=2**70))
    recorder.add(reading(1.0, used_bytes=7))
    assert recorder.failed is None
    recorder.close()
    with open_recording(recorder.path) as opened:
        assert [sample.values["used_bytes"] for sample in opened.samples("gpu")] == [7]
