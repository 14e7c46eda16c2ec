"""How runs that fail are told: in words, with what they kept, and which memory ran out."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from gpudash.memory.allocator.refusal import REFUSED, AllocationRefused
from gpudash.memory.watching.levels import REMEDY
from gpudash.specs import Spec
from gpudash.telemetry.records import RunEnd, StageFinished
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import Shortage, memory_ran_out, shortage_of
from tests.unit.workloads.conftest import Bench, MakeSpec


def test_an_exception_becomes_a_failure_in_words_with_the_traceback_apart(bench: Bench, custom: MakeSpec) -> None:
    def fail(spec: Spec, context: Context) -> dict[str, Any]:
        with context.stage("fine"):
            pass
        context.keep(seen=1)
        raise KeyError("lost")

    ending = bench.end(bench.begin(custom(fail)))

    assert isinstance(ending, RunEnd) and ending.status == "failed" and ending.error == "KeyError"
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

    assert bench.end(bench.begin(custom(leave))).kind == "RunFailed"
    assert bench.run("pipeline").status == "finished"


def test_a_workload_that_returns_nothing_usable_fails_in_words(bench: Bench, custom: MakeSpec) -> None:
    ending = bench.end(bench.begin(custom(lambda spec, context: 7)))

    assert isinstance(ending, RunEnd) and ending.status == "failed" and "TypeError" in ending.message


def test_host_memory_that_is_not_to_be_had_is_out_of_memory(bench: Bench, custom: MakeSpec) -> None:
    size = 2**60
    ending = bench.end(bench.begin(custom(lambda spec, context: torch.empty(size, dtype=torch.uint8) and {})))

    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory" and ending.error == "host"
    assert ending.requested_bytes == size
    assert "1048576.0 TiB" in ending.message and ending.remedy and "DefaultCPUAllocator" in ending.details
    assert bench.run("pipeline").status == "finished"


def test_a_memory_error_of_python_is_out_of_memory(bench: Bench, custom: MakeSpec) -> None:
    ending = bench.end(bench.begin(custom(lambda spec, context: {"never": bytearray(2**62)})))

    assert (
        isinstance(ending, RunEnd)
        and ending.status == "out_of_memory"
        and ending.error == "host"
        and ending.requested_bytes is None
    )


CUDA_WORDS = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 3.25 GiB is "
    "free. Including non-PyTorch memory, this process has 136.55 GiB memory in use."
)


def test_cuda_out_of_memory_is_told_with_its_numbers(bench: Bench, custom: MakeSpec) -> None:
    def fail(spec: Spec, context: Context) -> dict[str, Any]:
        raise torch.OutOfMemoryError(CUDA_WORDS)

    ending = bench.end(bench.begin(custom(fail)))

    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory" and ending.error == "cuda"
    assert ending.requested_bytes == 20 * 2**30
    assert ending.message == ("The memory of cpu ran out: the last request was 20.0 GiB, 3.25 of 139.8 GiB were free.")


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
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU", 20 * 2**20),
        ("CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0", 1536 * 2**20),
        ("DefaultCPUAllocator: you tried to allocate 4096 bytes. Error", 4096),
        ("CUDA out of memory: nothing of the kind", None),
    ],
)
def test_the_requested_size_is_read_from_torchs_words(text: str, size: int | None) -> None:
    short = shortage_of(RuntimeError(text))
    assert short is not None and short.requested == size


def test_a_caps_refusal_is_read_from_torchs_words() -> None:
    text = "2.00 GiB is free. 512.00 MiB allowed; Of the allocated memory 100.00 MiB is allocated by PyTorch"
    error = torch.OutOfMemoryError(f"CUDA out of memory. GPU 0 has a total capacity of 8.00 GiB of which {text}")
    assert shortage_of(error) == Shortage("cuda", None, 8 * 2**30, 2 * 2**30, 512 * 2**20, 0)


def test_a_simulated_gpus_refusal_is_told_to_the_byte() -> None:
    refused = AllocationRefused(3 * 2**20 + 7, 2**20 + 7, 0, 2**31 + 1, 2**20 + 5, None, 0, 0, 0, 0, 0, 0)
    error = torch.OutOfMemoryError("SIM out of memory. Tried to allocate 3.00 MiB.")
    setattr(error, REFUSED, refused)
    assert shortage_of(error) == Shortage("sim", 3 * 2**20 + 7, 2**31 + 1, 2**20 + 5, None, 0)


def test_a_device_that_is_broken_for_good_says_to_start_anew(bench: Bench, custom: MakeSpec) -> None:
    def fail(spec: Spec, context: Context) -> dict[str, Any]:
        raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous")

    ending = bench.end(bench.begin(custom(fail)))

    assert ending.error == "cuda_error" and "Restart gpudash" in ending.remedy and "\n" not in ending.message


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

    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory" and ending.error == "guard"
    assert ending.message == "Stopped by the guard: 3 of 3 GiB are in use." and ending.remedy == REMEDY


def test_a_refused_allocation_ends_the_run_as_out_of_memory_with_the_bytes_asked(bench: Bench) -> None:
    asked: list[tuple[int, str]] = []

    def refuse(size: int, memory: str) -> str | None:
        asked.append((size, memory))
        return "Stopped by the guard." if len(asked) == 3 else None

    ending = bench.run("pressure", request={"refuse": refuse}, step="1MiB", cap="8MiB", rate=1000, hold=0)

    assert (
        isinstance(ending, RunEnd)
        and ending.status == "out_of_memory"
        and ending.error == "guard"
        and ending.requested_bytes == 2**20
    )
    assert asked == [(2**20, "cpu")] * 3 and ending.result["allocations"] == 2
