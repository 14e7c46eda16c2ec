"""`Replay`: a recording read back is the session that wrote it, at any moment, whether it is short or long."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.session import Replay
from gpudash.session.recordings import loading
from gpudash.specs import PipelineSpec
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import Note, Output, RunStarted, StepFinished
from gpudash.telemetry.store import Store
from gpudash.units import GIB
from tests.unit.session.conftest import CUDA_TORCH, HOST_TOTAL, PATIENCE_S, Live, Make, gpu
from tests.unit.session.recordings import GPU, TICK_S, records, write

TICKS = 4000


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
    assert live.session.runs.wait(PATIENCE_S)
    assert live.session.close()
    return live


@pytest.fixture
def reopened(live: Live) -> Replay:
    assert live.session.recording_path is not None
    return Replay(live.session.recording_path)


def test_devices_and_their_names_are_the_same(live: Live, reopened: Replay) -> None:
    assert reopened.devices() == live.session.devices()
    assert reopened.gpus == live.session.gpus
    assert reopened.device_text("GPU-1") == "cuda:1"
    assert reopened.default_device() == "cuda:1"


def test_readings_runs_and_marks_are_the_same(live: Live, reopened: Replay) -> None:
    for metric in ("used_bytes", "free_bytes"):
        assert reopened.store.latest("gpu", metric, "GPU-0") == live.session.store.latest("gpu", metric, "GPU-0")
    assert [run.summary() for run in reopened.store.runs] == [run.summary() for run in live.session.store.runs]
    marks = [(mark.label, mark.time_s) for mark in live.session.store.markers]
    assert [(mark.label, mark.time_s) for mark in reopened.store.markers] == sorted(marks, key=lambda mark: mark[1])
    assert ("look here", 0.123456) in marks


def test_wall_clock_time_survives_to_the_microsecond(live: Live, reopened: Replay) -> None:
    assert reopened.began_wall_s == pytest.approx(live.session.began_wall_s, abs=1e-6)


def test_nothing_can_be_run_in_a_recording(reopened: Replay) -> None:
    assert reopened.live is None
    assert reopened.close()


def test_a_recording_with_facts_of_a_newer_minor_version_opens(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "newer.gpudash", meta={"wall_clock_origin": "long ago"})
    facts = {"nvml_index": 0, "uuid": "GPU-0", "pci_bus_id": "41:00.0", "product": "NVIDIA X", "colour": "green"}
    recorder.add(Note(time_s=0.0, topic="gpus", text="", details={"gpus": [facts], "torch_names": {"cuda:0": "GPU-0"}}))
    recorder.close()
    reopened = Replay(tmp_path / "newer.gpudash")
    assert [found.product for found in reopened.gpus] == ["NVIDIA X"]
    assert reopened.began_wall_s == (tmp_path / "newer.gpudash").stat().st_mtime


def test_what_is_no_recording_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "no.gpudash").write_text("no")
    with pytest.raises(RecordingError, match="is not a recording"):
        Replay(tmp_path / "no.gpudash")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 16 000 rows with their summaries."""
    path = tmp_path_factory.mktemp("long") / "long.gpudash"
    write(path, records(TICKS))
    return path


@pytest.fixture(params=["whole", "summaries"], scope="module")
def opened(path: Path, request: pytest.FixtureRequest) -> Iterator[Replay]:
    """The same recording, read whole and from its summaries."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "summaries":
            from_summaries(patch)
        replay = Replay(path)
    yield replay
    assert replay.close()


@pytest.fixture
def replay(opened: Replay) -> Replay:
    """It, at its end."""
    opened.seek(None)
    return opened


def from_summaries(patch: pytest.MonkeyPatch) -> None:
    """Have recordings of these tests count as long."""
    patch.setattr(loading, "WHOLE_ROWS", 1000)
    patch.setattr(loading, "TAIL_ROWS", 3000)


@functools.cache
def then(time_s: float) -> Store:
    """What the live session's store knew at ``time_s``."""
    store = Store()
    store.link("cuda:0", GPU)
    for record in records(TICKS):
        if record.time_s <= time_s:
            store.apply(record)
    return store


