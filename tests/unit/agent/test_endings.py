"""How a program ends, told truthfully: crashes, faults, forks, workers, ranks, and a dashboard that goes first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpudash.agent.endings import MOST_TRACEBACK, raised
from tests.unit.agent.dashboard import SCRIPTS, Dashboard, unwatched

pytestmark = pytest.mark.process


def script(name: str) -> str:
    return str(SCRIPTS / f"{name}.py")


def test_an_exception_nobody_caught_is_told_with_its_line_and_printed_as_ever(dashboard: Dashboard) -> None:
    done, alone = dashboard.run(script("crash")), unwatched(script("crash"))
    assert (done.stdout, done.stderr, done.returncode) == (alone.stdout, alone.stderr, alone.returncode)
    (told,) = dashboard.of("raised")
    assert (told["error"], told["message"]) == ("RuntimeError", "the loss is nan at step 3")
    assert (told["file"], told["line"], told["name"], told["thread"]) == (script("crash"), 11, "train", None)
    assert told["traceback"] in done.stderr and told["time_us"] < dashboard.of("bye")[0]["time_us"]


@pytest.mark.parametrize(
    ("code", "error", "line"),
    [
        ("import a_module_that_is_nowhere", "ModuleNotFoundError", 1),
        ("1 +", "SyntaxError", 1),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", 1),
        ("import sys\nsys.excepthook = lambda *error: print('mine')\n1 / 0", "ZeroDivisionError", 3),
        ("import sys\nsys.exit(4)", None, None),
        ("try: 1 / 0\nexcept ZeroDivisionError: pass", None, None),
        ("import os\nos._exit(5)", None, None),
    ],
)
def test_every_way_to_end_is_told_as_what_it_is(
    dashboard: Dashboard, tmp_path: Path, code: str, error: str | None, line: int | None
) -> None:
    (tmp_path / "script.py").write_text(code)
    done, alone = dashboard.run(str(tmp_path / "script.py")), unwatched(str(tmp_path / "script.py"))
    assert (done.stdout, done.stderr, done.returncode) == (alone.stdout, alone.stderr, alone.returncode)
    assert [(told["error"], told["line"]) for told in dashboard.of("raised")] == ([(error, line)] if error else [])


def test_a_thread_that_fails_is_named_and_the_program_goes_on(dashboard: Dashboard) -> None:
    code = (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='loader')\nt.start()\nt.join()\nprint('on')"
    )
    done, alone = dashboard.run("-c", code), unwatched("-c", code)
    assert (done.stdout, done.stderr, done.returncode) == (alone.stdout, alone.stderr, alone.returncode)
    (told,) = dashboard.of("raised")
    assert (told["error"], told["thread"]) == ("ZeroDivisionError", "loader")
    quiet = "import threading, sys\nt = threading.Thread(target=sys.exit)\nt.start()\nt.join()"
    assert dashboard.run("-c", quiet).stderr == "" and len(dashboard.of("raised")) == 1


def test_a_fault_leaves_no_farewell(dashboard: Dashboard) -> None:
    assert dashboard.run(script("segfault")).returncode == -signal.SIGSEGV
    assert [message["type"] for message in dashboard.messages] == ["hello"]


def test_forked_children_are_told_apart(dashboard: Dashboard) -> None:
    done = dashboard.run(script("forks"), "0.2")
    assert done.stdout == "status 3\n" and done.returncode == 0
    assert sorted(hello["forked"] for hello in dashboard.of("hello")) == [False, True, True]
    assert len(dashboard.of("bye")) == 2, "the one that leaves by _exit says nothing"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_load_data_are_told_of(dashboard: Dashboard, method: str) -> None:
    # Python's own tracker of semaphores now and then misses that a spawned worker's is gone, watched or not
    calm = {"PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker"}
    done = dashboard.run(script("workers"), method, environment=calm)
    alone = unwatched(script("workers"), method, **calm)
    assert (done.stdout, done.stderr, done.returncode) == (alone.stdout, alone.stderr, alone.returncode)
    parent = next(hello for hello in dashboard.of("hello") if hello["ppid"] == os.getpid())
    with_torch = {told["pid"] for told in dashboard.of("torch")}
    workers = [h for h in dashboard.of("hello") if h["ppid"] == parent["pid"] and h["pid"] in with_torch]
    assert [worker["forked"] for worker in workers] == [method == "fork"] * 2


@pytest.mark.parametrize("deed", [signal.SIGSTOP, signal.SIGKILL])
def test_a_dashboard_that_stops_or_dies_takes_nothing_with_it(tmp_path: Path, deed: signal.Signals) -> None:
    listening = tmp_path / "listening"
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen(8)\nprint(flush=True)\n"
        "held = []\nwhile True: held.append(s.accept()); print(flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(listening)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        environment = {**os.environ, "GPUDASH_SOCKET": str(listening), "GPUDASH_AGENT": '{"period_s": 0.01}'}
        environment["PYTHONPATH"] = str(SCRIPTS.parents[2] / "gpudash" / "agent" / "inject")
        program = subprocess.Popen(
            [sys.executable, script("train"), "3000"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert other.stdout.readline(), "it is connected"
        other.send_signal(deed)
        printed, complaints = program.communicate(timeout=90)
        other.kill()
    assert program.returncode == 0 and complaints == ""
    assert printed == unwatched(script("train"), "3000").stdout


def test_the_thread_and_the_sockets_are_gone_when_a_program_forks_or_starts_another(dashboard: Dashboard) -> None:
    code = """
