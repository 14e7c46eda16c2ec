"""`export`: what other programs find in the file, and that no file is lost or left half written."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.telemetry.cells import harmless, tab_separated
from gpudash.telemetry.export import tables
from gpudash.telemetry.export.tables import CSV_COLUMNS
from gpudash.telemetry.export.writing import DataFormat, export
from gpudash.telemetry.recording.reading import Recording, open_recording
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import RunStarted, Sample, State, StepFinished, Transfer


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    recorder = Recorder(tmp_path / "source" / "a.gpudash", meta={"purpose": "test"})
    recorder.add(Sample(0.5, "host", None, {"used_bytes": 2**53 + 1, "cpu_utilisation": 0.25}))
    recorder.add(Sample(1.0, "gpu", "GPU-1", {"used_bytes": None}, {"used_bytes": State.LOST}))
    recorder.add(Sample(1.5, "process", None, {"pid": 7, "name": 'say "hi", ü', "memory_bytes": 3}))
    recorder.add(RunStarted(time_s=2.0, run_id=1, workload="training", device="cpu", spec={"steps": 2}))
    recorder.add(StepFinished(time_s=3.0, run_id=1, step=1, steps=2, seconds=1, loss=float("nan"), accuracy=0.5))
    recorder.add(
        Transfer(
            time_s=4.0,
            run_id=1,
            from_device="cpu",
            to_device="cpu",
            memory="pageable",
            blocking=True,
            bytes=100,
            seconds=2.0,
        )
    )
    recorder.close()
    with open_recording(recorder.path) as opened:
        yield opened


def test_csv_holds_every_reading_with_its_state(recording: Recording, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    export(recording, "csv", out)
    with out.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == list(CSV_COLUMNS)
    assert rows == [
        ["0.5", "host", "", "used_bytes", "9007199254740993", "ok", ""],
        ["0.5", "host", "", "cpu_utilisation", "0.25", "ok", ""],
        ["1.0", "gpu", "GPU-1", "used_bytes", "", "lost", ""],
        ["1.5", "process", "", "name", 'say "hi", ü', "ok", "7"],
        ["1.5", "process", "", "memory_bytes", "3", "ok", "7"],
        ["3.0", "run", "cpu", "loss", "nan", "ok", ""],
        ["3.0", "run", "cpu", "accuracy", "0.5", "ok", ""],
        ["4.0", "transfer", "cpu", "h2h_bytes_per_second", "50.0", "ok", ""],
    ]


def test_json_holds_meta_runs_events_and_readings(recording: Recording, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    export(recording, "json", out)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(out.read_text(encoding="utf-8"), parse_constant=refuse)
    assert list(document) == ["meta", "runs", "events", "readings"]
    assert document["meta"]["purpose"] == "test"
    assert document["runs"][0]["workload"] == "training"
    assert [event["kind"] for event in document["events"]] == ["RunStarted", "StepFinished", "Transfer"]
    assert document["events"][1]["loss"] == "nan"
    assert document["readings"][1] == {
        "time_s": 1.0,
        "table": "gpu",
        "device": "GPU-1",
        "values": {"used_bytes": None},
        "states": {"used_bytes": "lost"},
    }


def test_an_existing_file_is_replaced_only_when_forced(recording: Recording, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("mine")
    with pytest.raises(RecordingError, match="exists already; choose another name or add --force"):
        export(recording, "csv", out)
    assert out.read_text() == "mine"
    export(recording, "csv", out, force=True)
    assert out.read_text().startswith("time_s,")


@pytest.mark.parametrize("name", ["missing/out.csv", ".", "a" * 256])
def test_a_place_that_cannot_be_written_is_refused_in_one_sentence(
    recording: Recording, tmp_path: Path, name: str
) -> None:
    with pytest.raises(RecordingError) as caught:
        export(recording, "csv", tmp_path / name, force=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("to", ["csv", "json", "parquet", "trace"])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file_and_no_other(
    recording: Recording, tmp_path: Path, to: DataFormat
) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # no file may grow beyond, as where the disk is full
    try:
        with pytest.raises(RecordingError) as caught:
            export(recording, to, out, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.fullmatch(r".*/out cannot be written \(.*File too large.*\); choose another place", str(caught.value))
    assert out.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["out"]


def test_a_device_or_a_pipe_is_never_replaced_by_a_file(recording: Recording, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RecordingError, match="is a device or a pipe"):
        export(recording, "csv", pipe, force=True)
    assert pipe.is_fifo()


def test_through_a_link_the_file_it_names_is_written(recording: Recording, tmp_path: Path) -> None:
    link, out = tmp_path / "link.csv", tmp_path / "out.csv"
    link.symlink_to(out)
    export(recording, "csv", link)
    assert link.is_symlink()
    assert out.read_text().startswith("time_s,")


def test_the_recording_itself_is_never_replaced(recording: Recording) -> None:
    before = recording.path.read_bytes()
    with pytest.raises(RecordingError, match="is the recording itself"):
        export(recording, "csv", recording.path.parent / ".." / recording.path.parent.name / recording.path.name, True)
    assert recording.path.read_bytes() == before


def test_what_is_heard_on_the_way_can_end_an_export(recording: Recording, tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def heed(rows: int) -> None:
        assert rows == 8
        raise EnoughError

    with pytest.raises(EnoughError):
        export(recording, "csv", tmp_path / "out.csv", heed=heed)
    assert not [entry.name for entry in tmp_path.iterdir() if entry.is_file()]


def test_an_export_that_breaks_off_leaves_the_old_file_and_no_other(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out.json"
    out.write_text("old")
    monkeypatch.setattr(tables, "_readings", full)
    with pytest.raises(RecordingError, match="No space left"):
        export(recording, "json", out, force=True)
    assert out.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.is_file()) == ["out.json"]


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", "=HYPERLINK(0)", "-1+cmd|' /C calc'!A0", "+1*2", "'=1"],
)
def test_what_begins_as_a_formula_is_marked_as_text(text: str) -> None:
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "-", "-3", "+4.00 MiB", "-1e-05", "-inf", "+12 %", "-3 GB/s", "train.py", "a=b"])
def test_numbers_and_other_texts_stay_as_they_are(text: str) -> None:
    assert harmless(text) == text


def test_what_is_copied_is_no_formula_and_stays_in_its_cell() -> None:
    assert tab_separated([["name", "size"], ["=1+1", "-3"], ["a\tb\nc", "@x"]]) == "name\tsize\n'=1+1\t-3\na b c\t'@x"


def test_names_in_an_exported_recording_are_no_formulas(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.gpudash", meta={})
    values = {"pid": 7, "name": "=HYPERLINK(0)", "user": "@mia", "memory_bytes": -5}
    recorder.add(Sample(1.0, "process", "+GPU", values))
    recorder.close("closed")
    with open_recording(tmp_path / "run.gpudash") as recording:
        export(recording, "csv", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        told = {row["metric"]: row for row in csv.DictReader(file)}
    assert told["name"]["value"] == "'=HYPERLINK(0)" and told["user"]["value"] == "'@mia"
    assert {row["device"] for row in told.values()} == {"'+GPU"}
    assert told["memory_bytes"]["value"] == "-5"
