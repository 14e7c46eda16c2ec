"""Standard streams that are closed, readers that leave, and few open files: a sentence and an exit code."""

from __future__ import annotations

import json
import resource
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import environment, run_python
from tests.unit.memory.snapshot.made import Made as MadeSnapshot
from tests.unit.telemetry.comparing.made import MADE

COMMANDS = (
    "--help",
    "devices --json",
    "snapshot s.pickle",
    "monitor --seconds 0.3 --no-record --json-lines",
)
"""Commands that print, each in its own way."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    MADE.record(tmp_path / "a.gpudash")
    made = MadeSnapshot(64 * 2**20)
    made.step(2**20)
    made.written(tmp_path / "s.pickle")
    return tmp_path


def in_shell(folder: Path, words: str, redirection: str = "", before: str = "") -> subprocess.CompletedProcess[str]:
    command = f"{before} {shlex.quote(sys.executable)} -m gpudash {words} {redirection}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment(folder / "home"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("words", COMMANDS)
def test_without_standard_output_a_command_says_that_it_cannot_print(folder: Path, words: str) -> None:
    done = in_shell(folder, words, ">&-")
    assert (done.returncode, done.stderr) == (1, "What was to be printed cannot be written: Bad file descriptor.\n")


def test_without_standard_output_a_recording_is_ended_all_the_same(folder: Path) -> None:
    done = in_shell(folder, "monitor --seconds 0.3 --record m.gpudash", ">&-")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    with sqlite3.connect(folder / "m.gpudash") as database:
        assert database.execute("select value from meta where key = 'status'").fetchone() == ("closed",)


def test_no_file_takes_the_place_of_a_closed_stream(folder: Path) -> None:
    done = in_shell(folder, "run training --steps 2 --device cpu --record r.gpudash", "<&- >&- 2>&-")
    assert done.returncode == 1
    with sqlite3.connect(folder / "r.gpudash") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        assert database.execute("select status from run").fetchall() == [("finished",)]


@pytest.mark.parametrize("words", COMMANDS[1:3])
def test_without_standard_error_what_was_asked_is_printed(folder: Path, words: str) -> None:
    done = in_shell(folder, words, "2>&-")
    assert done.returncode in (0, 1) and done.stdout and not done.stderr


@pytest.mark.parametrize("words", COMMANDS[-2:])
def test_a_reader_that_takes_nothing_ends_a_command_in_peace(folder: Path, words: str) -> None:
    done = in_shell(folder, words, "| head -c 0")
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["devices --json", "watch --no-record -- true --json", ""])
def test_where_few_files_may_be_open_every_command_says_so(folder: Path, words: str) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))

    offscreen = {"QT_QPA_PLATFORM": "offscreen"}
    command = ("-m", "gpudash", *words.split())
    done = run_python(folder / "home", *command, extra=offscreen, cwd=folder, preexec_fn=few_files)
    said = ("Only 12 files may be open at once, and gpudash needs 64.", "Allow more with ulimit -n 1024.")
    assert (done.returncode, done.stderr) == (1, f"{' '.join(said)}\n")
    if words != "devices --json":
        assert done.stdout == ""
        return
    document = json.loads(done.stdout)
    assert (document["status"], document["error"]["message"], document["error"]["remedy"]) == ("failed", *said)


def test_a_limit_that_may_be_raised_is(folder: Path) -> None:
    done = in_shell(folder, "compare a.gpudash a.gpudash")
    low = in_shell(folder, "compare a.gpudash a.gpudash", before="ulimit -S -n 12; exec")
    assert (low.returncode, low.stdout) == (0, done.stdout)
