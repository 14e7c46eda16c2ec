"""`export`: what other programs find in the file, equal when read again, and no file is lost or left half written."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from gpudash.system.foreign_text import harmless, tab_separated, visible
from gpudash.telemetry.export import tables
from gpudash.telemetry.export import writing as parquet
from gpudash.telemetry.export.tables import CSV_COLUMNS, measured_rows
from gpudash.telemetry.export.writing import DataFormat, export
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.recording.reading import ReadingRow, Recording, open_recording
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import (
    Event,
    Marker,
    Note,
    Record,
    RunEnd,
    RunStarted,
    Sample,
    State,
    StepFinished,
    Table,
    Warning,
    event_from_json,
)
from tests.unit.telemetry.copies import copied

INF = float("inf")

BIGGEST = 2**63 - 1

RECORDS: Sequence[Record] = (
    Sample(0.1, "host", None, {"used_bytes": BIGGEST, "cpu_utilisation": 0.1 + 0.2, "free_bytes": 0}),
    Sample(0.2, "gpu", "GPU-1", {"used_bytes": None, "power_w": INF}, {"used_bytes": State.LOST}),
    Sample(0.3, "gpu", "GPU-ü", {"used_bytes": 2**53 + 1, "temperature_c": -INF}),
    Sample(0.3, "process", None, {"pid": 7, "name": 'a "b", c\r\nd', "user": "", "memory_bytes": 3}),
    Sample(
        0.3,
        "process",
        None,
        {"pid": 8, "name": "nan", "user": "\r", "memory_bytes": None},
        {"memory_bytes": State.NO_PERMISSION},
    ),
    Sample(0.4, "allocator", "cuda:0", {"allocated_bytes": 5e-324}),
    RunStarted(time_s=0.5, run_id=1, workload="training", device="cuda:0", spec={"steps": 2, "name": "<b>"}),
    StepFinished(time_s=0.6, run_id=1, step=1, steps=2, seconds=0.1, loss=math.nan, accuracy=0.0, throughput=INF),
    StepFinished(time_s=0.7, run_id=1, step=2, steps=2, seconds=0.1, loss=-INF, val_loss=0.25),
    Marker(time_s=0.8, label="nan"),
    Note(time_s=0.8, run_id=1, topic="t", text="\u2028", details={"values": [1, 2.5, None, "inf"]}),
    Warning(time_s=0.8, level="critical", device="host", text="full", ratio=0.97, actions=("stop",)),
    RunEnd(status="out_of_memory", time_s=0.9, run_id=1, error="cuda", message="m", remedy="r", seconds=0.4, steps=2),
    RunEnd(time_s=1.0, run_id=2, status="finished", seconds=1.0, steps=0, result={"big": 2**70}),
)


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    recorder = Recorder(tmp_path / "source" / "a.gpudash", meta={"purpose": "test"})
    recorder.add(Sample(0.5, "host", None, {"used_bytes": 2**53 + 1, "cpu_utilisation": 0.25}))
    recorder.add(Sample(1.0, "gpu", "GPU-1", {"used_bytes": None}, {"used_bytes": State.LOST}))
    recorder.add(Sample(1.5, "process", None, {"pid": 7, "name": 'say "hi", ü', "memory_bytes": 3}))
    recorder.add(RunStarted(time_s=2.0, run_id=1, workload="training", device="cpu", spec={"steps": 2}))
    recorder.add(
        StepFinished(time_s=3.0, run_id=1, step=1, steps=2, seconds=1, loss=float("nan"), accuracy=0.5, val_loss=0.75)
    )
    recorder.add(copied(4.0, 100, 2.0, to_device="cpu", memory="pageable"))
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
        ["3.0", "run", "cpu", "val_loss", "0.75", "ok", ""],
        ["4.0", "transfer", "cpu", "h2h_bytes_per_second", "50.0", "ok", ""],
    ]


def test_several_losses_are_recorded_and_exported_by_their_names(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "gan.gpudash", meta={})
    several = {"D loss": 0.5, "G loss": INF}
    recorder.add(RunStarted(time_s=2.0, run_id=1, workload="watch", device="cpu", spec={}))
    recorder.add(StepFinished(time_s=3.5, run_id=1, step=2, steps=2, seconds=1, losses=several))
    recorder.close()
    with open_recording(recorder.path) as opened:
        export(opened, "csv", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file))[1:] == [
            ["3.5", "run", "cpu", "loss/D loss", "0.5", "ok", ""],
            ["3.5", "run", "cpu", "loss/G loss", "inf", "ok", ""],
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
        assert rows == 9
        raise EnoughError

    with pytest.raises(EnoughError):
        export(recording, "csv", tmp_path / "out.csv", on_progress=heed)
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
    ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "=HYPERLINK(0)", "-1+cmd|' /C calc'!A0", "+1*2", "'=1"],
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


def recorded(path: Path, records: Sequence[Record]) -> Path:
    recorder = Recorder(path, meta={"wall_clock_origin": "2026-11-21T10:15:00+00:00", "remark": "a\nb"})
    for record in records:
        recorder.add(record)
    recorder.close()
    return path


@pytest.fixture
def varied(tmp_path: Path) -> Iterator[Recording]:
    with open_recording(recorded(tmp_path / "source.gpudash", RECORDS)) as opened:
        yield opened


def exact(value: Any) -> Any:
    """Equal only where type and sign are too; NaN equals itself."""
    return (type(value).__name__, repr(value)) if isinstance(value, float) else value


def told(rows: Sequence[ReadingRow]) -> list[tuple[Any, ...]]:
    return [tuple(map(exact, dataclasses.astuple(row))) for row in rows]


def from_csv(path: Path) -> list[ReadingRow]:
    kinds = {(table, metric.name): metric.type for table, metrics in METRICS.items() for metric in metrics}
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == CSV_COLUMNS
    found = []
    for cells in rows:
        time_s, table, device, metric, text, state, pid = (cell.removeprefix("'") for cell in cells)
        value: Any = text
        if kinds.get((table, metric)) != "TEXT":  # type: ignore[call-overload]  # "run" and "transfer" are no tables
            value = None if text == "" else int(text) if text.lstrip("-").isdigit() else float(text)
        elif state != "ok":
            value = None
        found.append(ReadingRow(float(time_s), table, device or None, metric, value, state, int(pid) if pid else None))
    return found


def from_parquet(path: Path) -> tuple[list[ReadingRow], list[Event]]:
    rows, events = [], []
    for row in pq.read_table(path).to_pylist():
        if row["table"] == "event":
            events.append(event_from_json(row["text"]))
            continue
        value = next((row[name] for name in ("integer", "text", "value") if row[name] is not None), None)
        kept = {name: row[name] for name in ("time_s", "table", "device", "metric", "state", "pid")}
        rows.append(ReadingRow(value=value, **kept))
    return rows, events


def samples_of(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    found = []
    for reading in document["readings"]:
        texts = {metric.name for metric in METRICS[reading["table"]] if metric.type == "TEXT"}
        values = {
            name: float(value) if isinstance(value, str) and name not in texts else value
            for name, value in reading["values"].items()
        }
        found.append(
            (reading["time_s"], reading["table"], reading["device"], sorted(values.items(), key=str), reading["states"])
        )
    return found


def samples_in(recording: Recording) -> list[tuple[Any, ...]]:
    tables: Sequence[Table] = ("host", "gpu", "process", "allocator")
    return [
        (s.time_s, s.table, s.device, sorted(s.values.items(), key=str), {k: v.value for k, v in s.states.items()})
        for table in tables
        for s in recording.samples(table)
    ]


def _without_controls(row: ReadingRow) -> ReadingRow:
    """What a table has of a reading: what a terminal would obey is written out."""
    value = visible(row.value) if isinstance(row.value, str) else row.value
    return replace(row, value=value, device=None if row.device is None else visible(row.device))


def assert_equal_when_read_again(recording: Recording, folder: Path) -> None:
    rows, events = list(measured_rows(recording)), [event.to_json() for event in recording.events()]
    for to in ("csv", "parquet", "json"):
        export(recording, to, folder / f"out.{to}", force=True)  # type: ignore[arg-type]  # three literals
    assert told(from_csv(folder / "out.csv")) == told([_without_controls(row) for row in rows])
    again, happened = from_parquet(folder / "out.parquet")
    assert told(again) == told(rows)
    assert [event.to_json() for event in happened] == events
    document = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert samples_of(document) == samples_in(recording)
    assert [event_from_json(json.dumps(event)).to_json() for event in document["events"]] == events
    assert document["meta"] == dict(recording.meta)


def test_every_kind_of_value_is_read_again_as_it_was(varied: Recording, tmp_path: Path) -> None:
    assert len(list(measured_rows(varied))) >= 17
    assert_equal_when_read_again(varied, tmp_path)


numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.none())
texts = st.one_of(st.none(), st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12))


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    table: Table = draw(st.sampled_from(("host", "gpu", "process", "allocator")))
    values = {
        metric.name: draw(texts if metric.type == "TEXT" else numbers)
        for metric in METRICS[table]
        if metric.name != "pid" and draw(st.booleans())
    }
    states = {name: draw(st.sampled_from([*State][1:])) for name, value in values.items() if value is None}
    device = draw(st.sampled_from((None, "GPU-1", 'GPU "2", ü')))
    return Sample(draw(st.floats(0, 1e9)), table, device, values, states)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(samples(), max_size=20))
def test_any_reading_is_read_again_as_it_was(records: list[Record], tmp_path: Path) -> None:
    source = tmp_path / "any.gpudash"
    source.unlink(missing_ok=True)
    with open_recording(recorded(source, records)) as opened:
        assert_equal_when_read_again(opened, tmp_path)


def test_a_parquet_file_holds_meta_and_runs_and_comes_in_row_groups(
    varied: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    out = tmp_path / "out.parquet"
    export(varied, "parquet", out)
    file = pq.ParquetFile(out)
    assert file.num_row_groups > 3
    metadata = file.schema_arrow.metadata
    assert metadata[b"gpudash.format"] == b"1"
    assert json.loads(metadata[b"gpudash.meta"])["remark"] == "a\nb"
    assert [run["workload"] for run in json.loads(metadata[b"gpudash.runs"])] == ["training"]
    bytes_column = pq.read_table(out, filters=[("metric", "=", "used_bytes"), ("device", "=", "GPU-ü")])
    assert bytes_column["integer"].to_pylist() == [2**53 + 1]
    assert bytes_column["value"].to_pylist() == [float(2**53)]


def test_an_empty_recording_is_an_empty_table_with_its_columns(tmp_path: Path) -> None:
    with open_recording(recorded(tmp_path / "empty.gpudash", ())) as opened:
        export(opened, "parquet", tmp_path / "out.parquet")
        export(opened, "csv", tmp_path / "out.csv")
    table = pq.read_table(tmp_path / "out.parquet")
    assert (table.num_rows, table.column_names[:3]) == (0, ["time_s", "table", "device"])
    assert (tmp_path / "out.csv").read_text() == f"{','.join(CSV_COLUMNS)}\n"


def test_without_pyarrow_one_sentence_says_how_to_get_it(
    varied: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RecordingError, match=r'needs pyarrow.*pip install "gpudash\[parquet\]"'):
        export(varied, "parquet", tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["source.gpudash"]


def test_a_fault_of_pyarrow_leaves_nothing_and_is_one_sentence(
    varied: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[tuple[Any, ...]]:
        raise pyarrow.ArrowInvalid("odd")

    monkeypatch.setattr(parquet, "_rows", broken)
    with pytest.raises(RecordingError, match=r"cannot be written \(pyarrow says: odd\)"):
        export(varied, "parquet", tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["source.gpudash"]
