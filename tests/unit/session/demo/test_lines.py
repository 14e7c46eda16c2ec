"""Lines in a process of their own: an endless loop and a crash end that process, and the next lines run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from gpudash.session.demo.lines import LinesProcess, problem_of
from gpudash.units import MIB
from gpudash.workloads.lines.trace import ENDED, LinesTrace

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def process() -> Iterator[LinesProcess]:
    found = LinesProcess(longest_s=60.0)
    yield found
    found.close()


def wait_for(process: LinesProcess, *, stop_at_line: int = 0) -> LinesTrace:
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        found = process.poll()
        if found is not None:
            return found
        if stop_at_line and process.line >= stop_at_line:
            process.stop()
        process.wait(0.1)
    raise AssertionError("no answer")


def test_lines_run_on_a_card_of_their_own_size(process: LinesProcess) -> None:
    process.ask("a = torch.ones(1024, 1024, device=gpu)", 64 * MIB)
    trace = wait_for(process)
    assert trace.failure is None and trace.peak == 4 * MIB and trace.limit == 64 * MIB
    assert not process.busy and process.poll() is None


def test_a_tensor_that_names_no_device_is_on_the_cpu_as_in_pytorch(process: LinesProcess) -> None:
    process.ask("a = torch.ones(1024, 1024)", 64 * MIB)
    trace = wait_for(process)
    assert trace.failure is None and trace.peak == 0 and [block.name for block in trace.moments[-1].host] == ["a"]


@pytest.mark.parametrize("placing", ["torch.ones(1024, 1024, device='cuda')", "x.cuda()", "x.to('cuda')", "x.to(gpu)"])
def test_cuda_means_the_simulated_card(process: LinesProcess, placing: str) -> None:
    process.ask(f"x = torch.ones(1024, 1024)\na = {placing}\nassert str(a.device) == 'cuda:0'", 64 * MIB)
    trace = wait_for(process)
    assert trace.failure is None and trace.peak == 4 * MIB
    assert [block.name for block in trace.moments[-1].blocks] == ["a"]


def test_an_error_names_the_card_as_pytorch_does(process: LinesProcess) -> None:
    process.ask("x = torch.ones(8)\ny = x + x.to(gpu)", 64 * MIB)
    failure = wait_for(process).failure
    assert failure is not None and "cuda:0" in failure.message and "cpu" in failure.message


def test_what_they_print_and_read_disturbs_nobody(process: LinesProcess) -> None:
    process.ask("print('{}')\nimport sys\nword = sys.stdin.read()", MIB)
    assert wait_for(process).failure is None


def test_what_was_printed_before_is_no_reason_for_a_later_crash(process: LinesProcess) -> None:
    process.ask("import sys\nprint('all is well', file=sys.stderr)", MIB)
    assert wait_for(process).failure is None
    process.ask("import os\nos._exit(3)", MIB)
    failure = wait_for(process).failure
    assert failure is not None and "exit code 3" in failure.message


def test_an_endless_loop_is_stopped_at_its_line_and_the_next_lines_run(process: LinesProcess) -> None:
    process.ask("a = torch.ones(256, 1024, device=gpu)\nwhile True:\n    pass", 64 * MIB)
    trace = wait_for(process, stop_at_line=2)
    failure = trace.failure
    assert [(moment.line, moment.bytes) for moment in trace.moments] == [(1, MIB)], "what is known is kept"
    assert failure is not None and (failure.line, failure.kind, failure.message) == (2, ENDED, "was stopped")
    process.ask("a = 1", MIB)
    assert wait_for(process).failure is None


@pytest.mark.parametrize(
    ("ending", "message"), [("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), 11)", "signal SIGSEGV")]
)
def test_a_crash_is_told_at_its_line(process: LinesProcess, ending: str, message: str) -> None:
    process.ask(f"import os\n{ending}", MIB)
    failure = wait_for(process).failure
    assert failure is not None and failure.line == 2 and message in failure.message


def test_lines_that_take_too_long_are_ended() -> None:
    now = [0.0]
    process = LinesProcess(clock=lambda: now[0], longest_s=5.0)
    process.ask("while True:\n    pass", MIB)
    while process.loading:
        assert process.poll() is None
        process.wait(0.1)
    now[0] = 200.0
    failure = wait_for(process).failure
    assert failure is not None and "longer than 5 s" in failure.message
    process.close()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("  \n", "There is no line to run."),
        ("a = 1\nx = torch.ones(5, device=gpu", "Line 2: "),
        ("return 1", "Line 1: "),
        ("a = '\0'", "null bytes"),
        ("(" * 300, ""),
    ],
)
def test_lines_that_cannot_be_read_are_refused_before_anything_is_started(source: str, problem: str) -> None:
    refused = problem_of(source)
    assert problem in refused and refused.endswith((".", ").")) and "\n" not in refused


def test_lines_that_can_be_tried_have_no_problem() -> None:
    assert problem_of("a = torch.ones(4, device=gpu)\nb = '\\d'") == ""


def test_a_process_that_cannot_be_started_is_told() -> None:
    process = LinesProcess(("/nonexistent/python",))
    process.ask("a = 1", MIB)
    failure = process.poll()
    assert failure is not None and failure.failure is not None and "could not be started" in failure.failure.message


def test_a_python_without_torch_is_told() -> None:
    script = 'print(\'{"ready": false, "problem": "No lines can be run here: no torch."}\', flush=True)'
    process = LinesProcess((sys.executable, "-c", script))
    process.ask("a = 1", MIB)
    failure = wait_for(process).failure
    assert failure is not None and failure.message == "No lines can be run here: no torch"
