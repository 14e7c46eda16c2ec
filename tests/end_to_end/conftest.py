"""The real commands in their own processes, and a real window under Xvfb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

import pytest

from tests.json_page import undescribed
from tests.nvml_stub.build import Scenario, build, variables
from tests.programs import program, python
from tests.ssh_server.server import Client, make_client

TIMEOUT_S = 150
PLAY_S = 260


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        found: dict[str, Any] = json.loads(self.stdout)
        return found


Command = Callable[..., Outcome]
Play = Callable[..., dict[str, Any]]
Stub = Callable[[Scenario], dict[str, str]]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: no display, one torch thread, everything written under ``home``."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    kept.pop("QT_QPA_PLATFORM", None)
    return {**kept, "GPUDASH_HOME": str(home), "COLUMNS": "120", **(extra or {})}


def run_python(
    home: Path, *arguments: str, extra: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A Python that has ended, with what it printed, in its `environment`; ``options`` are of `subprocess.run`."""
    return python(*arguments, env=environment(home, extra), **{"timeout": TIMEOUT_S} | options)


def start_python(
    home: Path, *arguments: str, extra: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """A Python in its `environment`, whose outputs are pipes; ``options`` are of `subprocess.Popen`."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], env=environment(home, extra), **usual | options)


@pytest.fixture
def gpudash(home: Path) -> Command:
    """Run ``gpudash`` with arguments and wait for its end."""

    def command(*arguments: str, env: Mapping[str, str] | None = None) -> Outcome:
        done = run_python(home, "-m", "gpudash", *arguments, extra=env)
        if done.stdout and "--json" in takewhile(lambda word: word != "--", arguments):
            assert undescribed(arguments, json.loads(done.stdout)) == []  # whatever a test is about
        return Outcome(done.returncode, done.stdout, done.stderr)

    return command


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that stands in for the driver's."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(driver: Path, tmp_path: Path) -> Stub:
    """Puts a scenario in force; the variables with which a command plays it."""

    def play(scenario: Scenario) -> dict[str, str]:
        scenario.write(tmp_path / "scenario")
        return variables(driver, tmp_path / "scenario")

    return play


@pytest.fixture
def play(display: str, home: Path, tmp_path: Path) -> Play:
    """Play a scenario in the real window and return what was seen."""

    def scenario(name: str, env: Mapping[str, str] | None = None, *, stdin: IO[Any] | None = None) -> dict[str, Any]:
        driver = ("-m", "tests.end_to_end.window_driver", name, str(tmp_path))
        seeing = {"DISPLAY": display, "QT_QPA_PLATFORM": "xcb", **(env or {})}
        process = run_python(home, *driver, extra=seeing, stdin=stdin, timeout=PLAY_S)
        left_at = time.time()
        assert (tmp_path / "seen.json").exists(), process.stderr
        seen: dict[str, Any] = json.loads((tmp_path / "seen.json").read_text())
        assert "error" not in seen, f"{seen['error']}\n{process.stderr}"
        assert "Traceback" not in process.stderr, process.stderr
        assert process.returncode == 0, process.stderr
        return {**seen, "seconds_to_leave": left_at - seen["closed_at"]}

    return scenario


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """A virtual screen of 2560×1440; a machine without Xvfb has no real-window tests."""
    server = program("Xvfb")
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [server, "-displayfd", str(writing), "-screen", "0", "2560x1440x24", "-nolisten", "tcp"],
        pass_fds=(writing,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as announced:
        number = announced.readline().strip()
    if not number:
        pytest.fail("Xvfb did not start")
    yield f":{number}"
    process.terminate()
    process.wait(10)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """The user's side; this process uses its ssh."""
    made = make_client(tmp_path / "client")
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith("SSH_")]:
        monkeypatch.delenv(name)
    return made
