"""What a recording is about, told without reading it whole."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpudash.telemetry.recording import facts
from gpudash.telemetry.recording.facts import (
    RunFacts,
    RunText,
    read_facts,
    set_locked,
    set_run_text,
    set_title,
    standing_marks,
)
from gpudash.telemetry.recording.reading import is_locked, open_recording
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.recording.retention import prune
from gpudash.telemetry.records import REMOVED, Marker, Note, Record, RunEnd, RunStarted, Sample, StepFinished, Topic
from gpudash.telemetry.store import Store
from gpudash.units import GIB, MIB
from tests.unit.telemetry.recordings import ORIGIN, ORIGIN_S, begin, dated, record

MADE = Marker(time_s=1.0, label="a")

REMOVAL = Marker(time_s=1.0, label="a", category=REMOVED)

OTHER = Marker(time_s=2.0, label="a")

RUN = Marker(time_s=1.0, label="a", category="run")


def only_run(path: Path) -> RunFacts:
    (run,) = read_facts(path).runs
    return run


def test_a_run_on_a_gpu_is_told_with_the_peak_of_that_gpu_while_it_was_on(tmp_path: Path) -> None:
    path = record(tmp_path / "a.gpudash", device="cuda:0")
    run, facts = only_run(path), read_facts(path)
    assert (run.number, run.workload, run.device, run.simulated) == (1, "training", "cuda:0", False)
    assert (run.status, run.began_s, run.seconds) == ("finished", 1.0, 8.0)
    assert run.peak_bytes == 10 * GIB
    assert facts.duration_s == 10.0
    assert facts.began_wall_s == ORIGIN_S
    assert (facts.damage, facts.locked, facts.title) == ("", False, "")


def test_a_run_is_told_with_an_outline_of_its_memory_while_it_was_on(tmp_path: Path) -> None:
    assert only_run(record(tmp_path / "a.gpudash", device="cuda:0")).outline[0] == 30
    assert only_run(record(tmp_path / "b.gpudash", device="cuda:0")).outline[-1] == 100
    of_cpu = only_run(record(tmp_path / "c.gpudash")).outline
    assert len(of_cpu) == 8 and list(of_cpu) == sorted(of_cpu, key=lambda part: part or 0) and of_cpu[-1] == 100


def test_of_a_long_run_so_many_rows_are_read_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "OUTLINE_ROWS", 8)
    monkeypatch.setattr(facts, "OUTLINE_PARTS", 4)
    path = record(tmp_path / "a.gpudash", device="cuda:0")
    assert only_run(path).outline == (33, 56, 78, 100), "of two rows at the beginning of each of four parts"


def test_a_device_of_a_strange_name_is_never_part_of_a_question(tmp_path: Path) -> None:
    strange = only_run(record(tmp_path / "a.gpudash", device="x' OR '1'='1"))
    assert strange.outline == only_run(record(tmp_path / "b.gpudash", device="cuda:0")).outline, "that of its GPU"


def test_a_run_on_the_cpu_is_told_with_the_peak_of_its_process(tmp_path: Path) -> None:
    assert only_run(record(tmp_path / "a.gpudash")).peak_bytes == 109 * MIB


def test_a_peak_is_that_of_the_runs_own_device_and_never_above_the_card(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.gpudash", meta={"wall_clock_origin": ORIGIN})
    names = {"sim:0": "SIM-0"}
    recorder.add(Note(time_s=0.1, topic="gpus", text="", details={"gpus": [], "torch_names": names}))
    for number, device in enumerate(("sim:0", "cpu"), 1):
        recorder.add(RunStarted(time_s=10.0 * number, run_id=number, workload="training", device=device, spec={}))
        for second in range(8):
            time_s = 10.0 * number + second
            recorder.add(Sample(time_s, "host", None, {"process_bytes": (8 + second) * GIB, "total_bytes": 24 * GIB}))
            recorder.add(Sample(time_s, "gpu", "SIM-0", {"used_bytes": (second + 2) * GIB, "total_bytes": 8 * GIB}))
        recorder.add(
            RunEnd(time_s=10.0 * number + 9, run_id=number, status="finished", seconds=9.0, steps=1, result={})
        )
    recorder.commit()
    recorder.close()
    assert [run.peak_bytes for run in read_facts(recorder.path).runs] == [8 * GIB, 15 * GIB]


def test_what_a_run_itself_held_at_most_is_told_beside_the_use_of_the_whole_gpu(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.gpudash", meta={})
    recorder.add(RunStarted(time_s=1.0, run_id=1, workload="training", device="cuda:0", spec={}))
    memory = {"peak_allocated_bytes": 45 * MIB, "peak_reserved_bytes": 60 * MIB, "peak_used_bytes": 700 * MIB}
    recorder.add(RunEnd(time_s=6.0, run_id=1, status="finished", seconds=5.0, steps=4, result={"memory": memory}))
    recorder.commit()
    recorder.close()
    run = only_run(recorder.path)
    assert (run.own_peak_bytes, run.peak_bytes) == (45 * MIB, 700 * MIB)


def test_the_loss_and_the_peaks_of_a_run_are_those_of_its_digest(tmp_path: Path) -> None:
    recorder, store = Recorder(tmp_path / "a.gpudash", meta={}), Store()
    recorder.summarise(store)
    spec = {"width": 32, "environment": {}, "fields": {"model": "mlp", "environment": {}, "fields": {"width": 9}}}
    records: list[Record] = [
        RunStarted(time_s=1.0, run_id=7, workload="training", device="cpu", spec=spec),
        *(StepFinished(time_s=1.0 + n, run_id=7, step=n, steps=4, seconds=1.0, loss=1.0 / n) for n in range(1, 5)),
        RunEnd(
            time_s=6.0, run_id=7, status="finished", seconds=5.0, steps=4, result={"memory": {"peak_used_bytes": 7}}
        ),
    ]
    for record_ in records:
        store.apply(record_)
        recorder.add(record_)
    recorder.commit()
    recorder.close()
    run = only_run(recorder.path)
    assert run.own_peak_bytes is None
    assert (run.loss, run.peak_bytes, run.spec) == (0.25, 7, {"width": 32, "fields": {"model": "mlp"}})


@pytest.mark.parametrize("status", ["finished", "cancelled", "failed", "out_of_memory"])
def test_the_end_of_a_run_is_its_status(tmp_path: Path, status: str) -> None:
    assert only_run(record(tmp_path / "a.gpudash", status=status)).status == status


def test_a_simulated_run_says_so(tmp_path: Path) -> None:
    run = only_run(record(tmp_path / "a.gpudash", device="sim:0"))
    assert run.simulated
    assert run.device == "sim:0"


def test_a_session_without_a_run_has_none(tmp_path: Path) -> None:
    facts = read_facts(record(tmp_path / "a.gpudash", status=""))
    assert (facts.runs, facts.duration_s) == ((), 10.0)


def test_a_recording_that_is_being_written_is_told_as_far_as_it_has_come(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "a.gpudash", status="running")
    try:
        facts = read_facts(recorder.path)
    finally:
        recorder.close()
    assert ([run.status for run in facts.runs], facts.duration_s) == (["running"], 10.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "recording"), (b"SQLite format 3\0" + b"x" * 4000, "no SQLite file"), (b"hello", "no SQLite file")],
)
def test_what_cannot_be_opened_says_why_in_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.gpudash"
    path.write_bytes(content)
    facts = read_facts(path)
    assert words in facts.damage
    assert facts.damage.endswith(".")
    assert facts.runs == ()


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    assert "does not exist" in read_facts(tmp_path / "a.gpudash").damage


@pytest.mark.parametrize("json", ["[]", "{", '{"device": 3}', '{"details": {"torch_names": 3}}'])
def test_events_that_hold_something_else_cost_only_themselves(tmp_path: Path, json: str) -> None:
    path = record(tmp_path / "a.gpudash", device="cuda:0")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE event SET json = ? WHERE kind IN ('RunStarted', 'Note')", (json,))
    run = only_run(path)
    assert (run.workload, run.device, run.status) == ("training", "", "finished")


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    path = record(tmp_path / "a.gpudash")
    before = path.read_bytes(), path.stat().st_mtime_ns
    read_facts(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gpudash"]


def test_a_peak_that_takes_too_long_to_find_is_left_out(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "a.gpudash", status="running")
    recorder.close()
    with closing(sqlite3.connect(recorder.path)) as connection, connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) "
            "INSERT INTO host (time_s, process_bytes) SELECT 10.0, i FROM n"
        )
    assert read_facts(recorder.path, peak_s=-1.0).runs[0].peak_bytes is None
    assert read_facts(recorder.path, stopped=lambda: True).runs[0].peak_bytes is None
    assert read_facts(recorder.path).runs[0].peak_bytes == 110 * MIB


def test_a_locked_recording_is_not_tidied_away_until_it_is_unlocked(tmp_path: Path) -> None:
    path = record(tmp_path / "recordings" / "a.gpudash")
    set_locked(path, True)
    assert is_locked(path)
    assert prune(path.parent, 0, 1) == []
    set_locked(path, False)
    assert not is_locked(path)
    assert len(prune(path.parent, 0, 1)) == 1


def test_a_title_is_kept_and_can_be_taken_away(tmp_path: Path) -> None:
    path = record(tmp_path / "a.gpudash")
    set_title(path, "  Baseline ü, batch 48 ")
    assert read_facts(path).title == "Baseline ü, batch 48"
    set_title(path, "")
    with open_recording(path) as recording:
        assert "title" not in recording.meta


def test_the_date_of_the_file_stays(tmp_path: Path) -> None:
    path = dated(record(tmp_path / "a.gpudash"), 1234.0)
    set_title(path, "Baseline")
    assert path.stat().st_mtime == 1234.0


def test_rows_and_events_stay(tmp_path: Path) -> None:
    path = record(tmp_path / "a.gpudash")
    with open_recording(path) as recording:
        before = list(recording.records())
    set_locked(path, True)
    with open_recording(path) as recording:
        assert list(recording.records()) == before


class Going:
    """A session that goes on and is recorded, on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.recorder = begin(path, status="running")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()

    def _go_on(self) -> None:
        second = 11.0
        while not self._ended.wait(0.01):
            second += 1
            self.recorder.add(Sample(second, "host", None, {"process_bytes": MIB, "total_bytes": GIB}))
            self.recorder.tick()
        self.recorder.close()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Going]:
    session = Going(tmp_path / "a.gpudash")
    yield session
    session.end()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["by this process", "by another gpudash"])
