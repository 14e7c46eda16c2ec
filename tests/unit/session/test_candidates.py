"""Which running processes are offered to be watched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpudash.session.watching.attaching.candidates import candidates, gpu_holders, is_gpudash, is_python, ranks_of
from gpudash.telemetry.records import Sample
from gpudash.telemetry.store import Store


def holding(*rows: tuple[str, int, int | None]) -> Store:
    store = Store()
    for device, pid, size in rows:
        store.apply(Sample(1.0, "process", device, {"pid": pid, "name": "python", "memory_bytes": size}))
    return store


def test_what_a_process_holds_is_added_up_over_the_gpus() -> None:
    store = holding(("GPU-a", 10, 100), ("GPU-b", 10, 50), ("GPU-a", 11, None))
    assert gpu_holders(store) == {10: 150, 11: None}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["/usr/bin/python3.11", "a.py"], True),
        (["pypy3"], True),
        (["bash"], False),
        (["monty/python/x"], False),
        ([], False),
    ],
)
def test_python_is_told_by_the_name_of_its_program(command: list[str], told: bool) -> None:
    assert is_python(command) is told


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        (["python", "-m", "gpudash"], True),
        (["python", "-m", "gpudash.workloads.lines.process"], True),
        (["python", "/usr/bin/gpudash", "watch"], True),
        (["python", "-c", "import sys; from gpudash.workloads.running.hosted.host_process import main"], True),
        (["python", "/x/gpudash/simulator/dry_run/own_code_process.py"], True),
        (["python", "/home/me/gpudash/train.py"], False),
        (["python", "train.py", "--tracker", "gpudash"], False),
        (["python"], False),
    ],
)
def test_gpudash_s_own_processes_are_none_of_the_user_s_programs(command: list[str], is_ours: bool) -> None:
    assert is_gpudash(command) is is_ours


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that is not a child of ours, as far as the list is concerned."""
    process = subprocess.Popen([sys.executable, "-c", "input()", "an argument"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.process
def test_python_programs_of_the_user_are_listed_with_their_command(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive=False: [])
    found = {candidate.pid: candidate for candidate in candidates(Store())}
    assert os.getpid() not in found
    assert found[sleeper.pid].command.endswith("-c 'input()' 'an argument'")
    assert found[sleeper.pid].memory_bytes > 0 and found[sleeper.pid].gpu_bytes is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("environment", "name"),
    [({"JPY_SESSION_NAME": "/home/me/<b>two words.ipynb"}, "<b>two words.ipynb"), ({}, "jupyter kernel")],
)
def test_a_kernel_is_called_by_its_notebook(
    environment: dict[str, str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive=False: [])
    (tmp_path / "ipykernel_launcher.py").write_text("input()", encoding="utf-8")
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "kernel.json"]
    kernel = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=tmp_path, env={**os.environ, **environment})
    try:
        found = {candidate.pid: candidate.name for candidate in candidates(Store())}
        assert found[kernel.pid] == name
    finally:
        kernel.kill()
        kernel.communicate()


@pytest.mark.process
def test_what_holds_gpu_memory_comes_first(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive=False: [])
    first = candidates(holding(("GPU-a", sleeper.pid, 2**30)))[0]
    assert (first.pid, first.gpu_bytes) == (sleeper.pid, 2**30)


@pytest.mark.process
def test_our_own_children_are_not_offered(sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.pid not in {candidate.pid for candidate in candidates(Store())}


def test_processes_that_end_or_are_not_ours_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(process: psutil.Process) -> list[str]:
        raise (psutil.NoSuchProcess if process.pid % 2 else psutil.AccessDenied)(process.pid)

    monkeypatch.setattr(psutil.Process, "cmdline", gone)
    assert candidates(Store()) == []


LAUNCHES = """
import os, subprocess, sys
rank = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
started = [subprocess.Popen([sys.executable, "-c", rank], env={**os.environ, "RANK": str(of)}) for of in (1, 0)]
print(*(process.pid for process in started), flush=True)
for process in started:
    process.wait()
"""


@pytest.mark.process
def test_of_a_launcher_the_ranks_are_known_and_not_what_they_have_started() -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert launcher.stdout is not None
        lines = sorted((launcher.stdout.readline().split() for _ in range(3)), key=len)
        second, first = map(int, lines[-1])
        assert ranks_of(psutil.Process(launcher.pid)) == {0: first, 1: second}
        assert ranks_of(psutil.Process(first)) == {}
    finally:
        for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
            process.kill()
        launcher.communicate()