import logging, os, subprocess, sys, time
logging.getLogger("gpudash").info("step", extra={"step": 1})
time.sleep(0.1)
def seen(): return len(os.listdir("/proc/self/task")), sum("socket" in os.readlink(f"/proc/self/fd/{fd}")
    for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}"))
for _ in range(50):
    pid = os.fork()
    if not pid: os._exit(seen()[1])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
print(seen())
listing = "import os; print([os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')[:-1]])"
print("socket" in subprocess.run([sys.executable, "-S", "-c", listing], stdout=subprocess.PIPE, text=True).stdout)
"""
    done = dashboard.run("-W", "error", "-c", code)
    assert (done.stdout, done.stderr, done.returncode) == ("(2, 1)\nFalse\n", "", 0)


@pytest.mark.parametrize("python", sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python")), ids=str)
def test_forking_beside_the_agents_thread_warns_of_nothing(dashboard: Dashboard, python: Path) -> None:
    code = """
import logging, os, time
logging.getLogger("gpudash").info("step", extra={"step": 1})
for _ in range(100):
    pid = os.fork()
    if not pid: os._exit(0)
    os.waitpid(pid, 0)
"""
    done = dashboard.run("-W", "error", "-c", code, python=str(python))
    assert (done.stderr, done.returncode) == ("", 0)
    dashboard.wait_until(lambda: len(dashboard.of("hello")) == 101)


def test_an_out_of_memory_is_known_also_as_the_cause_of_another_error() -> None:
    def fail() -> None:
        try:
            raise torch.OutOfMemoryError("full")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("in a worker") from error

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert raised(caught.value)["error"] == "out_of_memory"
    assert raised(ValueError("x" * 10**6))["traceback"].__len__() == MOST_TRACEBACK
    looped = ValueError("a")
    looped.__cause__ = looped
    assert raised(looped)["error"] == "ValueError" and raised(looped)["file"] is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), "out_of_memory"),
        (MemoryError(), "out_of_host_memory"),
        (RuntimeError("[enforce] . DefaultCPUAllocator: can't allocate memory"), "out_of_host_memory"),
        (RuntimeError("something else"), "RuntimeError"),
    ],
    ids=["allocator", "driver", "python", "host", "other"],
)
def test_whose_memory_was_full_is_told_by_the_exception(error: Exception, kind: str) -> None:
    assert raised(error)["error"] == kind


def test_torchs_refusal_of_host_memory_has_the_words_it_is_known_by() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**50)
    assert raised(refused.value)["error"] == "out_of_host_memory"
