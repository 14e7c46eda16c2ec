"""A worker takes one run after another: begun, stopped, closed, and cleared up after."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from gpudash.specs import Spec
from gpudash.telemetry.records import Note, RunEnd, RunStarted
from gpudash.workloads.running.context import Context
from tests.unit.workloads.conftest import Bench, MakeSpec


def test_a_second_run_is_refused_while_one_is_on_and_accepted_after_it(bench: Bench, custom: MakeSpec) -> None:
    go = threading.Event()
    first = bench.begin(custom(lambda spec, context: go.wait(30) and {}))

    assert bench.worker.busy
    with pytest.raises(RuntimeError, match="A run is in progress"):
        bench.begin(custom(lambda spec, context: {}))
    go.set()
    bench.end(first)

    assert not bench.worker.busy
    assert bench.run("pipeline").status == "finished"


def test_the_worker_is_free_when_it_tells_the_end() -> None:
    free: list[bool] = []
    told = threading.Event()
    bench = Bench()
    take = bench._take

    def emit(event: Any) -> None:
        take(event)
        if isinstance(event, RunEnd) and not event.ended_badly:
            free.append(not bench.worker.busy)
            told.set()

    bench.worker._emit = emit
    bench.begin(bench.spec("pipeline"))

    assert told.wait(60) and bench.worker.close(10)
    assert free == [True]


def test_a_run_begins_with_its_whole_spec_and_the_end_carries_its_number(bench: Bench) -> None:
    ending = bench.run("pipeline", scalar=5.0)

    started = bench.of(RunStarted)[0]
    assert started.spec["scalar"] == 5.0 and started.spec["rows"] == 3 and started.workload == "pipeline"
    assert started.run_id == ending.run_id == 1


def test_stop_ends_a_waiting_run_at_once_as_cancelled_with_what_it_kept(bench: Bench, custom: MakeSpec) -> None:
    waiting = threading.Event()

    def wait(spec: Spec, context: Context) -> dict[str, Any]:
        context.keep(so_far=3)
        waiting.set()
        context.wait(3600)
        return {}

    run = bench.begin(custom(wait))
    assert waiting.wait(30)
    bench.worker.stop()
    ending = bench.end(run)

    assert isinstance(ending, RunEnd) and ending.status == "cancelled" and ending.result["so_far"] == 3


POISONED = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported elsewhere"


def broken_release(*, context: bool = False) -> tuple[int | None, int | None]:
    raise RuntimeError(POISONED)


def test_a_run_whose_memory_cannot_be_given_back_ends_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudash.workloads.running.run.release", broken_release)

    assert bench.run("pipeline").status == "finished"
    assert not bench.worker.busy
    (note,) = (event for event in bench.of(Note) if event.topic == "worker")
    assert note.text == (
        "What the run has left could not all be given back (RuntimeError: CUDA error: an illegal memory access was "
        "encountered)."
    )
    assert note.details["details"] == POISONED
    assert bench.run("pipeline").status == "finished"


def test_a_cache_that_cannot_be_freed_is_told_and_the_worker_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudash.workloads.running.run.release", broken_release)
    bench.worker.free_cache()

    note = bench.wait_for(lambda event: isinstance(event, Note) and event.topic == "worker")
    assert note.text.startswith("Idle memory could not be given back (RuntimeError: CUDA error: an illegal memory")
    assert bench.run("pipeline").status == "finished"


def test_a_torch_that_cannot_be_looked_at_does_not_keep_a_run_from_ending(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("libnvidia-ml.so.1: bad ELF header")

    monkeypatch.setattr("gpudash.workloads.running.installed.torch_report", broken)

    assert bench.run("pipeline").status == "finished" and not bench.worker.busy
    (note,) = (event for event in bench.of(Note) if event.topic == "worker")
    assert "libnvidia-ml.so.1: bad ELF header" in note.text


def test_a_stop_without_a_run_does_not_stop_the_next(bench: Bench) -> None:
    bench.worker.stop()

    assert bench.run("pipeline").status == "finished"


def test_closing_during_a_run_cancels_it_and_joins_the_thread(custom: MakeSpec) -> None:
    bench = Bench()
    waiting = threading.Event()

    def wait(spec: Spec, context: Context) -> dict[str, Any]:
        waiting.set()
        context.wait(3600)
        return {}

    bench.begin(custom(wait))
    assert waiting.wait(30)

    assert bench.worker.close(10)
    assert bench.of(RunEnd)[0].status == "cancelled"
    with pytest.raises(RuntimeError, match="closed"):
        bench.begin(custom(wait))


def test_closing_does_not_wait_for_an_operation_that_blocks(custom: MakeSpec) -> None:
    bench = Bench()
    blocking, release = threading.Event(), threading.Event()

    def block(spec: Spec, context: Context) -> dict[str, Any]:
        blocking.set()
        release.wait(60)
        return {}

    bench.begin(custom(block))
    assert blocking.wait(30)

    assert not bench.worker.close(0.01)
    release.set()
    assert bench.worker.close(10)


def test_a_worker_that_was_never_started_closes() -> None:
    from gpudash.workloads.running.worker import Worker

    assert Worker(lambda event: None, lambda: 0.0).close(1.0)


def test_threads_and_seed_are_set_for_the_run_and_the_threads_put_back(bench: Bench, custom: MakeSpec) -> None:
    def look(spec: Spec, context: Context) -> dict[str, Any]:
        return {"threads": torch.get_num_threads(), "random": torch.rand(3).tolist()}

    first = bench.end(bench.begin(custom(look, threads=3, seed=7))).result
    second = bench.end(bench.begin(custom(look, threads=3, seed=7))).result
    other = bench.end(bench.begin(custom(look, seed=8))).result

    assert first["threads"] == 3 and other["threads"] == 1
    assert first["random"] == second["random"] != other["random"]
    torch.manual_seed(7)
    assert first["random"] == torch.rand(3).tolist()


def test_host_memory_of_a_failed_run_is_given_back(bench: Bench, custom: MakeSpec) -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def fill_and_fail(spec: Spec, context: Context) -> dict[str, Any]:
        held = [torch.ones(2**14) for _ in range(4096)]
        cycle: list[Any] = [held]
        cycle.append(cycle)
        raise ValueError(f"{resident_bytes()} {len(held)}")

    bench.run("pipeline")
    before = resident_bytes()
    ending = bench.end(bench.begin(custom(fill_and_fail)))
    match = re.search(r"(\d+) 4096", ending.message)

    assert match is not None and int(match[1]) - before > 100 * 2**20
    assert resident_bytes() - before < 64 * 2**20


def test_memory_in_the_result_is_unknown_on_the_cpu(bench: Bench) -> None:
    ending = bench.run("pipeline")

    assert ending.result["memory"] == {"peak_allocated_bytes": None, "peak_reserved_bytes": None}


def test_freeing_the_cache_without_a_run_is_told(bench: Bench) -> None:
    bench.worker.free_cache()

    assert bench.wait_for(lambda event: isinstance(event, Note) and event.topic == "cache").text


def test_freeing_the_cache_during_a_run_happens_between_two_operations(
    bench: Bench, custom: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = threading.Event()
    monkeypatch.setattr(Context, "free_cache", lambda context: (context._requests.free_cache.clear(), freed.set()))
    running = threading.Event()

    def work(spec: Spec, context: Context) -> dict[str, Any]:
        running.set()
        while not freed.is_set():
            context.check_cancelled()
        return {}

    run = bench.begin(custom(work))
    assert running.wait(30)
    bench.worker.free_cache()

    assert bench.end(run).status == "finished" and freed.is_set()
