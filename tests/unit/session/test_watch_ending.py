"""How a watched program ended is told from all that is known of it, and no further."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpudash
from gpudash.session.watching.ending import (
    LONGEST_MESSAGE,
    NEEDS_A_GPU,
    UNREPORTED,
    EndedRun,
    Raised,
    ending_of,
    frames_of,
)
from gpudash.session.watching.program import exit_text
from gpudash.telemetry.records import RunEnd

RAN = EndedRun("train.py", 1, time_s=100.0, run_id=3, seconds=90.0, steps=12, device="cuda:0", result={"exit_code": 1})

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    train()
  File "/home/me/train.py", line 5, in train
    step(loss)
  File "/venv/lib/python3.11/site-packages/torch/optim/adam.py", line 12, in step
    raise RuntimeError("bad")
RuntimeError: bad
"""


def failed(ran: EndedRun) -> RunEnd:
    ending = ending_of(ran)
    assert ending.status == "failed"
    assert (ending.run_id, ending.seconds, ending.steps, ending.time_s) == (3, 90.0, 12, 100.0)
    assert ending.result["exit_code"] == 1
    return ending


def refused(**facts: Any) -> dict[str, Any]:
    return {"device": "sim:0", "requested_bytes": 2**30, "free_bytes": 2**20, "who": "", "time_s": 99.0, **facts}


def test_exit_code_0_is_a_finish_also_after_an_out_of_memory_that_was_handled() -> None:
    ending = ending_of(replace(RAN, code=0, out_of_memory=refused()))
    assert isinstance(ending, RunEnd) and not ending.ended_badly
    assert ending.status == "finished"


@pytest.mark.parametrize("code", [0, 1, -2, -9])
def test_a_program_that_was_asked_to_end_was_cancelled_whatever_its_code(code: int) -> None:
    ending = ending_of(replace(RAN, code=code, stopped=True))
    assert isinstance(ending, RunEnd) and not ending.ended_badly
    assert ending.status == "cancelled"


def test_an_exception_is_told_with_the_programs_own_line() -> None:
    raised = Raised("RuntimeError", "bad", details=TRACEBACK).at_own_line()
    ending = failed(replace(RAN, raised=[raised]))
    assert ending.error == "RuntimeError"
    assert ending.message == "RuntimeError: bad (train.py:5)."
    assert ending.details == TRACEBACK
    assert ending.result["frames"][1] == {"file": "/home/me/train.py", "line": 5, "name": "train"}


def test_lines_of_the_simulator_are_left_out_and_those_of_libraries_stay() -> None:
    package = Path(gpudash.__file__).parent
    text = TRACEBACK.replace("RuntimeError: bad\n", "").replace('raise RuntimeError("bad")', "return self.new()")
    text += f'  File "{package}/simulator/storage.py", line 138, in new\n    raise\nOutOfMemoryError: full\n'
    frames = Raised("out_of_memory", "full", details=text).frames
    assert [frame["name"] for frame in frames] == ["<module>", "train", "step"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("invalid syntax (a.py, line 3)", "SyntaxError: invalid syntax (a.py:3)."),
        ("\n=====\n\ntrain FAILED\n-----\n", "SyntaxError: train FAILED (a.py:3)."),
        ("x" * 5000, f"SyntaxError: {'x' * LONGEST_MESSAGE}… (a.py:3)."),
        ("", "SyntaxError (a.py:3)."),
    ],
)
def test_the_sentence_has_the_first_words_of_a_message_and_the_place_once(message: str, told: str) -> None:
    assert failed(replace(RAN, raised=[Raised("SyntaxError", message, "/t/a.py", 3)])).message == told


def test_a_module_that_is_missing_is_told_with_the_way_out() -> None:
    raised = Raised("ModuleNotFoundError", "No module named 'torch'", "/home/me/train.py", 1)
    found = failed(replace(RAN, raised=[raised], python_with_torch=lambda: Path("/home/me/.venv/bin/python")))
    assert found.remedy == "/home/me/.venv/bin/python has PyTorch."
    assert found.result["python_with_torch"] == "/home/me/.venv/bin/python"
    ending = failed(replace(RAN, raised=[raised]))
    assert "Install it for the Python that runs the script" in ending.remedy
    assert ending.result["frames"] == [{"file": "/home/me/train.py", "line": 1, "name": ""}]


