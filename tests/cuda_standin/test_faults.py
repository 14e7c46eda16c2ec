"""What can be done to the stand-in's machine while programs run on it."""

from __future__ import annotations

import pynvml
import pytest

from tests.cuda_standin.conftest import Program
from tests.cuda_standin.machine import ASSERT, ILLEGAL_ADDRESS, OUT_OF_MEMORY

GIB = 2**30

TRY = """
    import json, sys, time, torch
    said = []
    def attempt(call):
        try:
            call()
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    def take(): return torch.empty(2**30, dtype=torch.uint8, device="cuda")
    def compute(): torch.ones(8, device="cuda"); torch.cuda.synchronize()
    kept = []
"""


def test_a_chosen_call_fails_with_the_chosen_error(program: Program) -> None:
    program.machine.fail("cudaMalloc", OUT_OF_MEMORY, call=2, times=2)  # torch empties its cache and tries again
    said = program(TRY, "for _ in range(3): attempt(lambda: kept.append(take()))\nprint(json.dumps(said))")
    assert [text.partition(":")[0] for text in said] == ["", "OutOfMemoryError", ""]


def test_faults_are_set_for_one_program_by_its_environment(program: Program) -> None:
    script = "attempt(take); attempt(compute); print(json.dumps(said))"
    said = program(TRY, script, CUDA_STANDIN_FAULTS="cudaDeviceSynchronize@1=700!,cudaMalloc~1")
    assert said == ["", "AcceleratorError: CUDA error: an illegal memory access was encountered"]


@pytest.mark.parametrize(
    ("code", "words"),
    [(ILLEGAL_ADDRESS, "an illegal memory access was encountered"), (ASSERT, "device-side assert triggered")],
)
def test_a_lost_context_stays_lost_and_only_in_its_process(program: Program, code: int, words: str) -> None:
    program.machine.fail("cudaDeviceSynchronize", code, sticky=True)
    script = "attempt(compute); attempt(compute); attempt(take); print(json.dumps(said))"
    assert program(TRY, script) == [f"AcceleratorError: CUDA error: {words}"] * 3
    if code == ASSERT:
        assert program(TRY, script) == ["", "", ""]


def test_a_gpu_is_lost_while_a_program_runs_on_it_and_nvml_says_so(program: Program) -> None:
    script = """
    attempt(compute)
    print("ready", flush=True)
    input()
    attempt(compute)
    import pynvml
    pynvml.nvmlInit()
    attempt(lambda: pynvml.nvmlDeviceGetHandleByIndex(0))
    print(json.dumps(said))
"""
    running = program.start(TRY, script)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    program.machine.lose(0)
    out, errors = running.communicate("\n")
    assert running.returncode == 0, errors
    assert out.splitlines()[-1].startswith('["", "AcceleratorError: CUDA error: unknown error", "NVMLError_GpuIsLost')
    program.machine.mend()
    assert program(TRY, "attempt(compute); print(json.dumps(said))") == [""]


def test_calls_can_be_slow_and_kernels_too_and_nvml_can_fail(program: Program) -> None:
    program.machine.slow("cudaDeviceSynchronize", 0.2)
    program.machine.fail("nvmlDeviceGetMemoryInfo*", pynvml.NVML_ERROR_UNKNOWN, times=-1)
    script = """
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    values = torch.empty(8, device="cuda")
    began.record()
    for _ in range(10): values.add_(1)
    ended.record()
    early = ended.query()
    ended.synchronize()
    late, took_ms = ended.query(), began.elapsed_time(ended)
    began_s = time.monotonic()
    torch.cuda.synchronize()
    waited_s = time.monotonic() - began_s
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    attempt(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    attempt(lambda: pynvml.nvmlDeviceGetName(handle))
    print(json.dumps([early, late, took_ms, waited_s, said]))
"""
    early, late, took_ms, waited_s, said = program(TRY, script, CUDA_STANDIN_KERNEL_US="50000")
    assert (early, late) == (False, True) and took_ms >= 500
    assert waited_s >= 0.2
    assert said == ["NVMLError_Unknown: Unknown Error", ""]
