"""A run in a process of its own ends in one sentence whatever happens to the process, and the next one works."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudash.specs import Spec
from gpudash.telemetry.records import Note, RunEnd, RunStarted, StepFinished
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.hosted.run import Host
from tests.unit.workloads.conftest import Bench, MakeSpec
from tests.unit.workloads.hosted_workloads import EndingSpec, Way

pytestmark = pytest.mark.process

HARD_STOP_S = 1.0


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A worker after which no process is left."""
    before = set(psutil.Process().children(recursive=True))
    bench = Bench()
    yield bench
    assert bench.worker.close(10.0)
    left = [process for process in psutil.Process().children(recursive=True) if process not in before]
    assert not left


def isolated(bench: Bench, way: Way) -> Any:
    return bench.end(bench.begin(EndingSpec(way=way), isolate=True))


def until_second_step(bench: Bench, run_id: int) -> None:
    bench.wait_for(lambda event: isinstance(event, StepFinished) and event.run_id == run_id and event.step == 2)


CRASHES: list[tuple[Way, str, str]] = [
    ("segfault", "crashed", "its process crashed (Segmentation fault, SIGSEGV)."),
    ("exit", "exited", "its process ended itself with exit code 3."),
    ("killed", "killed", "its process was killed from outside (SIGKILL)."),
    ("closed", "silent", "its process closed its connection and was ended."),
]


def test_whatever_ends_the_process_ends_the_run_in_a_sentence_and_the_next_one_works(bench: Bench) -> None:
    for way, error, words in CRASHES:
        ending = isolated(bench, way)
        assert isinstance(ending, RunEnd) and ending.status == "failed", ending
        assert (ending.error, ending.steps) == (error, 2)
        assert ending.message == f"The ending workload ended after 2 steps: {words}"
        assert ending.remedy and ending.result == {
            "memory": {"peak_allocated_bytes": None, "peak_reserved_bytes": None}
        }
        assert [event.step for event in bench.of(StepFinished, ending.run_id)] == [1, 2]
        if way == "segfault":
            assert "hosted_workloads.py" in ending.details
    assert len(bench.of(RunStarted)) == len(CRASHES)
    after = bench.end(bench.begin(bench.spec("pipeline"), isolate=True))
    assert isinstance(after, RunEnd) and after.status == "finished"


def test_a_poisoned_context_ends_its_run_only_and_the_remedy_says_so(bench: Bench) -> None:
    ending = isolated(bench, "cuda")
    assert ending.error == "cuda_error"
    assert ending.remedy.startswith("Start the run again: it had a process of its own")
    assert "device-side assert" in ending.message and "Traceback" in ending.details


def test_an_exit_asked_for_by_the_workload_is_told_as_without_isolation(bench: Bench) -> None:
    apart = isolated(bench, "sys.exit")
    here = bench.end(bench.begin(EndingSpec(way="sys.exit")))
    assert (apart.error, apart.message, apart.remedy) == (here.error, here.message, here.remedy)


@pytest.mark.timed
def test_a_run_that_hears_nothing_is_stopped_within_a_second_with_what_it_told(bench: Bench) -> None:
    run = bench.begin(EndingSpec(way="deaf in C"), isolate=True)
    until_second_step(bench, run)
    asked = time.monotonic()
    bench.worker.stop()
    ending = bench.end(run)
    assert time.monotonic() - asked < HARD_STOP_S
    assert isinstance(ending, RunEnd) and (ending.status, ending.steps) == ("cancelled", 2)
    said = "Ended by SIGKILL, sent by gpudash as it had not stopped 0.6 s after it was asked to."
    assert ending.result["stop"]["text"] == said


def test_a_guard_that_stops_a_deaf_run_ends_it_as_out_of_memory(bench: Bench) -> None:
    run = bench.begin(EndingSpec(way="deaf"), isolate=True)
    until_second_step(bench, run)
    bench.worker.stop(because="Stopped by the guard: 2 GiB are in use.")
    ending = bench.end(run)
    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory"
    assert (ending.error, ending.message, ending.steps) == ("guard", "Stopped by the guard: 2 GiB are in use.", 2)


def test_a_run_that_hears_is_stopped_with_all_it_kept(bench: Bench) -> None:
    run = bench.begin(bench.spec("training", steps=100_000, batch=2, sequence=8, width=16, depth=1), isolate=True)
    until_second_step(bench, run)
    bench.worker.stop()
    ending = bench.end(run)
    assert ending.status == "cancelled" and "unigram_entropy" in ending.result


def test_what_the_workload_had_started_ends_with_it(bench: Bench) -> None:
    run = bench.begin(EndingSpec(way="child"), isolate=True)
    note = bench.wait_for(lambda event: isinstance(event, Note) and event.topic == "grandchild")
    grandchild = psutil.Process(note.details["pid"])
    bench.worker.stop()
    bench.end(run)
    assert _gone(grandchild)


def test_stopping_before_the_process_is_ready_does_not_wait_for_it(bench: Bench) -> None:
    run = bench.begin(EndingSpec(way="deaf"), isolate=True)
    bench.worker.stop()
    ending = bench.end(run)
    assert isinstance(ending, RunEnd) and (ending.status, ending.steps) == ("cancelled", 0)
    assert [event.run_id for event in bench.of(RunStarted)] == [run]


