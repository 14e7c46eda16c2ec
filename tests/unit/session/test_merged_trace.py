"""A recording beside a profile of the same time, on one clock."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.memory.profiler_trace.profile import read_profile
from gpudash.session.trackers.merged_trace import FIRST_PROCESS
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import RunStarted, Sample, StepFinished
from tests.unit.memory.profiler_trace.traces import ON_A_GPU, document, operator, written
from tests.unit.telemetry.trace_format import validate

ORIGIN_S = 1_795_255_200
"""2026-11-21 10:00:00 UTC."""

BASE_NS = (ORIGIN_S - 1000) * 1_000_000_000
"""The profile's clock began 1000 s before the session."""

SHIFT_US = 1000e6


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    recorder = Recorder(tmp_path / "run.gpudash", meta={"wall_clock_origin": "2026-11-21T10:00:00+00:00"})
    recorder.add(RunStarted(time_s=1.0, run_id=1, workload="training", device="cuda:0", spec={}))
    recorder.add(Sample(2.0, "allocator", "cuda:0", {"allocated_bytes": 40, "reserved_bytes": 64}))
    recorder.add(StepFinished(time_s=2.1, run_id=1, step=1, steps=1, seconds=0.1, loss=2.5))
    recorder.add(Sample(9.0, "allocator", "cuda:0", {"allocated_bytes": 50, "reserved_bytes": 64}))
    recorder.close()
    return recorder.path


def profile(folder: Path, **facts: Any) -> Path:
    """A profile of the session's third second."""
    events = [{**event, "ts": event["ts"] + SHIFT_US + 2e6} for event in ON_A_GPU]
    events.append({**operator("aten::odd", SHIFT_US + 2e6 + 150, 1, 8), "args": {"value": math.nan}})
    return written(folder, document(events, **facts), "profile.json.gz")


def test_the_recording_s_memory_stands_at_the_profiler_s_times(recording: Path, tmp_path: Path) -> None:
    made, out = profile(tmp_path, baseTimeNanoseconds=BASE_NS), tmp_path / "merged.json.gz"
    asked = ["export", str(recording), "--format", "perfetto", "--profile", str(made), "-o", str(out)]
    assert run(asked) == 0
    with gzip.open(out, "rt") as file:
        merged = json.load(file)
    ours = [event for event in merged["traceEvents"] if event["pid"] >= FIRST_PROCESS]
    theirs = [event for event in merged["traceEvents"] if event["pid"] < FIRST_PROCESS]
    (memory,) = (event for event in ours if event["name"] == "allocator of cuda:0")
    assert memory["ts"] == SHIFT_US + 2e6 and memory["args"] == {"allocated_bytes": 40, "reserved_bytes": 64}
    (step,) = (event for event in ours if event["name"] == "step 1")
    assert step["ts"] + step["dur"] == SHIFT_US + 2.1e6
    named = [event["args"]["name"] for event in ours if event["name"] == "process_name"]
    assert named == ["gpudash: machine", "gpudash: training on cuda:0"]
    counters = [event["args"]["allocated_bytes"] for event in theirs if event["ph"] == "C"]
    assert counters == [600, 900, 300, 400, 100]
    assert "aten::odd" not in {event["name"] for event in theirs}, "Perfetto reads no NaN"
    validate({"displayTimeUnit": "ms", "otherData": {}, "traceEvents": ours})
    assert merged["baseTimeNanoseconds"] == BASE_NS
    assert read_profile(out).memory == read_profile(made).memory, "it still opens as a profile"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "does not say when it was made"),
        (
            {"baseTimeNanoseconds": 0},
            "of another time (1970-01-01 00:16:42 UTC) than the recording, which began at 2026",
        ),
        ({"baseTimeNanoseconds": -9 * 10**18}, "of another time (no time of a calendar)"),
    ],
    ids=["no clock", "1970", "negative"],
)
def test_a_profile_of_another_time_is_refused_and_nothing_is_written(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], words: str
) -> None:
    made, out = profile(tmp_path, **facts), tmp_path / "merged.json"
    assert run(["export", str(recording), "--to", "trace", "--profile", str(made), "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not out.exists()


def test_what_is_no_profile_and_what_would_be_lost_are_refused(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = profile(tmp_path, baseTimeNanoseconds=BASE_NS)
    before = made.read_bytes()
    out = str(tmp_path / "merged.json")
    for words, target, sentence in (
        (["--to", "trace", "--profile", str(recording)], out, "no JSON object"),
        (["--to", "trace", "--profile", str(tmp_path / "gone")], out, "there is no file"),
        (["--to", "csv", "--profile", str(made)], out, "--profile is for a trace"),
        (["--to", "trace", "--profile", str(made), "--force"], str(made), "is the profile itself"),
    ):
        assert run(["export", str(recording), *words, "-o", target]) == 2
        assert sentence in capsys.readouterr().err
    assert made.read_bytes() == before and not Path(out).exists()
