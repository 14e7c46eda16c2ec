from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpudash.memory.guard import REMEDY
from gpudash.specs import Spec, TrainingSpec
from gpudash.telemetry.records import Note, OutOfMemory, RunFailed, RunFinished, RunStarted, StageFinished
from gpudash.workloads import torch_report
from gpudash.workloads.context import Context
from gpudash.workloads.endings import WorkloadError, memory_ran_out, requested_bytes
from gpudash.workloads.run import resolve
from tests.unit.workloads.conftest import Bench

MakeSpec = Callable[..., Spec]


def test_warming_up_tells_which_torch_there_is(bench: Bench) -> None:
    bench.worker.warm_up()

    note = bench.wait_for(lambda event: isinstance(event, Note) and event.topic == "torch")

    assert note.details["version"] == torch.__version__
    assert note.details["cuda_available"] == torch.cuda.is_available()
    assert set(note.details) == {"version", "cuda_version", "cuda_available", "devices", "seconds", "problem"} | {
        "simulator_problem"
    }
    assert note.details["problem"] is None


def test_a_missing_torch_is_told_in_one_sentence_and_ends_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    ending = bench.run("pipeline")

    note = bench.of(Note)[0]
    assert note.topic == "torch" and note.details["version"] is None
    assert "pip install torch" in note.details["problem"] and "\n" not in note.details["problem"]
    assert isinstance(ending, RunFailed) and ending.error == "torch" and ending.remedy == "Run: pip install torch"


def test_a_broken_torch_is_told_with_its_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open shared object file\\nmore')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch")

    report = torch_report()

    assert "libtorch.so: cannot open shared object file" in report["problem"] and "\n" not in report["problem"]


def test_a_second_run_is_refused_while_one_is_on_and_accepted_after_it(bench: Bench, custom: MakeSpec) -> None:
    go = threading.Event()
    first = bench.begin(custom(lambda spec, context: go.wait(30) and {}))

    assert bench.worker.busy
    with pytest.raises(RuntimeError, match="A run is on"):
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
        if isinstance(event, RunFinished):
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


def test_an_exception_becomes_a_failure_in_words_with_the_traceback_apart(bench: Bench, custom: MakeSpec) -> None:
    def fail(spec: Spec, context: Context) -> dict[str, Any]:
        with context.stage("fine"):
            pass
        context.keep(seen=1)
        raise KeyError("lost")

    ending = bench.end(bench.begin(custom(fail)))

    assert isinstance(ending, RunFailed) and ending.error == "KeyError"
    assert "Traceback" not in ending.message and "custom" in ending.message and ending.remedy
    assert "Traceback" in ending.details and "KeyError: 'lost'" in ending.details
    assert ending.result["seen"] == 1
    assert [stage.name for stage in bench.of(StageFinished)] == ["fine"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_not_even_an_exit_asked_for_by_a_workload_ends_the_worker(
    bench: Bench, custom: MakeSpec, error: BaseException
) -> None:
    def leave(spec: Spec, context: Context) -> dict[str, Any]:
        raise error

    assert isinstance(bench.end(bench.begin(custom(leave))), RunFailed)
    assert bench.run("pipeline").status == "finished"


def test_a_workload_that_returns_nothing_usable_fails_in_words(bench: Bench, custom: MakeSpec) -> None:
    ending = bench.end(bench.begin(custom(lambda spec, context: 7)))

    assert isinstance(ending, RunFailed) and "TypeError" in ending.message


def test_host_memory_that_is_not_to_be_had_is_out_of_memory(bench: Bench, custom: MakeSpec) -> None:
    size = 2**60
    ending = bench.end(bench.begin(custom(lambda spec, context: torch.empty(size, dtype=torch.uint8) and {})))

    assert isinstance(ending, OutOfMemory) and ending.error == "host"
    assert ending.requested_bytes == size
    assert "1048576.0 TiB" in ending.message and ending.remedy and "DefaultCPUAllocator" in ending.details
    assert bench.run("pipeline").status == "finished"


def test_a_memory_error_of_python_is_out_of_memory(bench: Bench, custom: MakeSpec) -> None:
    ending = bench.end(bench.begin(custom(lambda spec, context: {"never": bytearray(2**62)})))

    assert isinstance(ending, OutOfMemory) and ending.error == "host" and ending.requested_bytes is None


CUDA_WORDS = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 3.25 GiB is "
    "free. Including non-PyTorch memory, this process has 136.55 GiB memory in use."
)


def test_cuda_out_of_memory_is_told_with_its_numbers(bench: Bench, custom: MakeSpec) -> None:
    def fail(spec: Spec, context: Context) -> dict[str, Any]:
        raise torch.OutOfMemoryError(CUDA_WORDS)

    ending = bench.end(bench.begin(custom(fail)))

    assert isinstance(ending, OutOfMemory) and ending.error == "cuda"
    assert ending.requested_bytes == 20 * 2**30
    assert ending.message == (
        "The memory of cpu ran out: the last request was 20.0 GiB, 3.25 GiB of 139.8 GiB were free."
    )


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (RuntimeError("CUDA error: out of memory"), "cuda"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "cuda"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), "host"),
        (RuntimeError("CUDA error: device-side assert triggered"), None),
        (ValueError("out of range"), None),
    ],
)
def test_which_memory_an_error_says_is_full(error: Exception, memory: str | None) -> None:
    assert memory_ran_out(error) == memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("Tried to allocate 20.00 MiB. GPU", 20 * 2**20),
        ("Tried to allocate 1.50 GiB (GPU 0", 1536 * 2**20),
        ("you tried to allocate 4096 bytes. Error", 4096),
        ("nothing of the kind", None),
    ],
)
def test_the_requested_size_is_read_from_torchs_words(text: str, size: int | None) -> None:
    assert requested_bytes(text) == size