@pytest.mark.parametrize(
    "message",
    [
        "Torch not compiled with CUDA enabled",
        "No CUDA GPUs are available",
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        "No supported gpu backend found!",
    ],
)
def test_a_program_that_misses_cuda_is_offered_a_simulated_gpu_in_its_place(message: str) -> None:
    ran = replace(RAN, raised=[Raised("RuntimeError", message, "/home/me/train.py", 1)])
    offered = failed(replace(ran, without_cuda="Add --as-cuda."))
    assert offered.remedy == "Add --as-cuda." and offered.result["misses_cuda"] is True
    assert "--as-cuda" not in failed(ran).remedy
    other = replace(ran, raised=[Raised("ValueError", "nan")], without_cuda="Add --as-cuda.")
    assert "--as-cuda" not in failed(other).remedy


def test_an_assertion_of_cuda_is_offered_a_simulated_gpu_too() -> None:
    def remedy(line: str) -> str:
        details = f'  File "/home/me/train.py", line 2, in <module>\n    {line}\nAssertionError\n'
        raised = Raised("AssertionError", "", "/home/me/train.py", 2, details=details)
        return failed(replace(RAN, raised=[raised], without_cuda="Add --as-cuda.")).remedy

    assert remedy("assert torch.cuda.is_available()") == "Add --as-cuda."
    assert remedy("assert torch.cuda.device_count() > 0, why") == "Add --as-cuda."
    assert remedy("assert loss.isfinite()") != "Add --as-cuda."


def test_what_a_simulated_gpu_cannot_be_asked_for_is_told_beside_torchs_own_words() -> None:
    raised = Raised("RuntimeError", "Distributed package doesn't have NCCL built in", "/home/me/train.py", 1)
    assert failed(replace(RAN, raised=[raised], as_cuda=True)).remedy == NEEDS_A_GPU
    assert failed(replace(RAN, raised=[raised])).remedy != NEEDS_A_GPU


def test_the_first_rank_that_failed_is_told_where_the_launcher_only_passes_it_on() -> None:
    first = Raised("ValueError", "nan", "/t.py", 3, who="rank 1 (pid 7)")
    second = Raised("RuntimeError", "connection closed", "/t.py", 9, who="rank 0 (pid 6)")
    launcher = Raised("ChildFailedError", "rank 1 failed")
    ending = failed(replace(RAN, raised=[first, second, launcher]))
    assert ending.message == "Rank 1 (pid 7): ValueError: nan (t.py:3)."
    full = replace(second, error="out_of_memory")
    assert ending_of(replace(RAN, raised=[first, full, launcher])).kind == "OutOfMemory"


def test_the_programs_own_exception_comes_before_that_of_what_it_has_started() -> None:
    child = Raised("ValueError", "nan", who="pid 7")
    assert failed(replace(RAN, raised=[child, Raised("KeyError", "'a'")])).error == "KeyError"


def test_an_out_of_memory_that_nobody_caught_ends_the_run_as_one() -> None:
    raised = Raised("out_of_memory", "CUDA out of memory", "/home/me/train.py", 5, details=TRACEBACK)
    ending = ending_of(replace(RAN, raised=[raised], out_of_memory=refused(device="cuda:1")))
    assert ending.status == "out_of_memory"
    assert ending.error == "cuda"
    assert ending.requested_bytes == 2**30
    assert ending.remedy == UNREPORTED, "so far"
    assert ending.message == (
        "train.py ran out of memory on cuda:1: a segment of 1.00 GiB was asked for and 1 MiB were free (train.py:5)."
    )


def test_a_bad_end_right_after_an_out_of_memory_is_its_end_unless_it_had_gone_on() -> None:
    assert ending_of(replace(RAN, out_of_memory=refused())).kind == "OutOfMemory"
    assert ending_of(replace(RAN, out_of_memory=refused(), stepped_s=99.5)).kind == "RunFailed"
    assert ending_of(replace(RAN, out_of_memory=refused(time_s=90.0))).kind == "RunFailed"


