"""Runs read from recordings to be compared: which run, what is known of it, and what cannot be read."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpudash.session.recordings.comparing.comparison_loader import CancelledError, load_run, split_run
from gpudash.telemetry.comparing import compare
from gpudash.telemetry.comparing.curves import Alignment, aligned
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import REMOVED, Marker, Note, Sample, StepFinished
from gpudash.units import MIB
from tests.unit.telemetry.comparing.made import MADE, Made

SECOND = MADE.but(run_id=2, began_s=10.0, steps=40, spec={"model": "cnn"})


def test_what_was_recorded_is_what_is_compared(tmp_path: Path) -> None:
    run = load_run(MADE.but(marks=(("look", 0.5),)).record(tmp_path / "a.gpudash"))
    direct = MADE.run()
    assert run.view.summary() == direct.view.summary()
    assert run.steps.loss.tolist() == direct.steps.loss.tolist()
    assert run.steps.time_s.tolist() == pytest.approx(direct.steps.time_s.tolist())
    assert run.stages["forward"].tolist() == pytest.approx(direct.stages["forward"].tolist())
    assert "look" in [mark.label for mark in run.marks]
    assert run.machine["processor"] == "a CPU, 2 cores"
    assert run.label == "a.gpudash"


def test_a_mark_that_was_taken_back_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.gpudash"
    recorder = Recorder(path, meta={})
    for event in MADE.but(marks=(("kept", 0.5), ("gone", 0.6))).events():
        recorder.add(event)
    recorder.add(Marker(time_s=MADE.began_s + 0.6, label="gone", category=REMOVED))
    recorder.close()
    labels = [mark.label for mark in load_run(path).marks]
    assert labels.count("kept") == 1
    assert "gone" not in labels


def test_the_last_run_is_taken_unless_another_is_picked(tmp_path: Path) -> None:
    path = MADE.record(tmp_path / "a.gpudash", SECOND)
    last = load_run(path)
    assert last.view.spec == {"model": "cnn"}
    assert "a.gpudash holds 2 runs; this is the last one" in last.notes[0]
    first = load_run(path, 1)
    assert (first.view.spec["model"], first.label, len(first.steps.loss)) == ("mlp", "a.gpudash#1", 200)
    assert not first.notes
    assert compare(first, last).changed


def test_a_run_is_picked_behind_the_name_of_the_file(tmp_path: Path) -> None:
    assert split_run("runs/a.gpudash#2") == (Path("runs/a.gpudash"), 2)
    assert split_run("a.gpudash") == (Path("a.gpudash"), None)
    own = tmp_path / "odd#2"
    own.touch()
    assert split_run(str(own)) == (own, None)
    for wrong in ("a.gpudash#0", "a.gpudash#x", "a.gpudash#²"):
        with pytest.raises(RecordingError, match="write its number"):
            split_run(wrong)


def test_a_run_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="holds one run; there is no run 2"):
        load_run(MADE.record(tmp_path / "a.gpudash"), 2)
    Recorder(tmp_path / "none.gpudash", meta={}).close()
    with pytest.raises(RecordingError, match="holds no run, so there is nothing to compare"):
        load_run(tmp_path / "none.gpudash")


def test_a_loss_that_a_program_told_as_nan_is_a_gap_and_a_step_without_one_is_none(tmp_path: Path) -> None:
    losses = [2.0, None, 1.5, float("nan"), None, 1.0]
    began, *steps = MADE.but(workload="watch", steps=len(losses), ending="running").events()
    told = [event for event in steps if isinstance(event, StepFinished)]
    path = tmp_path / "a.gpudash"
    recorder = Recorder(path, meta={})
    for event in (began, *(replace(step, loss=loss) for step, loss in zip(told, losses, strict=True))):
        recorder.add(event)
    recorder.close()
    run = load_run(path)
    alignments: tuple[Alignment, ...] = ("start", "step")
    for alignment in alignments:
        np.testing.assert_equal(aligned(run, "loss", alignment).y, [2.0, 1.5, np.nan, 1.0])
    assert aligned(run, "loss", "step").x.tolist() == [1, 3, 4, 6]
    assert not np.isnan(aligned(run, "accuracy", "start").y).any()


@pytest.mark.parametrize("content", [b"", b"no recording", b"SQLite format 3\x00" + bytes(100)])
def test_a_file_that_is_no_recording_is_told_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.gpudash"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as refusal:
        load_run(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)
    with pytest.raises(RecordingError, match="does not exist"):
        load_run(tmp_path / "gone.gpudash")


def test_a_run_that_is_still_recorded_is_compared_as_far_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "live.gpudash"
    recorder = Recorder(path, meta={})
    for event in MADE.but(ending="running").events():
        recorder.add(event)
    recorder.commit()
    try:
        run = load_run(path)
    finally:
        recorder.close()
    assert run.view.status == "running"
    assert len(run.steps.loss) == 200
    assert not run.notes


def test_a_recording_that_was_never_closed_is_said(tmp_path: Path) -> None:
    path = MADE.but(ending="running").record(tmp_path / "killed.gpudash")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = 'running' WHERE key = 'status'")
    connection.close()
    assert "was never closed" in load_run(path).notes[0]


def test_reading_ends_when_nobody_waits(tmp_path: Path) -> None:
    path = MADE.record(tmp_path / "a.gpudash")
    with pytest.raises(CancelledError):
        load_run(path, cancelled=lambda: True)


def _on_cpu(path: Path, busy: float | None, meta: dict[str, int]) -> Path:
    made: Made = MADE.but(device="cpu", allocated=None)
    recorder = Recorder(path, meta=meta)
    for number in range(20):
        values: dict[str, float | int] = {"used_bytes": 900 * MIB, "process_bytes": (100 + number) * MIB}
        if busy is not None:
            values |= {"cpu_utilisation": busy, "process_cpu_utilisation": 1.0}
        recorder.add(Sample(2.0 + number * 0.1, "host", None, values))
    recorder.add(Note(time_s=2.0, topic="torch", text="torch 2.13.0, CPU build"))
    for event in made.events():
        recorder.add(event)
    recorder.close()
    return path


def test_memory_of_a_run_on_the_cpu_is_that_of_the_process(tmp_path: Path) -> None:
    run = load_run(_on_cpu(tmp_path / "a.gpudash", None, {}))
    assert list(run.memory) == ["used"]
    assert run.memory["used"].y.max() == 119 * MIB
    assert run.view.memory.used_bytes == 119 * MIB
    assert run.machine["torch"] == "2.13.0, CPU build"


def test_a_shared_processor_is_noticed_where_the_number_of_cores_is_known(tmp_path: Path) -> None:
    shared = load_run(_on_cpu(tmp_path / "a.gpudash", 1.0, {"host_cpus": 2}))
    assert shared.crowding == pytest.approx(0.5)
    assert load_run(_on_cpu(tmp_path / "b.gpudash", 0.5, {"host_cpus": 2})).crowding == 0.0
    assert load_run(_on_cpu(tmp_path / "c.gpudash", 1.0, {})).crowding == 0.0
    assert load_run(_on_cpu(tmp_path / "d.gpudash", None, {"host_cpus": 2})).crowding == 0.0


def test_the_allocators_memory_of_a_gpu_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "a.gpudash"
    recorder = Recorder(path, meta={})
    gpu = {"nvml_index": 0, "uuid": "GPU-1", "pci_bus_id": "", "product": "RTX", "total_bytes": 2**33}
    recorder.add(
        Note(time_s=0.0, topic="gpus", text="RTX", details={"gpus": [gpu], "torch_names": {"cuda:0": "GPU-1"}})
    )
    for number in range(21):
        at = 2.0 + number * 0.1
        recorder.add(Sample(at, "allocator", "cuda:0", {"allocated_bytes": number * MIB, "reserved_bytes": 64 * MIB}))
        recorder.add(Sample(at, "gpu", "GPU-1", {"used_bytes": 500 * MIB}))
    for event in MADE.events():
        recorder.add(event)
    recorder.close()
    run = load_run(path)
    assert list(run.memory) == ["allocated", "reserved", "used"]
    assert run.memory["allocated"].y.max() == 20 * MIB
    assert run.machine["GPU"] == "RTX"


def test_nothing_is_written_beside_what_is_read(tmp_path: Path) -> None:
    path = MADE.record(tmp_path / "a.gpudash")
    before = path.read_bytes(), sorted(tmp_path.iterdir())
    load_run(path)
    assert (path.read_bytes(), sorted(tmp_path.iterdir())) == before
