"""The recordings that the nodes of one run have made open as one, and others are refused."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.recordings.joining import JoinedRecording
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import Event, Note, RunEnd, RunStarted, Sample
from tests.unit.session.node_recordings import BEGAN_S, MIB, STEPS, recorded


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where private folders are made."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


def read(*paths: Path) -> tuple[str, list[Sample], list[Event]]:
    joined = JoinedRecording(paths)
    try:
        with open_recording(joined.path) as recording:
            assert recording.meta["status"] != "running" and not recording.notices
            return joined.path.name, list(recording.samples("rank")), list(recording.events())
    finally:
        joined.remove()


def only(events: list[Event], kind: type[Any], **facts: Any) -> Any:
    (found,) = (one for one in events if isinstance(one, kind) and all(getattr(one, k) == v for k, v in facts.items()))
    return found


def test_ranks_of_both_nodes_come_to_one_time_axis_and_are_compared_anew(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1))
    two = recorded(tmp_path / "two.gpudash", (2, 3), shift_s=3.0, computing_s=0.098)
    name, samples, events = read(two, one)
    assert name == "two + one.gpudash"
    first = [sample for sample in samples if sample.values.get("step") == 1]
    assert [sample.device for sample in first] == ["0", "1", "2", "3"]
    assert {round(sample.time_s, 6) for sample in first} == {10.1}
    assert [sample.values["waiting_s"] for sample in first] == pytest.approx([0.018, 0.018, 0.0, 0.0])
    assert [sample.values["communication_s"] for sample in first] == pytest.approx([0.002] * 4)
    assert {sample.device: sample.time_s for sample in samples if "used_bytes" in sample.values} == {
        rank: pytest.approx(18.0) for rank in "0123"
    }
    note = only(events, Note, topic="ranks")
    assert note.text == "4 ranks on 2 nodes train with DistributedDataParallel over gloo."
    assert [row["host"] for row in note.details["ranks"]] == ["one", "one", "two", "two"]
    end = only(events, RunEnd)
    assert end.result["exit_code"] == 0
    assert [(row["rank"], row["steps"], row["peak_used_bytes"]) for row in end.result["ranks"]] == [
        (rank, STEPS, 999) for rank in range(4)
    ]
    assert only(events, Note, topic="imbalance").details["rank"] == 3
    assert end.result["memory_imbalance"]["bytes"] == 500 * MIB
    assert len([event for event in events if isinstance(event, RunStarted)]) == 1


def test_a_slow_rank_that_its_own_node_could_not_know_is_named(tmp_path: Path) -> None:
    paths = [
        recorded(tmp_path / f"{rank}.gpudash", (rank,), world_size=3, computing_s=0.096 if rank == 1 else 0.08)
        for rank in range(3)
    ]
    _name, _samples, events = read(*paths)
    assert only(events, Note, topic="straggler").details == {"rank": 1, "slower": pytest.approx(0.2)}
    assert only(events, RunEnd).result["straggler"]["rank"] == 1


def test_how_it_ended_on_another_node_is_told(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1))
    two = recorded(tmp_path / "two.gpudash", (2, 3), failed=True)
    _name, _samples, events = read(one, two)
    assert only(events, Note, topic="program").text == "On two: Rank 3: no."
    assert only(events, RunEnd).status == "finished"


def test_five_ranks_on_two_nodes_have_an_envelope(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1, 2), world_size=5)
    two = recorded(tmp_path / "two.gpudash", (3, 4), world_size=5)
    _name, samples, _events = read(one, two)
    assert {sample.device for sample in samples} >= {"lowest", "median", "highest"}


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            {"run": "job8"},
            "one.gpudash and two.gpudash are of different runs (run job7 of 4 ranks; run job8 of 4 ranks)",
        ),
        ({"world_size": 6}, "are of different runs (run job7 of 4 ranks; run job7 of 6 ranks)"),
        ({"ranks": (1, 2)}, "one.gpudash and two.gpudash both hold rank 1;"),
        ({"ranks": (0, 1)}, "one.gpudash and two.gpudash both hold ranks 0 to 1;"),
        ({"shift_s": 9000.0, "late": True}, "one.gpudash and two.gpudash are of different times"),
    ],
)
def test_what_is_not_of_one_run_is_refused_by_name(tmp_path: Path, facts: dict[str, Any], sentence: str) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1))
    late = facts.pop("late", False)
    two = recorded(tmp_path / "two.gpudash", **{"ranks": (2, 3), **({} if late else facts)})
    if late:  # recorded as ever, but on another day
        moved = datetime.fromtimestamp(BEGAN_S + facts["shift_s"], UTC).isoformat()
        with closing(sqlite3.connect(two)) as database, database:
            database.execute("UPDATE meta SET value = ? WHERE key = 'wall_clock_origin'", (moved,))
    with pytest.raises(ValueError, match=r".*") as refused:
        JoinedRecording([one, two])
    assert sentence in str(refused.value)


def test_runs_without_an_id_are_not_joined(tmp_path: Path) -> None:
    paths = [recorded(tmp_path / f"{rank}.gpudash", (rank,), run=None) for rank in range(2)]
    with pytest.raises(ValueError, match="run without an id"):
        JoinedRecording(paths)


def test_a_recording_without_ranks_is_refused(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1))
    recorder = Recorder(tmp_path / "alone.gpudash", meta={})
    recorder.close()
    with pytest.raises(ValueError, match=r"alone\.gpudash holds no run with ranks"):
        JoinedRecording([one, recorder.path])


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1))
    (tmp_path / "text").write_text("no")
    with pytest.raises(RecordingError, match="is not a recording"):
        JoinedRecording([one, tmp_path / "text"])


def test_many_long_names_make_a_short_one(tmp_path: Path) -> None:
    paths = [recorded(tmp_path / f"{'n' * 50}{rank}.gpudash", (rank,)) for rank in range(4)]
    name, _samples, _events = read(*paths)
    assert name == f"4 nodes of {'n' * 50}0.gpudash"


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [recorded(tmp_path / f"{rank}.gpudash", (rank,)) for rank in range(2)]
    monkeypatch.setattr(Recorder, "add", lambda recorder, _record: setattr(recorder, "failed", "The disk is full."))
    with pytest.raises(OSError, match="The disk is full"):
        JoinedRecording(paths)
