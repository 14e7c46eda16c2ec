"""A recording for trackers of experiments: its points, TensorBoard's event files, and what is refused."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event

from gpudash.cli import run
from gpudash.telemetry.export.points import ScalarPoint, run_facts, scalar_points
from gpudash.telemetry.export.trackers import export_to_tracker, mlflow_name
from gpudash.telemetry.recording.reading import Recording, open_recording
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import Record, RunEnd, RunStarted, Sample, StepFinished

ORIGIN_S = 1_795_255_200.0

RECORDS: Sequence[Record] = (
    Sample(0.5, "host", None, {"used_bytes": 100, "cpu_utilisation": 0.5}),
    RunStarted(time_s=1.0, run_id=5, workload="train/../me", device="sim:0", spec={"steps": 2}),
    Sample(1.1, "allocator", "sim:0", {"allocated_bytes": 40, "reserved_bytes": 64}),
    Sample(1.2, "allocator", "sim:0", {"allocated_bytes": 30, "reserved_bytes": None}),
    StepFinished(time_s=2.0, run_id=5, step=1, steps=2, seconds=0.5, loss=2.5, losses={"gan": 1.0}),
    Sample(2.1, "allocator", "sim:0", {"allocated_bytes": 70, "reserved_bytes": 128}),
    StepFinished(time_s=2.5, run_id=5, step=2, steps=2, seconds=0.6, loss=math.nan),
    Sample(2.6, "allocator", "sim:0", {"allocated_bytes": 90, "reserved_bytes": 128}),
    RunEnd(time_s=2.7, run_id=5, status="finished", seconds=1.7, steps=2, result={}),
    Sample(2.8, "allocator", "sim:0", {"allocated_bytes": 10, "reserved_bytes": 128}),
)

RUN = "run-5-train_.._me"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    recorder = Recorder(tmp_path / "run.gpudash", meta={"wall_clock_origin": "2026-11-21T10:00:00+00:00"})
    for record in RECORDS:
        recorder.add(record)
    recorder.close()
    return recorder.path


def points(recording: Recording) -> dict[tuple[str, str], list[ScalarPoint]]:
    found: dict[tuple[str, str], list[ScalarPoint]] = {}
    for point in scalar_points(recording, iter):
        found.setdefault((point.run, point.tag), []).append(point)
    return found


def test_a_run_has_its_losses_and_the_highest_memory_of_each_step(recording: Path) -> None:
    with open_recording(recording) as opened:
        found = points(opened)
        facts = run_facts(opened)
    assert [(point.step, point.value) for point in found[RUN, "memory/sim:0/allocated_bytes"]] == [
        (1, 40.0),
        (2, 70.0),
        (3, 90.0),
    ], "the last step has not ended"
    assert [point.step for point in found[RUN, "loss"]] == [1, 2] and math.isnan(found[RUN, "loss"][1].value)
    assert found[RUN, "loss/gan"][0].value == 1.0
    assert found[RUN, "loss"][0].wall_s == ORIGIN_S + 2.0
    assert facts == {RUN: {"workload": "train/../me", "steps": 2}}


def test_the_machine_has_every_reading_and_a_gap_has_none(recording: Path) -> None:
    with open_recording(recording) as opened:
        found = points(opened)
    allocated = found["machine", "memory/sim:0/allocated_bytes"]
    assert [(point.step, point.value) for point in allocated] == [
        (1100, 40.0),
        (1200, 30.0),
        (2100, 70.0),
        (2600, 90.0),
        (2800, 10.0),
    ]
    assert len(found["machine", "memory/sim:0/reserved_bytes"]) == 4
    assert found["machine", "readings/host/cpu_utilisation"][0].value == 0.5


def events(path: Path) -> list[Event]:
    """The events of a file, each with its length and its checksums (tensorflow/core/lib/io/record_writer.h)."""
    data, place, found = path.read_bytes(), 0, []
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        body = data[place + 12 : place + 12 + length]
        assert struct.unpack_from("<I", data, place + 8) == (masked(data[place : place + 8]),)
        assert struct.unpack_from("<I", data, place + 12 + length) == (masked(body),)
        found.append(Event.FromString(body))
        place += 16 + length
    return found


def masked(data: bytes) -> int:
    found = crc32c(data)
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tensorboard_gets_an_event_file_for_each_run(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "logs"
    assert run(["export", str(recording), "--format", "tensorboard", "-o", str(out)]) == 0
    assert capsys.readouterr().err == f"Wrote {out}\ntensorboard --logdir {out} shows it.\n"
    assert sorted(path.name for path in out.iterdir()) == ["machine", RUN]
    (file,) = (out / RUN).iterdir()
    first, *others = events(file)
    assert first.file_version == "brain.Event:2" and ".tfevents." in file.name
    losses = [
        (event.step, event.summary.value[0].simple_value) for event in others if event.summary.value[0].tag == "loss"
    ]
    assert losses[0] == (1, 2.5) and len(losses) == 2
    assert others[0].wall_time == ORIGIN_S + 2.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "logs", "run.gpudash"], "and nothing else"


def test_a_folder_that_holds_something_is_left_alone(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "logs"
    out.mkdir()
    (out / "mine").write_text("kept")
    with open_recording(recording) as opened:
        for place, words in (
            (out, "new or empty"),
            (recording, "new or empty"),
            (tmp_path / "a" / "b", "does not exist"),
        ):
            with pytest.raises(RecordingError, match=words):
                export_to_tracker(opened, "tensorboard", place)
    assert [path.name for path in out.iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["logs", "run.gpudash"]


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("loss", "loss"),
        ("loss/gan", "losses/gan"),
        ("loss/a/b", "losses/a.b"),
        ("memory/cuda:0/allocated_bytes", "memory/cuda:0/allocated_bytes"),
        ("loss/../../x\x1b[2J", "losses/x__2J"),
        ("/etc/../passwd", "_/etc/_/passwd"),
    ],
)
def test_a_name_for_mlflow_is_a_path_in_its_folder_and_none_of_a_metric_that_is_a_file(tag: str, name: str) -> None:
    assert mlflow_name(tag) == name


@pytest.mark.parametrize(
    ("to", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow-skinny")]
)
def test_a_library_that_is_missing_is_named_with_the_line_that_brings_it(
    recording: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    to: str,
    package: str,
) -> None:
    module = package.removesuffix("-skinny")
    for name in (module, f"{module}.event_file_writer"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run(["export", str(recording), "--to", to, "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f'needs {package}, which is not installed; run: pip install "gpudash[trackers]"' in said
    assert not (tmp_path / "out").exists()
