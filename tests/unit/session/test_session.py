"""`Session`: what arrives reaches store, watch, guard and recording, whatever else hangs or breaks."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpudash.session import CLOSE_TIMEOUT_S, Session
from gpudash.session.live import GPU_PATIENCE_S
from gpudash.settings import Settings
from gpudash.specs import PipelineSpec, PressureSpec
from gpudash.telemetry.reading import Recording, open_recording
from gpudash.telemetry.recorder import RecordingError
from gpudash.telemetry.records import (
    Marker,
    Note,
    OutOfMemory,
    Record,
    RunFinished,
    RunStarted,
    Sample,
    StepFinished,
    Warning,
)
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import CPU_TORCH, CUDA_TORCH, HOST_TOTAL, PATIENCE_S, Live, Make, gpu


def reopened(live: Live) -> Recording:
    assert live.session.recording is not None
    return open_recording(live.session.recording)


def test_records_reach_store_watch_and_recording_in_the_order_they_came(make: Make) -> None:
    live = make(record=True)
    for number in range(50):
        live.monitor.host(8 * GIB + number, time_s=number * 0.05)
        live.session.emit(StepFinished(time_s=number * 0.05, step=number, steps=50, seconds=0.05, loss=float(number)))
    live.settle()
    assert [r.values["used_bytes"] - 8 * GIB for r in live.seen.records if isinstance(r, Sample)] == list(range(50))
    assert live.session.close()
    with reopened(live) as opened:
        used = [s.values["used_bytes"] for s in opened.samples("host")]
        losses = [event.loss for event in opened.events() if isinstance(event, StepFinished)]
    assert used == [8 * GIB + number for number in range(50)]
    assert losses == [float(number) for number in range(50)]
    assert live.session.store.latest("host", "used_bytes").value == 8 * GIB + 49


def test_a_warning_follows_its_reading_and_is_recorded(make: Make) -> None:
    live = make(record=True)
    live.monitor.host(int(0.9 * HOST_TOTAL))
    warned = live.seen.wait_event(Warning, level="warning", device="host")
    assert warned.time_s == next(r.time_s for r in live.seen.records if isinstance(r, Sample))
    live.session.close()
    with reopened(live) as opened:
        assert [event.level for event in opened.events() if isinstance(event, Warning)] == ["warning"]


def test_a_window_that_holds_the_store_delays_no_record_for_long(make: Make) -> None:
    live = make()
    with live.session.store.lock:
        live.monitor.host(int(0.9 * HOST_TOTAL))
        assert not live.seen.records  # the store is waited for, and nothing is lost
    live.seen.wait_event(Warning, level="warning")


def test_a_consumer_that_fails_costs_one_warning_and_nothing_else(make: Make) -> None:
    live = make(record=True)
    taken: list[Record] = []

    def broken(record: Record) -> None:
        taken.append(record)
        raise ValueError("no more room")

    live.session.on_record = broken
    for number in range(5):
        live.monitor.host(int(0.9 * HOST_TOTAL) + number)
    live.session.close()
    with reopened(live) as opened:
        events = [event for event in opened.events() if isinstance(event, Warning)]
        assert len(list(opened.samples("host"))) == 5
    told = [event.text for event in events if event.device == "session"]
    assert told == ["Records could not be passed on (ValueError: no more room)."]
    assert [event.level for event in events if event.device == "host"] == ["warning"]
    assert len(taken) >= 7


def test_a_store_that_breaks_keeps_neither_recording_nor_the_end_of_a_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = make(record=True)

    def broken(record: Record) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(live.session.store, "apply", broken)
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(PATIENCE_S)
    live.session.close()
    with reopened(live) as opened:
        assert [run.status for run in opened.runs] == ["finished"]


def test_a_recording_that_fails_is_told_once_and_the_session_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = make(record=True)
    recorder = live.session._recorder
    assert recorder is not None and live.session.status().recording is not None

    def full(_record: Record) -> None:
        recorder._fail(OSError(28, "No space left on device"))

    monkeypatch.setattr(recorder, "add", full)
    for _ in range(3):
        live.monitor.host(GIB)
    warning = live.seen.wait_event(Warning, device="recording")
    assert "no space left on device" in warning.text
    live.settle()
    live.monitor.host(2 * GIB)
    live.settle()
    assert len([r for r in live.seen.records if isinstance(r, Warning) and r.device == "recording"]) == 1
    assert live.session.store.latest("host", "used_bytes").value == 2 * GIB
    assert live.session.status().recording is None


def test_a_target_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    session = Session(recording=tmp_path / "file" / "run.gpudash")
    with pytest.raises(RecordingError, match="cannot be written"):
        session.start()
    assert session.close()


def test_a_session_is_ready_when_torch_the_host_and_the_gpus_are_known(make: Make) -> None:
    live = make()
    live.monitor.problem = None
    live.worker.torch(CUDA_TORCH)
    live.monitor.host(GIB)
    live.settle()
    assert live.session.torch_ready
    assert not live.session.wait_ready(0.0)
    live.monitor.has(gpu(0))
    live.settle()
    assert live.session.wait_ready(PATIENCE_S)


def test_a_driver_that_never_says_which_gpus_there_are_is_not_waited_for_for_ever(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = make()
    live.monitor.problem = None
    live.worker.torch(CPU_TORCH)
    live.monitor.host(GIB)
    live.settle()
    assert not live.session.wait_ready(0.0)
    monkeypatch.setattr(live.session, "clock", lambda: GPU_PATIENCE_S)
    assert live.session.wait_ready(PATIENCE_S)


def test_marks_are_kept_and_recorded_to_the_microsecond(make: Make) -> None:
    live = make(record=True)
    live.session.mark("here", 1.234567)
    live.seen.wait_event(Marker, label="here")
    live.session.mark("now")
    now = live.seen.wait_event(Marker, label="now").time_s
    live.session.close()
    with reopened(live) as opened:
        found = {event.label: event.time_s for event in opened.events() if isinstance(event, Marker)}
    assert found == {"here": pytest.approx(1.234567, abs=1e-7), "now": pytest.approx(now, abs=1e-6)}


def test_a_recording_can_be_copied_while_it_is_written(make: Make, tmp_path: Path) -> None:
    live = make(record=True)
    live.session.mark("before")
    live.seen.wait_event(Marker, label="before")
    assert live.session._recorder is not None
    live.session._recorder.commit()
    live.session.save_recording(tmp_path / "copy.gpudash")
    with open_recording(tmp_path / "copy.gpudash") as opened:
        assert [event.label for event in opened.events() if isinstance(event, Marker)] == ["before"]
    with pytest.raises(ValueError, match="not recorded"):
        make().session.save_recording(tmp_path / "other.gpudash")


def run_ended(live: Live) -> Any:
    return live.seen.wait_for(lambda record: isinstance(record, (RunFinished, OutOfMemory)))


def test_a_run_is_on_from_its_request_until_its_end_is_stored(make: Make) -> None:
    live = make()
    number = live.session.start_run(PipelineSpec(), "cpu")
    assert live.session.running and not live.session.wait_run(0.0)
    live.worker.begin()
    live.seen.wait_event(RunStarted, run_id=number)
    live.worker.finish()
    assert live.session.wait_run(PATIENCE_S)
    assert not live.session.running
    assert live.session.store.run is not None and live.session.store.run.status == "finished"


def test_a_second_run_waits_until_the_first_is_stored(make: Make) -> None:
    live = make()
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    with live.session.store.lock:
        live.worker.finish()  # the worker is free, the session has not heard of it
        with pytest.raises(RuntimeError, match="A run is on"):
            live.session.start_run(PipelineSpec(), "cpu")
    assert live.session.wait_run(PATIENCE_S)
    assert live.session.start_run(PipelineSpec(), "cpu") == 2


def test_the_late_end_of_a_former_run_ends_no_other(make: Make) -> None:
    live = make(settings=Settings(guard=False))
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(PATIENCE_S)
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    live.session.emit(RunFinished(time_s=1.0, run_id=1, status="finished", seconds=1.0, steps=1, result={}))
    live.settle()
    assert live.session.running


def test_a_run_that_ends_at_once_is_not_waited_for_for_ever(make: Make) -> None:
    live = make()

    def run(_request: Any) -> None:
        live.worker.begin()
        live.worker.finish()

    live.worker.on_submit = run
    for number in (1, 2, 3):
        assert live.session.start_run(PipelineSpec(), "cpu") == number
        assert live.session.wait_run(PATIENCE_S)


def test_a_run_refused_by_a_closed_worker_leaves_no_run_behind(make: Make) -> None:
    live = make()
    live.worker.closed = True
    with pytest.raises(RuntimeError, match="closed"):
        live.session.start_run(PipelineSpec(), "cpu")
    assert not live.session.running


def test_what_the_device_cannot_do_is_refused_before_the_run(make: Make) -> None:
    live = make()
    with pytest.raises(ValueError, match="--move cuda"):
        live.session.start_run(PipelineSpec(move="cuda"), "cpu")
    assert live.worker.request is None


def test_a_reading_above_the_guard_warns_and_then_stops_the_run(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    live.monitor.host(5 * GIB - MIB)
    live.settle()
    assert not live.worker.stopped.is_set()
    live.monitor.host(5 * GIB)
    assert live.worker.stopped.wait(PATIENCE_S)
    assert live.worker.because is not None and "1.00 GiB above the use at the start" in live.worker.because
    warning = live.seen.wait_event(Warning, level="critical", device="host")
    assert warning.text == live.worker.because
    assert warning.run_id == 1


def test_the_guard_of_a_gpu_is_told_as_that_gpus(make: Make) -> None:
    live = make()
    card = gpu(0)
    live.monitor.has(card)
    live.worker.torch(CUDA_TORCH)
    live.monitor.card(card, 4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cuda:0", guard_bytes=GIB)
    live.monitor.card(card, 6 * GIB)
    assert live.worker.stopped.wait(PATIENCE_S)
    assert live.seen.wait_event(Warning, level="critical").device == card.uuid


def test_the_first_allocation_of_a_run_can_be_refused(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    assert live.worker.request.refuse(512 * MIB, "cpu") is None
    sentence = live.worker.request.refuse(600 * MIB, "cpu")
    assert sentence is not None and "asks for 600 MiB more" in sentence
    assert live.seen.wait_event(Warning, level="critical", device="host").text == sentence


def test_without_a_guard_of_its_own_a_run_is_held_below_the_hosts_critical_level(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu")
    assert live.worker.request.refuse(11 * GIB, "cpu") is None
    assert live.worker.request.refuse(GIB, "cpu") is not None


def test_the_hosts_memory_is_guarded_in_a_run_on_a_gpu_too(make: Make) -> None:
    live = make()
    live.monitor.has(gpu(0))
    live.worker.torch(CUDA_TORCH)
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cuda:0")
    assert live.worker.request.refuse(100 * GIB, "cuda:0") is None
    assert live.worker.request.refuse(100 * GIB, "cpu") is not None
    assert live.seen.wait_event(Warning, level="critical").device == "host"


def test_no_guard_is_set_where_the_settings_want_none(make: Make) -> None:
    live = make(settings=Settings(guard=False))
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu")
    assert live.worker.request.refuse(100 * GIB, "cpu") is None
    live.monitor.host(HOST_TOTAL)
    live.settle()
    assert not live.worker.stopped.is_set()


def test_a_guard_without_a_reading_to_put_it_above_is_refused(make: Make) -> None:
    live = make()
    live.monitor.has(gpu(0))
    live.worker.torch(CUDA_TORCH)
    live.settle()
    with pytest.raises(ValueError, match="needs a reading"):
        live.session.start_run(PressureSpec(), "cuda:0", guard_bytes=GIB)
    assert not live.session.running


def test_a_guard_ends_with_its_run(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(PATIENCE_S)
    live.monitor.host(6 * GIB)
    live.settle()
    assert not [r for r in live.seen.records if isinstance(r, Warning) and r.level == "critical"]
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    live.monitor.host(6 * GIB + MIB)
    live.settle()
    assert not live.worker.stopped.is_set()


def test_a_crossing_while_a_run_is_being_requested_still_stops_it(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    live.worker.on_submit = lambda _request: live.monitor.host(6 * GIB)
    live.session.start_run(PressureSpec(), "cpu", guard_bytes=GIB)
    assert live.worker.stopped.wait(PATIENCE_S)


LEVELS = (70, 84, 86, 85, 86, 94, 96, 60)


def test_one_warning_at_86_one_critical_at_96_one_passed_at_60(make: Make) -> None:
    live = make(record=True)
    card = gpu(0, 100 * GIB)
    live.monitor.has(card)
    for number, full in enumerate(LEVELS):
        live.monitor.card(card, full * GIB, time_s=10.0 * number)
    live.settle()
    events = [r for r in live.seen.records if isinstance(r, Warning)]
    assert [(event.level, event.time_s) for event in events] == [
        ("warning", 20.0),
        ("critical", 60.0),
        ("passed", 70.0),
    ]
    live.session.close()
    with reopened(live) as opened:
        assert [e.level for e in opened.events() if isinstance(e, Warning)] == ["warning", "critical", "passed"]


def timed_close(session: Session) -> tuple[bool, float]:
    began = time.monotonic()
    joined = session.close()
    return joined, time.monotonic() - began


@pytest.mark.parametrize(("worker", "monitor"), [(True, False), (False, True), (True, True)])
def test_closing_keeps_its_deadline_and_the_recording_whatever_hangs(make: Make, worker: bool, monitor: bool) -> None:
    live = make(record=True)
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    live.settle()
    live.worker.hangs, live.monitor.hangs = worker, monitor
    joined, seconds = timed_close(live.session)
    assert not joined
    assert seconds < CLOSE_TIMEOUT_S + 0.5
    with reopened(live) as opened:
        assert [run.status for run in opened.runs] == ["cancelled"]
        assert len([e for e in opened.events() if isinstance(e, RunFinished)]) == 1
        assert opened.meta["status"] == ("cancelled" if worker else "closed")


def test_closing_when_nothing_hangs_waits_for_nothing(make: Make) -> None:
    live = make(record=True)
    joined, seconds = timed_close(live.session)
    assert joined
    assert seconds < CLOSE_TIMEOUT_S / 2
    with reopened(live) as opened:
        assert opened.meta["status"] == "closed"
    assert not live.session.recording.with_name("run.gpudash-wal").exists()  # type: ignore[union-attr]


def test_a_run_that_never_began_does_not_end_the_one_before_it_again(make: Make) -> None:
    live = make(record=True)
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(PATIENCE_S)
    live.session.start_run(PipelineSpec(), "cpu")  # still importing torch, say
    live.worker.hangs = True
    live.session.close()
    with reopened(live) as opened:
        assert [run.status for run in opened.runs] == ["finished"]


def test_what_was_emitted_before_closing_is_all_recorded(make: Make) -> None:
    live = make(record=True)
    for number in range(20_000):
        live.session.emit(Sample(number * 1e-3, "host", None, {"used_bytes": number}))
    assert live.session.close()
    with reopened(live) as opened:
        assert sum(1 for _ in opened.samples("host")) == 20_000


def test_closing_twice_or_before_the_start_is_harmless(make: Make) -> None:
    live = make(record=True)
    assert live.session.close()
    assert live.session.close()
    assert make(start=False).session.close()


def test_notices_become_notes_of_the_session(make: Make, tmp_path: Path) -> None:
    make()  # puts the stand-ins in place
    session = Session(recording=tmp_path / "noted.gpudash", notices=["theme: 3; the default is used"])
    session.start()
    session.close()
    with open_recording(tmp_path / "noted.gpudash") as opened:
        assert [event.text for event in opened.events() if isinstance(event, Note)] == ["theme: 3; the default is used"]


def test_emitting_from_many_threads_loses_nothing(make: Make) -> None:
    live = make()

    def emit() -> None:
        for _ in range(500):
            live.session.emit(StepFinished(time_s=1.0, step=1, steps=1, seconds=0.1))

    threads = [threading.Thread(target=emit, name=f"gpudash-test-{number}") for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    live.settle()
    assert sum(isinstance(record, StepFinished) for record in live.seen.records) == 4000