def test_runs_events_and_figures_of_a_reopened_session_equal_the_live_ones(replay: Replay) -> None:
    live = then(math.inf)
    assert [run.summary() for run in replay.store.runs] == [run.summary() for run in live.runs]
    assert [run.epochs for run in replay.store.runs] == [run.epochs for run in live.runs]
    assert list(replay.store.events) == list(live.events)
    assert list(replay.store.markers) == list(live.markers)
    assert replay.store.newest_s == live.newest_s
    assert [key for key, _ in replay.store.curves()] == [key for key, _ in live.curves()]
    for key, series in live.curves():
        again = replay.store.series(*key)
        assert again is not None
        assert len(again) == len(series)
        whole, found = series.statistics(-1.0, 1e9), again.statistics(-math.inf, math.inf)
        assert whole is not None
        assert found is not None
        assert (found.count, found.min, found.max, found.end) == (whole.count, whole.min, whole.max, whole.end)
        assert found.mean == pytest.approx(whole.mean)
        assert replay.store.latest(*key) == live.latest(*key)


@pytest.mark.parametrize("time_s", [0.0, 3.0, 120.02, 190.0, (TICKS - 11) * TICK_S])
def test_a_moment_is_as_it_was_then(replay: Replay, time_s: float) -> None:
    live = then(time_s)
    replay.seek(time_s)
    assert (replay.position_s, replay.store.newest_s) == (time_s, time_s)
    for table, metric, device in [("host", "used_bytes", None), ("gpu", "total_bytes", GPU)]:
        assert replay.store.latest(table, metric, device) == live.latest(table, metric, device)
    allocated = ("allocator", "allocated_bytes", "cuda:0")
    assert replay.store.latest(*allocated) == live.latest(*allocated)
    assert replay.store.processes(GPU) == live.processes(GPU)
    assert list(replay.store.events) == list(live.events)
    assert replay.store.event_count == live.event_count
    assert list(replay.store.markers) == list(live.markers)
    for key, series in replay.store.curves():
        extent = series.extent()
        assert extent is None or extent[1] <= time_s
        known = live.series(*key)
        if known is None:
            assert len(series) == 0
        elif key[0] in ("host", "gpu", "allocator"):
            assert series.last() == pytest.approx(known.last(), rel=0.01, nan_ok=True)


@pytest.mark.parametrize("time_s", [30.0, 110.02, 193.0])
def test_a_run_is_as_far_as_it_was_then(replay: Replay, time_s: float) -> None:
    live, run = then(time_s).run, None
    replay.seek(time_s)
    run = replay.store.run
    assert run is not None
    assert live is not None
    assert (run.status, run.step, run.steps, run.stepped_s) == (live.status, live.step, live.steps, live.stepped_s)
    assert run.metrics["loss"].last == live.metrics["loss"].last
    assert run.metrics["loss"].count == live.metrics["loss"].count
    assert run.stages["forward"].summary() == live.stages["forward"].summary()
    assert run.memory.capacity_bytes == live.memory.capacity_bytes
    assert run.memory.used_bytes == pytest.approx(live.memory.used_bytes, rel=0.05)  # to half a bucket
    assert run.memory.reserved_bytes == pytest.approx(live.memory.reserved_bytes, rel=0.05)
    assert [epoch.epoch for epoch in run.epochs] == [epoch.epoch for epoch in live.epochs]


def test_before_the_run_there_is_none_and_behind_it_it_has_ended(replay: Replay) -> None:
    replay.seek(2.0)
    assert replay.store.run is None
    replay.seek((TICKS - 5) * TICK_S)
    assert replay.store.run is not None
    assert replay.store.run.status == "finished"


def test_seeking_on_step_by_step_says_the_same_as_seeking_there_at_once(replay: Replay, path: Path) -> None:
    for tick in range(2000, 2200, 7):
        replay.seek(tick * TICK_S)
    stepped = replay.store.run
    direct = Replay(path)
    direct.seek(replay.position_s)
    assert stepped is not None
    assert direct.store.run is not None
    assert stepped.summary() == direct.store.run.summary()
    direct.close()


def test_only_going_back_tells_followers_of_events_to_begin_anew(replay: Replay) -> None:
    before = replay.store.rewound
    replay.seek(100.0)
    assert replay.store.rewound == before + 1
    replay.seek(110.0)
    replay.seek(None)
    assert replay.store.rewound == before + 1
    assert replay.at_end


