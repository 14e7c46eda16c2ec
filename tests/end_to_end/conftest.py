"""The real commands in their own processes, and a real window under Xvfb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.json_page import undescribed
from tests.programs import program

TIMEOUT_S = 150


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


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: no display, one torch thread, everything written under ``home``."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    kept.pop("QT_QPA_PLATFORM", None)
    return {**kept, "GPUDASH_HOME": str(home), "COLUMNS": "120", **(extra or {})}


@pytest.fixture
def gpudash(home: Path) -> Command:
    """Run ``gpudash`` with arguments and wait for its end."""

    def command(*arguments: str, env: Mapping[str, str] | None = None) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "gpudash", *arguments],
            env=environment(home, env),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.stdout and "--json" in takewhile(lambda word: word != "--", arguments):
            assert undescribed(arguments, json.loads(done.stdout)) == []  # whatever a test is about
        return Outcome(done.returncode, done.stdout, done.stderr)

    return command


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
