"""`Session`: what arrives reaches store, watch, guard and recording, whatever else hangs or breaks."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from gpudash.session import CLOSE_TIMEOUT_S, Session
from gpudash.session.live.machine import GPU_PATIENCE_S
from gpudash.specs import PipelineSpec
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import Marker, Note, Record, RunEnd, Sample, StepFinished, Warning
from gpudash.units import GIB
from tests.unit.session.conftest import CPU_TORCH, CUDA_TORCH, HOST_TOTAL, PATIENCE_S, Make, gpu, reopened

LEVELS = (70, 84, 86, 85, 86, 94, 96, 60)


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


def test_a_consumer_that_fails_costs_one_warning_for_each_kind_of_record_and_nothing_else(make: Make) -> None:
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
    assert told == [
        "A reading of host is not passed on (ValueError: no more room).",
        "The event Warning is not passed on (ValueError: no more room).",
    ]
    assert [event.level for event in events if event.device == "host"] == ["warning"]
    assert len(taken) >= 7


def test_a_number_that_no_row_can_hold_costs_its_record_and_later_faults_are_told_as_well(make: Make) -> None:
    live = make(record=True)
    live.session.emit(Sample(1.0, "host", None, {"used_bytes": 2**70}))
    live.session.emit(Sample(2.0, "host", None, {"used_bytes": 2**71}))
    live.session.emit(Sample(3.0, "host", None, {"used_bytes": 3}))
    live.session.emit(Sample(4.0, "allocator", "cuda:0", {"allocated_bytes": 10**400}))
    live.session.emit(Sample(5.0, "host", None, {"used_bytes": 5}))
    live.session.close()
    with reopened(live) as opened:
        told = [event.text for event in opened.events() if isinstance(event, Warning)]
        assert [sample.time_s for sample in opened.samples("host")] == [3.0, 5.0]
    assert [text.partition(" (")[0] for text in told] == [
        "A reading of host is not recorded",
        "A reading of allocator is not shown",
        "A reading of allocator is not recorded",
    ]
    assert all("OverflowError" in text and len(text) < 200 for text in told)


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
    assert live.session.runs.wait(PATIENCE_S)
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


def timed_close(session: Session) -> tuple[bool, float]:
    began = time.monotonic()
    joined = session.close()
    return joined, time.monotonic() - began


@pytest.mark.timed
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
        assert len([e for e in opened.events() if isinstance(e, RunEnd) and not e.ended_badly]) == 1
        assert opened.meta["status"] == ("cancelled" if worker else "closed")


@pytest.mark.timed
def test_closing_when_nothing_hangs_waits_for_nothing(make: Make) -> None:
    live = make(record=True)
    joined, seconds = timed_close(live.session)
    assert joined
    assert seconds < CLOSE_TIMEOUT_S / 2
    with reopened(live) as opened:
        assert opened.meta["status"] == "closed"
    assert not live.session.recording_path.with_name("run.gpudash-wal").exists()  # type: ignore[union-attr]


def test_a_run_that_never_began_does_not_end_the_one_before_it_again(make: Make) -> None:
    live = make(record=True)
    live.session.start_run(PipelineSpec(), "cpu")
    live.worker.begin()
    live.worker.finish()
    assert live.session.runs.wait(PATIENCE_S)
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
