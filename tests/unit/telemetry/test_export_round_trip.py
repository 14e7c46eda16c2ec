"""What is exported and read again is equal, in every format of data."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from gpudash.telemetry.export import writing as parquet
from gpudash.telemetry.export.tables import CSV_COLUMNS, measured_rows
from gpudash.telemetry.export.writing import export
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.recording.reading import ReadingRow, Recording, open_recording
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import (
    Event,
    Marker,
    Note,
    OutOfMemory,
    Record,
    RunFinished,
    RunStarted,
    Sample,
    State,
    StepFinished,
    Table,
    Warning,
    event_from_json,
)

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
    StepFinished(time_s=0.7, run_id=1, step=2, steps=2, seconds=0.1, loss=-INF),
    Marker(time_s=0.8, label="nan"),
    Note(time_s=0.8, run_id=1, topic="t", text="\u2028", details={"values": [1, 2.5, None, "inf"]}),
    Warning(time_s=0.8, level="critical", device="host", text="full", ratio=0.97, actions=("stop",)),
    OutOfMemory(time_s=0.9, run_id=1, error="cuda", message="m", remedy="r", seconds=0.4, steps=2),
    RunFinished(time_s=1.0, run_id=2, status="finished", seconds=1.0, steps=0, result={"big": 2**70}),
)


def recorded(path: Path, records: Sequence[Record]) -> Path:
    recorder = Recorder(path, meta={"wall_clock_origin": "2026-11-21T10:15:00+00:00", "remark": "a\nb"})
    for record in records:
        recorder.add(record)
    recorder.close()
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
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


def assert_equal_when_read_again(recording: Recording, folder: Path) -> None:
    rows, events = list(measured_rows(recording)), [event.to_json() for event in recording.events()]
    for to in ("csv", "parquet", "json"):
        export(recording, to, folder / f"out.{to}", force=True)  # type: ignore[arg-type]  # three literals
    assert told(from_csv(folder / "out.csv")) == told(rows)
    again, happened = from_parquet(folder / "out.parquet")
    assert told(again) == told(rows)
    assert [event.to_json() for event in happened] == events
    document = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert samples_of(document) == samples_in(recording)
    assert [event_from_json(json.dumps(event)).to_json() for event in document["events"]] == events
    assert document["meta"] == dict(recording.meta)


def test_every_kind_of_value_is_read_again_as_it_was(recording: Recording, tmp_path: Path) -> None:
    assert len(list(measured_rows(recording))) >= 17
    assert_equal_when_read_again(recording, tmp_path)


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
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    out = tmp_path / "out.parquet"
    export(recording, "parquet", out)
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
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RecordingError, match=r'needs pyarrow.*pip install "gpudash\[parquet\]"'):
        export(recording, "parquet", tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["source.gpudash"]


def test_a_fault_of_pyarrow_leaves_nothing_and_is_one_sentence(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[tuple[Any, ...]]:
        raise pyarrow.ArrowInvalid("odd")

    monkeypatch.setattr(parquet, "_rows", broken)
    with pytest.raises(RecordingError, match=r"cannot be written \(pyarrow says: odd\)"):
        export(recording, "parquet", tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["source.gpudash"]
