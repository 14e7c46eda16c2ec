"""Closing a session: within its deadline, with the recording whole, whatever hangs."""

from __future__ import annotations

import time

import pytest

from gpudash.session import CLOSE_TIMEOUT_S, Session
from gpudash.specs import PipelineSpec
from gpudash.telemetry.records import (
    RunFinished,
    Sample,
)
from tests.unit.session.conftest import PATIENCE_S, Make, reopened


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
