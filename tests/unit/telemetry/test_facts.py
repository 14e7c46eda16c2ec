"""What a recording is about, told without reading it whole."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpudash.telemetry.recording.facts import read_facts
from gpudash.units import GIB, MIB
from tests.unit.telemetry.recordings import ORIGIN_S, begin, record


def test_a_run_on_a_gpu_is_told_with_the_peak_of_that_gpu(tmp_path: Path) -> None:
    facts = read_facts(record(tmp_path / "a.gpudash", device="cuda:0"))
    assert (facts.workloads, facts.devices, facts.simulated) == (("training",), ("cuda:0",), False)
    assert facts.status == "finished"
    assert facts.peak_bytes == 11 * GIB
    assert facts.duration_s == 10.0
    assert facts.began_wall_s == ORIGIN_S
    assert (facts.damage, facts.locked, facts.title) == ("", False, "")


def test_a_run_on_the_cpu_is_told_with_the_peak_of_its_process(tmp_path: Path) -> None:
    assert read_facts(record(tmp_path / "a.gpudash")).peak_bytes == 110 * MIB


@pytest.mark.parametrize("status", ["finished", "cancelled", "failed", "out_of_memory"])
def test_the_end_of_the_last_run_is_the_status(tmp_path: Path, status: str) -> None:
    assert read_facts(record(tmp_path / "a.gpudash", status=status)).status == status


def test_a_simulated_run_says_so(tmp_path: Path) -> None:
    facts = read_facts(record(tmp_path / "a.gpudash", device="sim:0"))
    assert facts.simulated
    assert facts.devices == ("sim:0",)


def test_a_session_without_a_run_was_watched(tmp_path: Path) -> None:
    facts = read_facts(record(tmp_path / "a.gpudash", status=""))
    assert (facts.workloads, facts.devices, facts.status) == ((), ("cpu",), "watched")


def test_a_recording_that_is_being_written_is_told_as_far_as_it_has_come(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "a.gpudash", status="running")
    try:
        facts = read_facts(recorder.path)
    finally:
        recorder.close()
    assert (facts.status, facts.duration_s) == ("running", 10.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "recording"), (b"SQLite format 3\0" + b"x" * 4000, "no SQLite file"), (b"hello", "no SQLite file")],
)
def test_what_cannot_be_opened_says_why_in_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.gpudash"
    path.write_bytes(content)
    facts = read_facts(path)
    assert words in facts.damage
    assert facts.damage.endswith(".")
    assert facts.status == ""


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    assert "does not exist" in read_facts(tmp_path / "a.gpudash").damage


@pytest.mark.parametrize("json", ["[]", "{", '{"device": 3}', '{"details": {"torch_names": 3}}'])
def test_events_that_hold_something_else_cost_only_themselves(tmp_path: Path, json: str) -> None:
    path = record(tmp_path / "a.gpudash", device="cuda:0")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE event SET json = ? WHERE kind IN ('RunStarted', 'Note')", (json,))
    facts = read_facts(path)
    assert facts.devices == ("cpu",)
    assert facts.status == "finished"


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    path = record(tmp_path / "a.gpudash")
    before = path.read_bytes(), path.stat().st_mtime_ns
    read_facts(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gpudash"]


def test_a_peak_that_takes_too_long_to_find_is_left_out(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "a.gpudash")
    recorder.close()
    with closing(sqlite3.connect(recorder.path)) as connection, connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) "
            "INSERT INTO host (time_s, process_bytes) SELECT 10.0, i FROM n"
        )
    assert read_facts(recorder.path, peak_s=-1.0).peak_bytes is None
    assert read_facts(recorder.path, stopped=lambda: True).peak_bytes is None
    assert read_facts(recorder.path).peak_bytes == 110 * MIB
