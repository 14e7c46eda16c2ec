"""Signals, closed pipes and sudden death: what was recorded stays, and the exit code is right."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Command, run_python, start_python

PATIENCE_S = 60.0


def gpudash_process(home: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return start_python(home, "-m", "gpudash", *arguments, **options)


def wait_until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        with_patience(process, 0.05)


def with_patience(process: subprocess.Popen[str], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def events_of(recording: Path, kind: str) -> int:
    return counted(recording, "select count(*) from event where kind = ?", kind)


def counted(recording: Path, query: str, *values: str) -> int:
    try:
        with sqlite3.connect(f"file:{recording}?mode=ro", uri=True) as database:
            return int(database.execute(query, values).fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # not there, or without its tables, yet


def test_kill_9_loses_less_than_the_last_second(home: Path, tmp_path: Path, gpudash: Command) -> None:
    recording = tmp_path / "killed.gpudash"
    process = gpudash_process(
        home, "run", "training", "--steps", "100000", "--device", "cpu", "--record", str(recording)
    )
    wait_until(process, lambda: events_of(recording, "StepFinished") > 20)
    killed_at = time.time()
    process.kill()
    process.communicate()
    shutil.copytree(tmp_path, home / "copy", ignore=shutil.ignore_patterns("home"))
    with sqlite3.connect(home / "copy" / recording.name) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        (origin,) = database.execute("select value from meta where key = 'wall_clock_origin'").fetchone()
        killed_s = killed_at - datetime.fromisoformat(origin).timestamp()
        for table in ("host", "event"):
            (newest,) = database.execute(f"select max(time_s) from {table}").fetchone()
            assert killed_s - 1.0 < newest <= killed_s + 0.1
    out = tmp_path / "out.json"
    outcome = gpudash("export", str(recording), "--to", "json", "-o", str(out))
    assert outcome.code == 0, outcome.stderr
    document = json.loads(out.read_text())
    assert [run["status"] for run in document["runs"]] == ["running"]
    assert document["readings"][-1]["time_s"] > 0


def test_ctrl_c_before_torch_is_loaded_ends_without_a_run(home: Path) -> None:
    process = gpudash_process(home, "run", "training", "--steps", "100000", "--device", "cpu", "--json")
    wait_until(process, lambda: any(home.rglob("*.gpudash")))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(stdout)["status"] == "cancelled"
    assert "Traceback" not in stderr


@pytest.mark.parametrize("loading", ["gpudash.cli", "cyclopts", "gpudash.specs", "gpudash.session"])
def test_ctrl_c_while_the_command_is_still_loading_leaves_its_document(home: Path, loading: str) -> None:
    script = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {loading!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "sys.argv[1:] = ['run', 'matmul', '--json']\n"
        "from gpudash.__main__ import main; main()\n"
    )
    done = run_python(home, "-c", script)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    assert (document["status"], document["error"]["kind"]) == ("cancelled", "interrupted")


def test_a_first_signal_stops_the_run_and_keeps_everything(home: Path, tmp_path: Path) -> None:
    recording = tmp_path / "stopped.gpudash"
    process = gpudash_process(
        home, "run", "training", "--steps", "100000", "--device", "cpu", "--record", str(recording), "--json"
    )
    wait_until(process, lambda: events_of(recording, "StepFinished") > 3)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr == "Stopping after this step…\n"
    assert json.loads(stdout)["status"] == "cancelled"
    with sqlite3.connect(recording) as database:
        assert database.execute("select status from run").fetchall() == [("cancelled",)]
        assert database.execute("select value from meta where key = 'status'").fetchone() == ("closed",)


@pytest.mark.parametrize("command", ["run training --steps 100000 --device cpu", "monitor"], ids=["run", "monitor"])
def test_when_the_terminal_is_closed_the_recording_is_ended(home: Path, tmp_path: Path, command: str) -> None:
    recording = tmp_path / "hung_up.gpudash"
    terminal, theirs = os.openpty()
    process = start_python(
        home,
        *("-m", "gpudash", *command.split(), "--record", str(recording)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # the terminal whose end it hears of
    )
    os.close(theirs)
    os.set_blocking(terminal, False)

    def recorded() -> bool:
        with suppress(BlockingIOError):
            os.read(terminal, 65536)
        return events_of(recording, "StepFinished" if "run" in command else "Note") > ("run" in command)

    wait_until(process, recorded)
    os.close(terminal)
    assert process.wait(30) == (130 if "run" in command else 0)
    with sqlite3.connect(recording) as database:
        assert database.execute("select value from meta where key = 'status'").fetchone() == ("closed",)


@pytest.mark.timed
def test_a_second_ctrl_c_leaves_an_operation_that_does_not_end(home: Path, tmp_path: Path) -> None:
    recording = tmp_path / "left.gpudash"
    script = (
        "import sys; from gpudash import specs\n"
        "from tests.end_to_end.window_driver import BlockingSpec\n"
        "specs.BUILT_IN = (*specs.BUILT_IN, BlockingSpec)\n"
        "from gpudash.cli import run; sys.exit(run(sys.argv[1:]))\n"
    )
    command = ("-c", script, "run", "blocking", "--device", "cpu", "--record", str(recording), "--json")
    process = start_python(home, *command, extra={"QT_QPA_PLATFORM": "offscreen"})
    wait_until(process, lambda: events_of(recording, "StepFinished") > 0)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)  # the operation blocks for a minute
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert time.monotonic() - began < 4.0
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert json.loads(stdout)["status"] == "cancelled"
    with sqlite3.connect(recording) as database:
        assert database.execute("select status from run").fetchall() == [("cancelled",)]
        assert database.execute("select value from meta where key = 'status'").fetchone() == ("cancelled",)


def test_a_reader_that_leaves_ends_the_watching(home: Path) -> None:
    process = gpudash_process(home, "monitor", "--json-lines")
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.wait(20) == 0
    stderr = process.stderr.read()
    process.stderr.close()
    assert stderr.startswith("Recording: ")
    assert len(stderr.splitlines()) == 1


@pytest.mark.timed
def test_a_reader_that_stalls_delays_neither_recording_nor_exit(home: Path, tmp_path: Path) -> None:
    recording = tmp_path / "stalled.gpudash"
    process = gpudash_process(home, "monitor", "--rate", "50", "--json-lines", "--record", str(recording))
    # a pipe holds 64 KiB, and a reading has more than 200 bytes there
    wait_until(process, lambda: counted(recording, "select count(*) from host") > 400)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert time.monotonic() - began < 3.0
    process.communicate()
    with sqlite3.connect(recording) as database:
        assert database.execute("select value from meta where key = 'status'").fetchone() == ("closed",)


@pytest.mark.parametrize(
    "arguments",
    [("doctor", "--json"), ("run", "pipeline", "--device", "cpu")],
    ids=" ".join,
)
def test_a_closed_stdout_is_no_traceback(home: Path, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = gpudash_process(home, *arguments, stdout=writing)
    os.close(writing)
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert "BrokenPipe" not in stderr
    assert process.returncode in (0, 1) if arguments[0] == "doctor" else process.returncode == 0


def test_without_a_display_the_first_line_says_what_comes_and_ctrl_c_leaves_without_a_picture(home: Path) -> None:
    process = gpudash_process(home)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "the default workload runs here once" in first and "gpudash monitor" in first
    wait_until(process, lambda: any(events_of(recording, "RunStarted") for recording in home.rglob("*.gpudash")))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in stderr and "stopped after" in stdout
    assert not list(home.rglob("*.png"))
