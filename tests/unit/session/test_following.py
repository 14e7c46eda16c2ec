"""A recording that is still being written keeps growing in its replay, whoever writes it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from gpudash.cli.terminal.monitoring import as_json
from gpudash.session import Replay
from gpudash.session.recordings import loading
from gpudash.session.remote.stream import LONGEST_LINE, Incoming, record_from_line
from gpudash.telemetry.recording.pages import Pages
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.recorder import Recorder, log_files
from gpudash.telemetry.records import Marker, Note, Record, Sample, State
from gpudash.telemetry.store import Store
from tests.unit.session.recordings import GPU, records, write

PATIENCE_S = 20.0
KEY = ("host", "used_bytes", None)

WRITER = """
import sys
from pathlib import Path
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Sample
recorder = Recorder(Path(sys.argv[1]), meta={})
for line in sys.stdin:
    recorder.add(Sample(float(line), "host", None, {"used_bytes": int(float(line))}))
    recorder.commit()
    print("written", flush=True)
recorder.close()
"""


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.gpudash"


@pytest.fixture
def own(path: Path) -> Iterator[Recorder]:
    """A recorder of this process that has written 100 readings."""
    recorder = Recorder(path, meta={})
    for i in range(100):
        recorder.add(Sample(float(i), "host", None, {"used_bytes": i}))
    recorder.commit()
    yield recorder
    recorder.close()


def test_new_readings_appear_and_following_ends_with_the_writer(path: Path, own: Recorder) -> None:
    replay = Replay(path)
    assert replay.following
    assert replay.extent_s == (0.0, 99.0)
    own.add(Sample(100.0, "host", None, {"used_bytes": 7}))
    own.add(Note(time_s=100.5, topic="gpus", text="", details={"gpus": [], "torch_names": {"cuda:0": GPU}}))
    own.commit()
    wait_until(lambda: replay.position_s == 100.5)
    assert replay.store.latest(*KEY).value == 7
    assert replay.store.torch_name(GPU) == "cuda:0"
    own.add(Marker(time_s=101.0, label="last"))
    own.close()
    assert own.failed is None
    wait_until(lambda: not replay.following)
    assert [event.time_s for event in replay.store.events] == [100.5, 101.0]
    assert not any(log.exists() for log in log_files(path))
    replay.seek(50.0)
    assert replay.store.latest(*KEY).value == 50
    assert replay.notices == []
    assert replay.close()


def test_a_position_stays_while_the_recording_grows(path: Path, own: Recorder) -> None:
    replay = Replay(path)
    replay.seek(40.0)
    own.add(Sample(100.0, "host", None, {"used_bytes": 7}))
    own.commit()
    wait_until(lambda: replay.extent_s[1] == 100.0)
    assert replay.position_s == 40.0
    series = replay.store.series(*KEY)
    assert series is not None
    assert series.extent() == (0.0, 40.0)
    replay.seek(None)
    assert replay.position_s == 100.0
    assert replay.close()
    assert own.failed is None


def test_what_comes_while_a_recording_is_opened_is_taken_in_once(
    path: Path, own: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pages_meanwhile(recording: Recording) -> Pages:
        own.add(Sample(100.0, "host", None, {"used_bytes": 7}))
        own.commit()
        return Pages(recording)

    monkeypatch.setattr(loading, "Pages", pages_meanwhile)
    replay = Replay(path)
    wait_until(lambda: replay.position_s == 100.0)
    own.close()
    wait_until(lambda: not replay.following)
    series = replay.store.series(*KEY)
    assert series is not None
    assert len(series) == 101
    assert replay.close()


def test_an_earlier_moment_of_a_long_run_that_is_followed_has_all_its_steps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 256)
    monkeypatch.setattr("gpudash.telemetry.recording.backend.MOST_EVENTS", 100)
    session = list(records(800, run_until=10**9))
    recorder, store, then = Recorder(path, meta={}), Store(), Store()
    recorder.summarise(store)
    recorder.commit()
    replay = Replay(path)
    for record in session:
        store.apply(record)
        recorder.add(record)
        if record.time_s <= 30.0:
            then.apply(record)
    recorder.commit()
    wait_until(lambda: replay.position_s == store.newest_s)
    replay.seek(30.0)
    assert replay.store.run is not None
    assert then.run is not None
    assert (replay.store.run.step, replay.store.run.steps) == (then.run.step, then.run.steps)
    assert replay.store.run.stages["forward"].summary() == then.run.stages["forward"].summary()
    recorder.close()
    assert replay.close()


def test_a_moment_that_is_sought_as_soon_as_it_is_known_has_its_steps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(path, meta={})
    recorder.commit()
    replay = Replay(path)
    apply_all = replay.store.apply_all
    sought = threading.Event()
    steps: list[int] = []

    def apply_and_seek(batch: Sequence[Record]) -> None:
        apply_all(batch)
        if replay.position_s < 30.0:
            return
        replay.seek(30.0)
        assert replay.store.run is not None
        steps.append(replay.store.run.step)
        replay.seek(None)
        sought.set()

    monkeypatch.setattr(replay.store, "apply_all", apply_and_seek)
    for record in records(800, run_until=10**9):
        recorder.add(record)
    recorder.commit()
    assert sought.wait(PATIENCE_S)
    assert steps[0] > 0
    recorder.close()
    assert replay.close()


@pytest.mark.process
def test_a_recording_of_another_process_is_followed_until_it_is_killed(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for number in range(3):
            child.stdin.write(f"{number}.0\n")
            child.stdin.flush()
            assert child.stdout.readline() == "written\n"
            if number == 0:
                replay = Replay(path)
        wait_until(lambda: replay.position_s == 2.0)
        assert replay.following
        child.kill()
        child.wait()
        child.stdin.close()
    wait_until(lambda: not replay.following)
    replay.seek(1.0)
    assert replay.store.latest(*KEY).value == 1
    assert replay.notices == []
    assert replay.close()


def test_closing_ends_following_at_once(path: Path, own: Recorder) -> None:
    replay = Replay(path)
    assert replay.close()
    assert not replay.following


def test_what_is_being_written_is_saved_as_far_as_it_has_come(path: Path, own: Recorder) -> None:
    replay = Replay(path)
    replay.save_recording(path.with_name("copy.gpudash"))
    assert replay.close()
    copy = Replay(path.with_name("copy.gpudash"))
    assert copy.extent_s == (0.0, 99.0)
    copy.close()


def lines(found: Iterator[Record]) -> str:
    return "".join(json.dumps(as_json(record)) + "\n" for record in found)


INTRODUCTION = Note(
    time_s=0.0,
    topic="session",
    text="",
    details={
        "wall_clock_origin": "2026-01-02T03:04:05+00:00",
        "host_product": "EPYC",
        "host_capacity_source": "cgroup",
    },
)


def test_lines_of_a_monitor_are_a_session_of_their_own(tmp_path: Path) -> None:
    told = lines(iter([INTRODUCTION, *islice(records(200), 900)]))
    incoming = Incoming(io.StringIO(told))
    wait_until(lambda: not incoming.following)
    recorded, _ = write(tmp_path / "same.gpudash", islice(records(200), 900))
    assert incoming.store.latest(*KEY) == recorded.latest(*KEY)
    assert [run.summary() for run in incoming.store.runs] == [run.summary() for run in recorded.runs]
    assert [gpu.uuid for gpu in incoming.gpus] == [GPU]
    assert incoming.devices()[0].product == "EPYC"
    assert incoming.host_capacity_source == "cgroup"
    assert incoming.began_wall_s == 1767323045.0
    assert incoming.notices == ["The stream has ended; what came is shown"]
    incoming.seek(3.0)
    assert incoming.store.latest(*KEY).value == 1060
    incoming.save_recording(tmp_path / "kept.gpudash")
    folder = incoming.recording_path.parent
    assert incoming.close()
    assert not folder.exists()
    kept = Replay(tmp_path / "kept.gpudash")
    assert kept.began_wall_s == 1767323045.0
    assert kept.close()


def test_lines_appear_while_the_pipe_stays_open_and_closing_does_not_wait_for_more(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as pipe:
        incoming = Incoming(stream)
        half = lines(iter([Sample(1.0, "host", None, {"used_bytes": 5})])).encode()
        pipe.write(half[:10])
        pipe.write(half[10:])
        wait_until(lambda: incoming.store.latest(*KEY).value == 5)
        assert incoming.following
        assert incoming.notices == []
        assert incoming.close()


GOOD = '{"time_s": 2.0, "table": "host", "device": null, "used_bytes": 9, "aura": 1}'

BAD = (
    "no json",
    "[]",
    "{}",
    '{"time_s": "soon", "table": "host"}',
    '{"time_s": 1.0, "table": "telepathy"}',
    '{"time_s": 1.0, "table": "host", "device": 7}',
    '{"time_s": 1.0, "kind": "Telepathy"}',
    '{"time_s": Infinity, "table": "host"}',
    '{"time_s": 1.0, "kind": "RunStarted", "run_id": "one", "workload": "x", "device": "cpu", "spec": {}}',
    '{"time_s": 1.0, "kind": "Marker", "run_id": 1000000000000000000000, "label": "x"}',
    '{"time_s": 1.0, "kind": "Marker", "label": 5}',
    '{"time_s": 1.0, "kind": "Note", "topic": "session", "text": "", "details": [1]}',
    '{"time_s": 1.0, "kind": "Output", "stream": "stdout", "lines": 5}',
    '{"time_s": 1.0, "kind": "StepFinished", "step": "a", "steps": 1, "seconds": "x"}',
    "\udcff",
    "x" * (LONGEST_LINE + 100_000),
    "[" * 100_000,
)

ODD = (
    '{"time_s": 1.0, "table": "process", "device": null, "pid": 1, "name": "a\\udcff"}',
    '{"time_s": 1.0, "table": "gpu", "device": "\\udcff", "used_bytes": 3}',
    '{"time_s": 1.0, "table": "host", "device": null, "used_bytes": 1000000000000000000000}',
    '{"time_s": 1.0, "kind": "Note", "topic": "gpus", "text": "", "details": {"gpus": 5, "torch_names": [1]}}',
    '{"time_s": 1.0, "kind": "Note", "topic": "gpus", "text": "", "details": {"torch_names": {"cuda:0": [1]}}}',
    '{"time_s": 1.0, "kind": "Note", "topic": "session", "text": "", "details": {"host": "\\udcff"}}',
)


def test_bad_lines_are_counted_and_end_nothing() -> None:
    text = "".join(f"{bad}\n{GOOD}\n" for bad in BAD)
    incoming = Incoming(io.BytesIO(text.encode(errors="surrogateescape")))
    wait_until(lambda: not incoming.following)
    series = incoming.store.series(*KEY)
    assert series is not None
    assert len(series) == len(BAD)
    assert incoming.notices == [
        f"{len(BAD)} lines of the stream make no sense and are left out",
        "The stream has ended; what came is shown",
    ]
    assert incoming.close()


def test_a_line_of_which_a_part_cannot_be_kept_costs_that_part_alone() -> None:
    incoming = Incoming(io.StringIO("".join(f"{odd}\n{GOOD}\n" for odd in ODD)))
    wait_until(lambda: not incoming.following)
    series = incoming.store.series(*KEY)
    assert series is not None
    assert len(series) == len(ODD) + 1
    assert incoming.store.processes()[0]["name"] == "a\\udcff"
    assert incoming.store.latest("gpu", "used_bytes", "\\udcff").value == 3
    assert incoming.notices == ["The stream has ended; what came is shown"]
    assert incoming.close()


def test_a_line_that_is_cut_off_by_the_end_is_told() -> None:
    incoming = Incoming(io.StringIO('{"time_s": 1.0, "tab'))
    wait_until(lambda: not incoming.following)
    assert incoming.notices[0].startswith("1 lines of the stream make no sense")
    assert incoming.close()


def test_a_reading_with_an_unknown_state_or_no_number_is_a_gap() -> None:
    told = {"time_s": 1, "table": "gpu", "device": "G", "used_bytes": None, "power_w": "nan"}
    record = record_from_line(json.dumps({**told, "states": {"used_bytes": "x"}}).encode())
    assert isinstance(record, Sample)
    assert record.values == {"used_bytes": None, "power_w": None}
    assert record.states == {"used_bytes": State.STALE, "power_w": State.STALE}
