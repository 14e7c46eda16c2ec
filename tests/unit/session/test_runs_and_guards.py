"""Runs of a session and their guards: one at a time, stopped in words, over when their end is stored."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.settings import Settings
from gpudash.specs import PipelineSpec, PressureSpec
from gpudash.telemetry.records import (
    RunFinished,
    RunStarted,
    Warning,
)
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import CUDA_TORCH, HOST_TOTAL, PATIENCE_S, Make, gpu


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
        with pytest.raises(RuntimeError, match="A run is in progress"):
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


def test_a_gpu_that_nobody_reads_is_not_guarded_by_the_hosts_memory(make: Make) -> None:
    live = make()
    live.worker.torch(
        {**CUDA_TORCH, "devices": [{"name": "cuda:0", "product": "NVIDIA H200", "total_bytes": 141 * GIB}]}
    )
    live.monitor.host(4 * GIB)
    live.settle()
    assert live.session.default_device() == "cuda:0"
    assert (live.session.gpu_problem or "").startswith("NVIDIA's library of readings (NVML) answers for no GPU: ")
    with pytest.raises(ValueError, match="needs a reading"):
        live.session.start_run(PressureSpec(), "cuda:0", guard_bytes=GIB)
    live.session.start_run(PressureSpec(), "cuda:0")
    assert live.worker.request.memory() is None


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


def test_a_warning_during_a_run_belongs_to_it(make: Make) -> None:
    live = make()
    live.monitor.host(4 * GIB)
    live.settle()
    run = live.session.start_run(PressureSpec(), "cpu")
    live.worker.begin()
    live.monitor.host(int(0.9 * HOST_TOTAL))
    assert live.seen.wait_event(Warning, level="warning").run_id == run
