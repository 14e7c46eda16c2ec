"""`Replay`: a recording read back is the session that wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudash.session import Replay
from gpudash.specs import PipelineSpec
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import Note, StepFinished
from gpudash.units import GIB
from tests.unit.session.conftest import CUDA_TORCH, HOST_TOTAL, PATIENCE_S, Live, Make, gpu


@pytest.fixture
def live(make: Make) -> Live:
    """A closed session with two GPUs, a run and marks."""
    live = make(record=True)
    live.monitor.has(gpu(0), gpu(1))
    live.worker.torch(CUDA_TORCH)
    live.monitor.host(4 * GIB, total=live.session.devices()[0].total_bytes or HOST_TOTAL)
    live.monitor.card(gpu(0), 2 * GIB)
    live.settle()
    live.session.start_run(PipelineSpec(), "cuda:1")
    live.worker.begin()
    live.session.emit(StepFinished(time_s=live.session.clock(), run_id=1, step=1, steps=1, seconds=0.1, loss=0.25))
    live.session.mark("look here", 0.123456)
    live.worker.finish()
    assert live.session.wait_run(PATIENCE_S)
    assert live.session.close()
    return live


@pytest.fixture
def replay(live: Live) -> Replay:
    assert live.session.recording is not None
    return Replay(live.session.recording)


def test_devices_and_their_names_are_the_same(live: Live, replay: Replay) -> None:
    assert replay.devices() == live.session.devices()
    assert replay.gpus == live.session.gpus
    assert replay.device_words("GPU-1") == "cuda:1"
    assert replay.default_device() == "cuda:1"


def test_readings_runs_and_marks_are_the_same(live: Live, replay: Replay) -> None:
    for metric in ("used_bytes", "free_bytes"):
        assert replay.store.latest("gpu", metric, "GPU-0") == live.session.store.latest("gpu", metric, "GPU-0")
    assert [run.summary() for run in replay.store.runs] == [run.summary() for run in live.session.store.runs]
    marks = [(mark.label, mark.time_s) for mark in live.session.store.markers]
    assert [(mark.label, mark.time_s) for mark in replay.store.markers] == sorted(marks, key=lambda mark: mark[1])
    assert ("look here", 0.123456) in marks


def test_wall_clock_time_survives_to_the_microsecond(live: Live, replay: Replay) -> None:
    assert replay.began_wall_s == pytest.approx(live.session.began_wall_s, abs=1e-6)


def test_nothing_can_be_run_in_a_recording(replay: Replay) -> None:
    assert replay.live is None
    assert replay.close()


def test_a_recording_with_facts_of_a_newer_minor_version_opens(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "newer.gpudash", meta={"wall_clock_origin": "long ago"})
    facts = {"nvml_index": 0, "uuid": "GPU-0", "pci_bus_id": "41:00.0", "product": "NVIDIA X", "colour": "green"}
    recorder.add(Note(time_s=0.0, topic="gpus", text="", details={"gpus": [facts], "torch_names": {"cuda:0": "GPU-0"}}))
    recorder.close()
    replay = Replay(tmp_path / "newer.gpudash")
    assert [found.product for found in replay.gpus] == ["NVIDIA X"]
    assert replay.began_wall_s == (tmp_path / "newer.gpudash").stat().st_mtime


def test_what_is_no_recording_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "no.gpudash").write_text("no")
    with pytest.raises(RecordingError, match="is not a recording"):
        Replay(tmp_path / "no.gpudash")
