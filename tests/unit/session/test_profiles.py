"""What is asked of the profiler, and where its traces are found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudash.session import Session
from gpudash.session.live.running import MOST_STEPS, profile_request, trace_of
from gpudash.specs import MatmulSpec, PipelineSpec
from gpudash.system.settings import Settings, recordings_folder
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.retention import prune, trash_folder
from gpudash.telemetry.recording.schema import trace_name, traces_of
from gpudash.telemetry.records import Note, Topic


def test_the_trace_lies_beside_the_recording(tmp_path: Path) -> None:
    wish = profile_request(3, tmp_path / "run.gpudash")

    assert (wish.steps, wish.stem, wish.from_start) == (3, str(tmp_path / "run"), False)


def test_without_a_recording_it_lies_where_one_would() -> None:
    stem = Path(profile_request(3, None, MatmulSpec()).stem)

    assert stem.parent == recordings_folder() and stem.name.endswith("-matmul")


def test_a_run_of_one_step_is_profiled_from_its_beginning() -> None:
    assert profile_request(3, None, PipelineSpec()).from_start
    assert not profile_request(3, None, PipelineSpec(repeat=2)).from_start


@pytest.mark.parametrize("steps", [0, -1, MOST_STEPS + 1])
def test_a_number_of_steps_that_is_not_profiled_is_refused(steps: int) -> None:
    with pytest.raises(ValueError, match=f"{steps} steps cannot be profiled at once; choose 1 to {MOST_STEPS}"):
        profile_request(steps, None)


def test_a_trace_is_found_beside_its_recording_also_after_both_were_moved(tmp_path: Path) -> None:
    written, moved = tmp_path / "then", tmp_path / "now"
    moved.mkdir()
    details = {"trace": str(written / "run-step-2.trace.json.gz")}
    assert trace_of(details, moved / "run.gpudash") is None

    (moved / "run-step-2.trace.json.gz").touch()
    assert trace_of(details, moved / "run.gpudash") == moved / "run-step-2.trace.json.gz"
    assert trace_of({"trace": None}, moved / "run.gpudash") is None and trace_of({}, None) is None


def test_a_second_profile_of_a_step_takes_a_name_of_its_own(tmp_path: Path) -> None:
    first = trace_name(tmp_path / "run", 2)
    first.touch()

    assert first.name == "run-step-2.trace.json.gz"
    assert trace_name(tmp_path / "run", 2).name == "run-step-2-2.trace.json.gz"


def test_traces_belong_to_the_recording_whose_name_they_carry(tmp_path: Path) -> None:
    for name in ("a[1]-step-2.trace.json.gz", "a1-step-2.trace.json.gz", "a[1].trace.json.gz"):
        (tmp_path / name).touch()

    assert [path.name for path in traces_of(tmp_path / "a[1].gpudash")] == ["a[1]-step-2.trace.json.gz"]


def test_a_recording_that_goes_to_the_trash_takes_its_traces_along_and_they_count(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    old, new = folder / "old.gpudash", folder / "new.gpudash"
    for path in (old, new):
        path.write_bytes(b"x" * 100)
    (folder / "old-step-2.trace.json.gz").write_bytes(b"t" * 1000)
    (folder / "new-step-2.trace.json.gz").write_bytes(b"t" * 10)

    moved = prune(folder, max_bytes=1150, max_count=10, keep=new)

    trash = trash_folder(folder)
    assert moved == [trash / "old.gpudash"] and (trash / "old-step-2.trace.json.gz").is_file()
    assert sorted(path.name for path in folder.iterdir()) == ["new-step-2.trace.json.gz", "new.gpudash"]


def test_a_sessions_run_is_profiled_and_the_recording_holds_it(tmp_path: Path) -> None:
    recording = tmp_path / "run.gpudash"
    session = Session(Settings(), recording=recording)
    session.start()
    try:
        session.load_torch()
        assert session.wait_ready(120)
        with pytest.raises(RuntimeError, match="No run is in progress"):
            session.profile(2)
        with pytest.raises(ValueError, match="cannot be profiled"):
            session.start_run(MatmulSpec(), "cpu", profile_steps=MOST_STEPS + 1)
        session.start_run(MatmulSpec(size=16, repeat=5), "cpu", profile_steps=2)
        assert session.runs.wait(60)
    finally:
        assert session.close()

    with open_recording(recording) as opened:
        notes = [event for event in opened.events() if isinstance(event, Note) and event.topic == Topic.OPERATORS]
    assert [note.details["steps"] for note in notes] == [2]
    assert trace_of(notes[0].details, recording) == tmp_path / "run-step-2.trace.json.gz"