def test_a_device_that_is_broken_for_good_says_to_start_anew(bench: Bench, custom: MakeSpec) -> None:
    def fail(spec: Spec, context: Context) -> dict[str, Any]:
        raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous")

    ending = bench.end(bench.begin(custom(fail)))

    assert ending.error == "cuda_error" and "anew" in ending.remedy and "\n" not in ending.message


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

    assert isinstance(ending, RunFinished) and ending.status == "cancelled" and ending.result["so_far"] == 3


def test_the_guards_stop_ends_the_run_as_out_of_memory_with_its_sentence(bench: Bench, custom: MakeSpec) -> None:
    waiting = threading.Event()

    def wait(spec: Spec, context: Context) -> dict[str, Any]:
        waiting.set()
        context.wait(3600)
        return {}

    run = bench.begin(custom(wait))
    assert waiting.wait(30)
    bench.worker.stop(because=f"Stopped by the guard: 3 of 3 GiB are in use. {REMEDY}")
    bench.worker.stop()
    ending = bench.end(run)

    assert isinstance(ending, OutOfMemory) and ending.error == "guard"
    assert ending.message == "Stopped by the guard: 3 of 3 GiB are in use." and ending.remedy == REMEDY


def test_a_refused_allocation_ends_the_run_as_out_of_memory_with_the_bytes_asked(bench: Bench) -> None:
    asked: list[tuple[int, str]] = []

    def refuse(size: int, memory: str) -> str | None:
        asked.append((size, memory))
        return "Stopped by the guard." if len(asked) == 3 else None

    ending = bench.run("pressure", request={"refuse": refuse}, step="1MiB", cap="8MiB", rate=1000, hold=0)

    assert isinstance(ending, OutOfMemory) and ending.error == "guard" and ending.requested_bytes == 2**20
    assert asked == [(2**20, "cpu")] * 3 and ending.result["allocations"] == 2


POISONED = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported elsewhere"


def broken_release(*, cache: bool = False) -> tuple[int | None, int | None]:
    raise RuntimeError(POISONED)


def test_a_run_whose_memory_cannot_be_given_back_ends_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudash.workloads.worker.release", broken_release)

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
    monkeypatch.setattr("gpudash.workloads.worker.release", broken_release)
    bench.worker.free_cache()

    note = bench.wait_for(lambda event: isinstance(event, Note) and event.topic == "worker")
    assert note.text.startswith("Idle memory could not be given back (RuntimeError: CUDA error: an illegal memory")
    assert bench.run("pipeline").status == "finished"


def test_a_torch_that_cannot_be_looked_at_does_not_keep_a_run_from_ending(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("libnvidia-ml.so.1: bad ELF header")

    monkeypatch.setattr("gpudash.workloads.worker.torch_report", broken)

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
    assert bench.of(RunFinished)[0].status == "cancelled"
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
    from gpudash.workloads.worker import Worker

    assert Worker(lambda event: None, lambda: 0.0).close(1.0)


def test_what_the_device_cannot_do_ends_the_run_before_it_begins(bench: Bench) -> None:
    ending = bench.run("pipeline", pitfall="numpy")

    assert isinstance(ending, RunFailed) and ending.error == "request"
    assert "needs a CUDA device or a simulated GPU, and cpu is neither" in ending.message and not bench.of(
        StageFinished
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.usefixtures("no_simulated_gpu")
def test_a_cuda_device_that_torch_does_not_have_is_named(bench: Bench) -> None:
    ending = bench.run("pipeline", device="cuda:0")

    assert isinstance(ending, RunFailed) and ending.error == "device"
    assert "torch has no cuda:0" in ending.message and "sees 0 CUDA devices" in ending.message


def test_a_workload_that_cannot_be_imported_is_named(custom: MakeSpec) -> None:
    spec = custom(lambda spec, context: {})
    del sys.modules["gpudash_tests_custom"]

    with pytest.raises(WorkloadError, match="custom cannot be loaded from gpudash_tests_custom:run"):
        resolve(spec)


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
        held = [torch.ones(2**14) for _ in range(2048)]
        cycle: list[Any] = [held]
        cycle.append(cycle)
        raise ValueError(f"{resident_bytes()} {len(held)}")

    bench.run("pipeline")
    before = resident_bytes()
    ending = bench.end(bench.begin(custom(fill_and_fail)))
    match = re.search(r"(\d+) 2048", ending.message)

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
    monkeypatch.setattr(Context, "free_cache", lambda context: (context._wishes.free_cache.clear(), freed.set()))
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


def test_importing_the_worker_does_not_import_torch() -> None:
    import subprocess

    script = "import sys, gpudash.workloads.worker, gpudash.specs; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "False"


def test_every_built_in_workload_can_be_resolved() -> None:
    from gpudash.specs import BUILT_IN

    assert all(callable(resolve(spec())) for spec in BUILT_IN)
    assert TrainingSpec in BUILT_IN