@pytest.mark.timed
def test_closing_ends_a_run_that_hears_nothing() -> None:
    bench, before = Bench(), set(psutil.Process().children())
    run = bench.begin(EndingSpec(way="deaf in C"), isolate=True)
    until_second_step(bench, run)
    children = set(psutil.Process().children()) - before
    assert children
    asked = time.monotonic()
    assert bench.worker.close(2.0)
    assert time.monotonic() - asked < HARD_STOP_S + 0.2
    assert bench.end(run).status == "cancelled"
    assert all(_gone(child) for child in children)


def test_a_waiting_process_that_was_killed_meanwhile_is_replaced(bench: Bench) -> None:
    bench.worker.warm_up(isolate=True)
    bench.wait_for(lambda event: isinstance(event, Note) and event.topic == "torch")
    spare = bench.worker._spare
    assert spare is not None and spare.ready
    os.kill(spare.pid, signal.SIGKILL)
    psutil.Process(spare.pid).wait(10)
    assert bench.end(bench.begin(bench.spec("pipeline"), isolate=True)).status == "finished"


def test_a_process_that_cannot_be_started_is_told_and_the_worker_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*command: Any, **options: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        ending = bench.end(bench.begin(bench.spec("pipeline"), isolate=True))
    assert ending.message == "The run's own process cannot be started (Resource temporarily unavailable)."
    assert ending.error == "host" and "--no-isolate" in ending.remedy
    assert len(bench.of(RunStarted)) == 1
    assert bench.run("pipeline").status == "finished"


def test_where_no_process_can_be_started_ahead_torch_is_looked_at_here(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*command: Any, **options: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        bench.worker.warm_up(isolate=True)
        note = bench.wait_for(lambda event: isinstance(event, Note))
    assert note.topic == "torch" and note.details["version"]


def test_a_process_that_never_gets_ready_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.workloads.running.hosted.run.TORCH_IMPORT_S", 0.0)
    ending = bench.end(bench.begin(bench.spec("pipeline"), isolate=True))
    assert ending.error == "host" and ending.message.startswith("The run's own process was not ready within two")
    assert "--no-isolate" in ending.remedy and len(bench.of(RunStarted)) == 1


def test_a_torch_that_is_broken_there_is_told_in_its_words(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ending = bench.end(bench.begin(bench.spec("pipeline"), isolate=True))
    assert ending.error == "torch"
    assert ending.message.startswith("torch cannot be imported (OSError: libtorch_cpu.so: cannot open")


def test_a_workload_that_only_this_process_has_is_refused_with_the_way_out(bench: Bench) -> None:
    class LocalSpec(Spec):
        name, title, summary, run = "local", "Local", "Known here only.", "nowhere:run"

    ending = bench.end(bench.begin(LocalSpec(), isolate=True))
    assert ending.error == "workload" and "--no-isolate" in ending.remedy
    assert ending.message.startswith("The workload local cannot be had in a process of its own (AttributeError: ")
    assert [event.workload for event in bench.of(RunStarted)] == ["local"]


def test_a_function_that_cannot_be_imported_there_is_told_as_anywhere(bench: Bench, custom: MakeSpec) -> None:
    def nothing(spec: Spec, context: Context) -> dict[str, Any]:
        return {}

    ending = bench.end(bench.begin(custom(nothing), isolate=True))
    assert ending.error == "workload"
    assert ending.message.startswith("The workload custom cannot be loaded from gpudash_tests_custom:run")


def test_a_process_that_a_driver_holds_is_told_and_waited_for_no_longer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(Host, "lingers", True)
        ending = bench.end(bench.begin(bench.spec("pipeline"), isolate=True, on_host=probed.append))
    assert ending.status == "finished"
    (note,) = (event for event in bench.of(Note) if event.topic == "worker")
    assert note.text.startswith("The run's process does not end: a driver holds it") and note.run_id == ending.run_id
    assert len(probed) == 1  # it still counts as ours


def test_a_callback_that_fails_does_not_keep_the_end_from_being_told(bench: Bench) -> None:
    def broken(pid: int, cards: Any) -> None:
        raise ValueError("There is no sim:7.")

    ending = bench.end(bench.begin(bench.spec("pipeline"), isolate=True, on_cards=broken))
    assert ending.status == "finished"
    (note,) = (event for event in bench.of(Note) if event.topic == "worker")
    assert note.text == "What the run's process held may still be shown (ValueError: There is no sim:7.)."


def test_a_process_that_speaks_another_version_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.workloads.running.hosted.run.PROTOCOL", 999)
    host = Host()
    try:
        while not host.gone:
            host.receive(5.0)
        assert not host.ready
    finally:
        host.close()


def _gone(process: psutil.Process) -> bool:
    """Whether it has ended; the system's first process may take its time to take note of that."""
    try:
        process.wait(5.0)
    except psutil.TimeoutExpired:
        return process.status() == psutil.STATUS_ZOMBIE
    return True
