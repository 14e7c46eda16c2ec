"""The trace: valid by the rules of its format, and what a hand-made recording becomes, entry by entry."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudash.telemetry.export.writing import export
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import (
    EpochFinished,
    Marker,
    Note,
    Record,
    RunEnd,
    RunStarted,
    Sample,
    SourceFailed,
    StageFinished,
    StepFinished,
    Warning,
)
from tests.unit.telemetry.copies import copied
from tests.unit.telemetry.trace_format import validate

RUN: Sequence[Record] = (
    Sample(0.5, "host", None, {"used_bytes": 100, "cpu_utilisation": 0.5}),
    Sample(0.6, "allocator", "sim:0", {"allocated_bytes": 40, "reserved_bytes": 64}),
    RunStarted(time_s=1.0, run_id=5, workload="training", device="sim:0", spec={"steps": 2}, simulated=True),
    StageFinished(
        time_s=1.25, run_id=5, name="move model", seconds=0.25, bytes=10, from_device="cpu", to_device="sim:0"
    ),
    StepFinished(time_s=2.0, run_id=5, step=1, steps=2, seconds=0.5, loss=2.5, accuracy=0.25, throughput=32.0),
    StepFinished(time_s=2.5, run_id=5, step=2, steps=2, seconds=0.6, loss=math.nan),
    StageFinished(time_s=2.5, run_id=5, name="forward", seconds=0.4, count=2),
    copied(2.5, 8, 0.5, run_id=5, to_device="sim:0", blocking=False),
    EpochFinished(time_s=2.5, run_id=5, epoch=1, device="sim:0", loss=2.0, accuracy=0.5, seconds=1.0, observation="ok"),
    Note(time_s=2.6, run_id=5, topic="placement", text="all on sim:0"),
    Marker(time_s=2.75, label="here"),
    Marker(time_s=2.8, label="taken back"),
    Marker(time_s=2.9, label="made again"),
    Warning(time_s=3.0, level="warning", device="host", text="fills", ratio=0.85),
    SourceFailed(time_s=3.0, source="nvml", text="gone"),
    RunEnd(time_s=3.0, run_id=5, status="finished", seconds=2.0, steps=2, result={}),
    Marker(time_s=2.8, label="taken back", category="removed"),
    Marker(time_s=2.9, label="made again", category="removed"),
    Marker(time_s=2.9, label="made again"),
)


def traced(folder: Path, records: Sequence[Record]) -> dict[str, Any]:
    recorder = Recorder(folder / "source.gpudash", meta={"host_product": "EPYC"})
    for record in records:
        recorder.add(record)
    recorder.close()
    with open_recording(recorder.path) as opened:
        export(opened, "trace", folder / "out.json")
    trace: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    return trace


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, Any]:
    return traced(tmp_path, RUN)


def of(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [entry for entry in trace["traceEvents"] if entry["ph"] == phase]


def test_a_recording_becomes_a_valid_trace(trace: dict[str, Any]) -> None:
    validate(trace)
    assert trace["otherData"]["host_product"] == "EPYC"


def test_processes_and_threads_are_named(trace: dict[str, Any]) -> None:
    names = {
        (entry["pid"], entry["tid"]): entry["args"]["name"]
        for entry in of(trace, "M")
        if entry["name"] == "thread_name"
    }
    assert names == {
        (0, 0): "marks and warnings",
        (1, 1): "run",
        (1, 2): "stage move model",
        (1, 3): "steps",
        (1, 4): "stage forward",
        (1, 5): "copies H2D",
        (1, 6): "epochs",
    }
    processes = [entry["args"]["name"] for entry in of(trace, "M") if entry["name"] == "process_name"]
    assert processes == ["machine", "training on sim:0 (SIMULATED)"]


def test_slices_are_where_their_work_was_and_do_not_cross(trace: dict[str, Any]) -> None:
    slices = [(entry["name"], entry["ts"], entry["dur"]) for entry in of(trace, "X")]
    assert slices == [
        ("move model", 1_000_000.0, 250_000.0),
        ("step 1", 1_500_000.0, 500_000.0),
        ("step 2", 2_000_000.0, 500_000.0),  # it says 0.6 s, of which 0.1 s lie before the end of step 1
        ("forward × 2", 2_100_000.0, 400_000.0),
        ("cpu → sim:0 (SIMULATED)", 2_000_000.0, 500_000.0),
        ("epoch 1", 1_500_000.0, 1_000_000.0),
        ("training", 1_000_000.0, 2_000_000.0),
    ]
    step = next(entry for entry in of(trace, "X") if entry["name"] == "step 2")
    assert step["args"]["seconds"] == 0.6
    run = next(entry for entry in of(trace, "X") if entry["name"] == "training")
    assert run["args"]["status"] == "finished"
    assert run["args"]["simulated"] is True
    assert run["args"]["spec"] == {"steps": 2}


def test_memory_and_loss_are_counters(trace: dict[str, Any]) -> None:
    counters = [(entry["name"], entry["pid"], entry["ts"], entry["args"]) for entry in of(trace, "C")]
    assert counters == [
        ("memory of host", 0, 500_000.0, {"used_bytes": 100}),
        ("allocator of sim:0 (SIMULATED)", 0, 600_000.0, {"allocated_bytes": 40, "reserved_bytes": 64}),
        ("loss", 1, 2_000_000.0, {"loss": 2.5}),
        ("accuracy", 1, 2_000_000.0, {"accuracy": 0.25}),
    ]


def test_marks_warnings_and_a_loss_that_is_no_number_are_instants(trace: dict[str, Any]) -> None:
    instants = [(entry["name"], entry["s"]) for entry in of(trace, "i")]
    assert instants == [
        ("loss is nan", "t"),
        ("placement: all on sim:0", "t"),
        ("here", "g"),
        ("made again", "g"),
        ("fills", "g"),
        ("gone", "g"),
    ]


def test_a_run_that_never_ended_reaches_to_the_last_record(tmp_path: Path) -> None:
    trace = traced(tmp_path, [*RUN[:5], Sample(9.0, "host", None, {"used_bytes": 1})])
    validate(trace)
    run = next(entry for entry in of(trace, "X") if entry["name"] == "training")
    assert (run["ts"], run["dur"], run["args"]["status"]) == (1_000_000.0, 8_000_000.0, "running")


def test_an_out_of_memory_is_marked_in_its_run(tmp_path: Path) -> None:
    ending = RunEnd(
        status="out_of_memory", time_s=4.0, run_id=5, error="sim", message="full", remedy="less", seconds=3.0, steps=2
    )
    trace = traced(tmp_path, [*RUN[:3], ending])
    validate(trace)
    assert [(entry["name"], entry["args"]["message"]) for entry in of(trace, "i")] == [("out of memory", "full")]


def test_an_empty_recording_is_a_valid_trace(tmp_path: Path) -> None:
    trace = traced(tmp_path, [])
    validate(trace)
    assert not of(trace, "X")


times = st.floats(0, 100, allow_nan=False)
spans = st.floats(0, 50, allow_nan=False)
happenings = st.one_of(
    st.builds(StageFinished, time_s=times, run_id=st.just(1), name=st.sampled_from("ab"), seconds=spans),
    st.builds(StepFinished, time_s=times, run_id=st.just(1), step=st.just(1), steps=st.just(9),
              seconds=st.none() | spans, loss=st.floats()),
    st.builds(Marker, time_s=times, label=st.text(st.characters(exclude_categories=("Cs",)), max_size=5)),
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(happenings, max_size=30))
def test_whatever_overlaps_in_a_recording_nests_in_its_trace(records: list[Record], tmp_path: Path) -> None:
    for name in ("source.gpudash", "out.json"):
        (tmp_path / name).unlink(missing_ok=True)
    start = RunStarted(time_s=0.0, run_id=1, workload="w", device="cpu", spec={})
    validate(traced(tmp_path, [start, *records]))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda entries: next(e for e in entries if e["ph"] == "X").pop("dur"),
        lambda entries: next(e for e in entries if e["name"] == "step 2").update(ts=1_600_000.0),
        lambda entries: entries.remove(next(e for e in entries if e["name"] == "thread_name")),
        lambda entries: next(e for e in entries if e["ph"] == "i").update(s="x"),
        lambda entries: next(e for e in entries if e["ph"] == "C").update(args={"a": math.inf}),
    ],
)
def test_the_validator_sees_what_is_wrong(trace: dict[str, Any], spoil: Any) -> None:
    spoilt = copy.deepcopy(trace)
    spoil(spoilt["traceEvents"])
    with pytest.raises((AssertionError, KeyError)):
        validate(spoilt)
