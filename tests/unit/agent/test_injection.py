"""What is put in front of every Python of a watched program: seen by the dashboard, and by nobody else."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.unit.agent.dashboard import INJECT, OTHERS, SCRIPTS, Dashboard, unwatched, version_of

pytestmark = pytest.mark.process

LOOK = """
import sys, os, atexit, signal, warnings, threading
print([entry for entry in sys.path if "inject" in entry], "sitecustomize" in sys.modules)
print(sys.excepthook is sys.__excepthook__, warnings.filters)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, threading.active_count())
print("logging" in sys.modules, "socket" in sys.modules, "torch" in sys.modules)
"""


def test_a_program_is_told_of_from_beginning_to_end(dashboard: Dashboard) -> None:
    done = dashboard.run("-c", "print('hello')", environment={"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "x"})
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 0)
    assert [message["type"] for message in dashboard.messages] == ["hello", "bye"]
    hello, bye = dashboard.messages
    assert hello["argv"] == [sys.executable, "-c", "print('hello')"] and hello["ppid"] == os.getpid()
    assert (hello["rank"], hello["local_rank"], hello["world_size"], hello["forked"]) == (3, None, 4, False)
    assert hello["python"] == ".".join(map(str, sys.version_info[:3])) and hello["protocol"] == 1
    assert abs(hello["time_us"] - time.time() * 1e6) < 120e6 and hello["pid"] == bye["pid"]
    assert bye["wall_s"] >= 0 and bye["cpu_s"] >= 0


def test_the_program_cannot_tell_that_it_is_watched(dashboard: Dashboard) -> None:
    assert dashboard.run("-c", LOOK).stdout == unwatched("-c", LOOK).stdout


@pytest.mark.parametrize("python", OTHERS, ids=lambda path: "-".join(path.parts[-3:]))
def test_any_python_behaves_as_unwatched_and_is_told_of_from_39_on(dashboard: Dashboard, python: Path) -> None:
    code = "import sys, os\npid = os.fork()\nif pid == 0: sys.exit(0)\nos.wait()\nimport threading, logging\n1 / 0"
    done, alone = (
        dashboard.run("-W", "error", "-c", code, python=str(python)),
        unwatched("-W", "error", "-c", code, python=str(python)),
    )
    assert (done.stdout, done.stderr, done.returncode) == (alone.stdout, alone.stderr, alone.returncode)
    kinds = sorted(message["type"] for message in dashboard.messages)
    assert kinds == (["bye", "bye", "hello", "hello", "raised"] if version_of(str(python)) >= (3, 9) else [])


@pytest.mark.parametrize(
    "text", ["print('mine', __name__, __file__)", "raise ValueError('mine')", "import nowhere", "1 +", None]
)
def test_the_users_own_sitecustomize_runs_as_if_there_were_no_other(
    dashboard: Dashboard, tmp_path: Path, text: str | None
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    if text is not None:
        (own / "sitecustomize.py").write_text(text)
    code = "import sys; print('sitecustomize' in sys.modules)\nimport sitecustomize; print(sitecustomize.__file__)"
    done = dashboard.run("-c", code, environment={"PYTHONPATH": f"{INJECT}{os.pathsep}{own}"})
    alone = unwatched("-c", code, PYTHONPATH=str(own))
    assert (done.stdout, done.stderr, done.returncode) == (alone.stdout, alone.stderr, alone.returncode)
    assert dashboard.of("hello") and dashboard.of("bye")


@pytest.mark.parametrize(
    "lacking", [{"GPUDASH_SOCKET": ""}, {"GPUDASH_SOCKET": "/nowhere/socket"}, {"GPUDASH_SOCKET": "x" * 500}]
)
def test_without_a_dashboard_nothing_happens(dashboard: Dashboard, lacking: dict[str, str]) -> None:
    code = "import sys; print([name for name in sys.modules if 'gpudash' in name], len(sys.meta_path))"
    done = dashboard.run("-c", code, environment=lacking)
    assert (done.stdout, done.stderr, done.returncode) == (unwatched("-c", code).stdout, "", 0)
    assert dashboard.messages == []


def test_a_dashboard_of_another_version_is_left_alone(tmp_path: Path) -> None:
    other = Dashboard(tmp_path, [{"type": "welcome", "protocol": 2}])
    try:
        done = other.run(str(SCRIPTS / "train.py"), "20")
        assert done.returncode == 0 and done.stderr == "" and not other.of("bye")
    finally:
        other.close()


def test_children_are_told_of_however_they_are_started(dashboard: Dashboard) -> None:
    code = """
import subprocess, sys, multiprocessing
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=print)
        child.start()
        child.join()
"""
    script = dashboard.folder / "parent.py"
    script.write_text(code)
    assert dashboard.run(str(script)).returncode == 0
    (parent,) = [hello for hello in dashboard.of("hello") if hello["argv"][-1] == str(script) and not hello["forked"]]
    children = [hello for hello in dashboard.of("hello") if hello["ppid"] == parent["pid"]]
    assert [child["forked"] for child in children].count(True) == 1 and len(children) >= 3
    assert len({hello["pid"] for hello in dashboard.of("hello")}) == len(dashboard.of("hello"))


@pytest.mark.parametrize("flags", ["-I", "-E", "-S"])
def test_a_python_that_ignores_its_environment_runs_unwatched(dashboard: Dashboard, flags: str) -> None:
    assert dashboard.run(flags, "-c", "print(1)").stdout == "1\n"
    assert dashboard.messages == []