def test_a_run_is_named_tagged_and_noted_while_its_session_is_being_recorded(
    going: Going, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = going.recorder.path
    if elsewhere:
        monkeypatch.setattr(facts, "recorder_of", lambda _path: None)
    set_run_text(path, 1, "title", " the wide one ")
    set_run_text(path, 1, "tags", "wide")
    set_run_text(path, 1, "note", "soon gone")
    set_run_text(path, 1, "note", "")
    set_locked(path, True)
    found = read_facts(path)
    assert (found.runs[0].label, found.locked) == (RunText("the wide one", "wide"), True)
    assert going.recorder.failed is None


def test_what_is_said_while_a_recording_is_closed_is_kept(going: Going) -> None:
    path, words = going.recorder.path, [f"word {number}" for number in range(20)]
    saying = threading.Thread(target=lambda: [set_run_text(path, 1, "note", word) for word in words])
    saying.start()
    going.end()
    saying.join()
    assert read_facts(path).runs[0].label.note == words[-1]


def test_a_read_only_one_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(tmp_path / "a.gpudash")
    monkeypatch.setattr(os, "access", lambda *_args: False)  # root may write everything
    with pytest.raises(RecordingError, match="read-only"):
        set_locked(path, True)


def refusal(path: Path) -> str | None:
    """Why the recording cannot be locked; ``None`` when it was."""
    try:
        set_locked(path, True)
    except RecordingError as error:
        return str(error)
    return None


def test_one_that_is_cut_off_is_left_as_it_is_or_locked_whole(tmp_path: Path) -> None:
    content = record(tmp_path / "a.gpudash").read_bytes()
    refused = 0
    for offset in range(0, len(content), 511):
        torn = tmp_path / "torn.gpudash"
        torn.write_bytes(content[:offset])
        why = refusal(torn)
        if why is not None:
            refused += 1
            assert "\n" not in why
            assert torn.read_bytes() == content[:offset]
        else:
            assert is_locked(torn)
        torn.unlink()
    assert refused > 1


@pytest.mark.parametrize("content", [None, b"", b"hello"])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.gpudash"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordingError):
        set_title(path, "x")


@pytest.mark.parametrize(
    ("made", "stand"),
    [
        ([MADE, OTHER], [MADE, OTHER]),
        ([MADE, OTHER, REMOVAL], [OTHER]),
        ([MADE, REMOVAL, MADE], [MADE]),
        ([MADE, REMOVAL, MADE, REMOVAL], []),
        ([MADE, MADE, REMOVAL], [MADE]),
        ([RUN, REMOVAL], [RUN]),
        ([REMOVAL, MADE], [MADE]),
    ],
)
def test_what_stands_depends_on_the_order_in_which_marks_were_made(made: list[Marker], stand: list[Marker]) -> None:
    assert standing_marks(made) == stand


def test_a_run_of_the_demo_is_told_as_one(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.gpudash", meta={})
    for run_id in (1, 2):
        began = RunStarted(time_s=float(run_id), run_id=run_id, workload="training", device="cpu", spec={})
        recorder.add(began)
    recorder.add(Note(time_s=2.5, run_id=2, topic=Topic.DEMO, text="This run is the demo's."))
    recorder.close()
    assert [run.of_demo for run in read_facts(tmp_path / "a.gpudash").runs] == [False, True]
