"""What a program leaves running is ended with it, however well it hides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpudash.session.api.mcp_server import supervisor

pytestmark = pytest.mark.process

LEAVES = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open('pipe') as pipe:
            signal.pause()
    os._exit(0)
os.wait()
open('pipe', 'w').close()
signal.raise_signal(int(sys.argv[1]))
sys.exit(3)
"""
"""Leaves a process behind that no signal to a group reaches, and ends itself once that runs."""

CALLS = """
import os, subprocess, sys, signal
subprocess.Popen([sys.executable, '-P', sys.argv[1], str(os.getpid()), *sys.argv[2:]])
signal.pause()
"""


def supervised(*command: str) -> list[str]:
    return [sys.executable, "-P", supervisor.__file__, str(os.getpid()), *command]


@pytest.mark.parametrize(("number", "code"), [(0, 3), (signal.SIGKILL, 128 + signal.SIGKILL)])
def test_a_process_in_a_session_of_its_own_is_ended_and_said(tmp_path: Path, number: int, code: int) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "leaves.py").write_text(LEAVES)
    command = supervised(sys.executable, "leaves.py", str(number))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.startswith("gpudash ended what the program left running, by process number: ")
    # opened for writing without waiting only where somebody has it open for reading
    with pytest.raises(OSError, match="No such device or address"):
        os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)


def test_a_program_that_leaves_nothing_behind_ends_with_its_code_and_no_word() -> None:
    done = subprocess.run(supervised("/bin/sh", "-c", "exit 4"), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (4, b"", b"")


def test_what_it_runs_ends_once_the_caller_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", CALLS, supervisor.__file__, "/bin/sh", "-c", "exec 3>pipe; sleep 600"]
    with subprocess.Popen(command, cwd=tmp_path) as caller, (tmp_path / "pipe").open() as pipe:
        caller.kill()
        assert pipe.read() == ""