def test_a_position_outside_the_recording_is_its_nearer_end(replay: Replay) -> None:
    low, high = replay.extent_s
    assert (low, high) == (0.0, (TICKS - 1) * TICK_S)
    replay.seek(-50.0)
    assert replay.position_s == low
    replay.seek(1e9)
    assert (replay.position_s, replay.at_end) == (high, True)


def test_what_is_looked_at_closely_becomes_known_sample_by_sample(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_summaries(monkeypatch)
    replay = Replay(path)
    key = ("host", "used_bytes", None)
    coarse = replay.store.series(*key)
    assert coarse is not None
    drawn, shown = coarse.window(100.0, 110.0, 2000)[0], replay.store.sharpened
    assert len(drawn) < 100
    assert replay.settle(PATIENCE_S)
    assert replay.store.sharpened > shown
    live = then(math.inf).series(*key)
    fine = replay.store.series(*key)
    assert live is not None
    assert fine is not None
    times, values = fine.window(100.0, 110.0, 2000)
    inside = (times >= 100.0) & (times <= 110.0)
    assert values[inside].tolist() == [1000.0 + i % 977 for i in range(2000, 2201)]
    exact = fine.statistics(100.02, 100.18)
    assert exact is not None
    assert (exact.count, exact.start, exact.end) == (3, 1000 + 2001 % 977, 1000 + 2003 % 977)
    replay.seek(105.0)
    then_known = replay.store.series(*key)
    assert then_known is not None
    assert then_known.window(100.0, 110.0, 2000)[0][-1] == 105.0
    assert replay.close()


def test_a_part_that_is_too_long_to_be_read_again_stays_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_summaries(monkeypatch)
    monkeypatch.setattr("gpudash.telemetry.recording.backend.MOST_ROWS", 100)
    replay = Replay(path)
    series = replay.store.series("host", "used_bytes")
    assert series is not None
    before = series.window(10.0, 150.0, 2000)[0].tolist()
    assert replay.settle(PATIENCE_S)
    assert series.window(10.0, 150.0, 2000)[0].tolist() == before
    assert replay.close()


def test_progress_is_told_from_nothing_to_nearly_all(path: Path) -> None:
    told: list[float] = []
    Replay(path, told.append).close()
    assert told[0] == 0.0
    assert told == sorted(told)
    assert 0.8 < told[-1] <= 1.0


def test_a_run_that_is_still_on_at_the_end_has_all_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "WHOLE_ROWS", 1000)
    monkeypatch.setattr(loading, "TAIL_ROWS", 1000)
    monkeypatch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 256)
    live, _ = write(tmp_path / "on.gpudash", records(800, run_until=10**9))
    replay = Replay(tmp_path / "on.gpudash")
    assert live.run is not None
    assert replay.store.run is not None
    assert replay.store.run.running
    assert (replay.store.run.step, replay.store.run.steps) == (live.run.step, live.run.steps)
    assert replay.store.run.stages["forward"].summary() == live.run.stages["forward"].summary()
    assert replay.store.run.metrics["loss"].count == live.run.metrics["loss"].count
    assert replay.close()


@pytest.mark.parametrize("rows", [200, 100_000])
def test_of_a_watched_programs_output_a_long_recording_shows_the_newest_pieces(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that is read whole all of it."""
    monkeypatch.setattr(loading, "WHOLE_ROWS", rows)
    monkeypatch.setattr(loading, "TAIL_ROWS", 200)
    monkeypatch.setattr(loading, "OUTPUT_EVENTS", 50)
    monkeypatch.setattr(loading, "OUTPUT_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 256)
    began = RunStarted(time_s=0.0, run_id=1, workload="watch", device="cpu", spec={})
    printed = [Output(time_s=float(i), run_id=1, stream="stdout", lines=[f"line {i}"]) for i in range(1000)]
    before = Output(time_s=0.0, run_id=0, stream="stdout", lines=["of the program before"])
    later = RunStarted(time_s=1000.0, run_id=2, workload="matmul", device="cpu", spec={})
    write(tmp_path / "watch.gpudash", iter([before, began, *printed, later]))
    replay = Replay(tmp_path / "watch.gpudash")
    shown = [line.text for line in replay.output.newest(2000)]
    assert shown == [f"line {i}" for i in range(1000 - len(shown), 1000)]
    assert len(shown) == 1000 if rows > 1000 else 250 <= len(shown) < 600
    assert replay.close()