def test_what_it_printed_last_is_believed_where_no_agent_could_tell() -> None:
    ending = failed(replace(RAN, errors=TRACEBACK.splitlines()))
    assert (ending.error, ending.message) == ("RuntimeError", "RuntimeError: bad (train.py:5).")
    lines = TRACEBACK.replace("RuntimeError: bad", "torch.OutOfMemoryError: CUDA out of memory. Tried").splitlines()
    assert ending_of(replace(RAN, errors=lines)).kind == "OutOfMemory"
    other = failed(replace(RAN, code=7, errors=["ValueError: in a log line", "bye"]))
    assert other.message == "train.py ended with exit code 7."
    assert other.remedy == "The last it printed was: bye"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL, perhaps because this computer's memory was full"),
        (-11, "was killed by SIGSEGV, an invalid memory access"),
        (-15, "was killed by SIGTERM"),
        (-250, "was killed by signal 250"),
    ],
)
def test_an_exit_code_is_put_in_words(code: int, words: str) -> None:
    assert exit_text(code) == words
    assert failed(replace(RAN, code=code)).message == f"train.py {words}."


def test_a_kill_is_the_systems_only_where_the_system_has_killed_for_memory() -> None:
    assert ending_of(replace(RAN, code=-9)).kind == "RunFailed"
    ending = ending_of(replace(RAN, code=-9, oom_kills=1))
    assert ending.status == "out_of_memory"
    assert ending.error == "host"


def test_who_holds_the_memory_that_a_context_lacks_is_named() -> None:
    raised = [Raised("out_of_memory", DRIVER, "/home/me/train.py", 5)]
    ending = ending_of(replace(RAN, raised=raised, held_by_others=lambda: "python (pid 7) holds 0.78 of 1.00 GiB."))
    assert ending.message.endswith("or for code (train.py:5). python (pid 7) holds 0.78 of 1.00 GiB.")


def test_a_program_whose_gpu_could_not_be_simulated_was_refused() -> None:
    ending = failed(replace(RAN, refusal="This torch cannot register a device."))
    assert (ending.error, ending.message) == ("simulation", "This torch cannot register a device.")
    assert "--simulate" in ending.remedy


def test_the_last_traceback_counts_and_a_syntax_error_has_a_line_without_a_function() -> None:
    text = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n' + TRACEBACK
    assert [frame["line"] for frame in frames_of(text.splitlines())] == [9, 5, 12]
    assert frames_of(['  File "/b.py", line 3', "    x = ="]) == [{"file": "/b.py", "line": 3, "name": ""}]


HOST = "err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12"
DRIVER = "CUDA error: out of memory"


@pytest.mark.parametrize(
    ("error", "message", "details", "kind", "words", "remedy"),
    [
        (
            "out_of_host_memory",
            HOST,
            "",
            "host",
            "8.00 GiB were asked for",
            "memmap",
        ),
        ("out_of_host_memory", "", "", "host", "ran out of host memory (train.py:5)", "ulimit -v"),
        (
            "out_of_memory",
            DRIVER,
            "",
            "cuda",
            "no room for its context",
            "monitor",
        ),
        ("out_of_memory", DRIVER, "    x.pin_memory()", "host", "pin as much", "pin_memory=True"),
    ],
    ids=["torch", "python", "context", "pinned"],
)
def test_what_the_host_or_the_driver_could_not_give_is_an_out_of_memory_too(
    error: str, message: str, details: str, kind: str, words: str, remedy: str
) -> None:
    ending = ending_of(replace(RAN, raised=[Raised(error, message, "/home/me/train.py", 5, details=details)]))
    assert ending.status == "out_of_memory"
    assert ending.error == kind and words in ending.message and remedy in ending.remedy
    assert ending.requested_bytes == (8589934592 if "DefaultCPUAllocator" in message else None)


def test_a_gpu_without_room_for_a_context_is_not_called_the_cpu() -> None:
    failed = Raised("out_of_memory", DRIVER, "/home/me/train.py", 5)
    ending = ending_of(replace(RAN, device="cpu", raised=[failed]))
    assert (
        isinstance(ending, RunEnd)
        and ending.status == "out_of_memory"
        and "ran out of memory on its GPU: CUDA had no room" in ending.message
    )


def test_a_printed_error_of_cuda_s_own_is_an_out_of_memory() -> None:
    lines = (*TRACEBACK.splitlines()[:-1], f"torch.AcceleratorError: {DRIVER}")
    ending = ending_of(replace(RAN, errors=lines))
    assert ending.status == "out_of_memory" and ending.error == "cuda"
