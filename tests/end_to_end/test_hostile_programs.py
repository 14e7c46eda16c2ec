"""Programs that send gpudash what no agent sends: it costs what was sent, and neither the watching nor the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import TIMEOUT_S, Command, Outcome, run_python, start_python

SENDS = Path(__file__).parent / "watched_scripts" / "sends.py"

MIB = 2**20

HUGE = "1" + 400 * "0"
"""A whole number of 401 digits, as JSON has it."""

Message = dict[str, Any] | str
Send = Callable[..., Outcome]


def sent(folder: Path, messages: Iterable[Message]) -> tuple[str, ...]:
    """The command of a program that sends ``messages``: JSON as text goes as it is."""
    lines = folder / "messages"
    with lines.open("w", encoding="utf-8") as file:
        file.writelines(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in messages)
    return sys.executable, "-I", str(SENDS), str(lines)


@pytest.fixture
def send(gpudash: Command, tmp_path: Path) -> Send:
    """Watch a program that sends messages, to its end."""

    def watch(*messages: Message) -> Outcome:
        outcome = gpudash("watch", "--simulate", "1GiB", "--json", "--no-record", "--", *sent(tmp_path, messages))
        assert (outcome.code, outcome.document["exit_code"]) == (0, 0), outcome.stderr
        assert "Traceback" not in outcome.stderr
        return outcome

    return watch


def growing(file: Path, steps: int = 80) -> list[Message]:
    """A line of ``file`` keeps 1 MB of every step."""
    stacks = {"type": "stacks", "stacks": {"1": [[str(file), 1, "f"]]}}
    held = (
        {"type": "held", "device": "sim:0", "step": step, "holdings": [[10**6, 1, at, "1"] for at in range(1, step)]}
        for step in range(2, steps)
    )
    return [stacks, *held]


@pytest.mark.parametrize(
    "make",
    [lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()],
    ids=["fifo", "link to /dev/zero", "folder"],
)
def test_a_program_that_names_what_is_no_file_of_its_code_is_watched_to_its_end(
    send: Send, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "model.py")
    outcome = send(*growing(tmp_path / "model.py"))
    assert "model.py:1 keeps 977 KiB of every step since step 1." in outcome.stderr


def test_numbers_of_hundreds_of_digits_cost_their_record_and_are_never_shown_whole(send: Send) -> None:
    outcome = send(
        f'{{"type":"steps","source":"logging","steps":[[{HUGE},1,0.5,null],[1,{HUGE},0.5,null],[2,2,{HUGE},null]]}}',
        {"type": "steps", "source": "logging", "steps": [[3]]},
        f'{{"type":"steps","source":"logging","steps":[[-{HUGE},1,0.5,null],[4,4,0.25,null]]}}',
        f'{{"type":"allocator","devices":{{"sim:0":{{"allocated_bytes":{HUGE},"reserved_bytes":7}}}}}}',
        {"type": "allocator", "devices": {"sim:0": {"allocated_bytes": 5 * MIB, "reserved_bytes": 6 * MIB}}},
        f'{{"type":"held","device":"sim:0","step":{HUGE},"holdings":[[{HUGE},1,1,"1"]]}}',
        f'{{"type":"bye","cpu_s":{HUGE}}}',
    )
    found = outcome.document
    assert (found["status"], found["steps"]) == ("finished", 4)
    assert found["metrics"]["loss"]["last"] == 0.25
    assert found["memory"]["peak_allocated_bytes"] == 5 * MIB
    said = [text for text in found["notes"] if "left out" in text]
    assert said == [
        "A step was left out: its number is no whole number of 64 bits, but inf.",
        "A step was left out: it has no number, time, loss and accuracy.",
    ]
    assert "0" * 100 not in outcome.stdout + outcome.stderr
    assert "OverflowError" not in outcome.stdout + outcome.stderr


def test_a_message_that_cannot_be_taken_in_is_told_once_for_each_kind_of_fault(send: Send) -> None:
    rank = {"type": "rank", "world_size": 2, "device": "cpu"}
    outcome = send(
        {**rank, "rank": 5},
        {**rank, "rank": 6},
        {"type": "hello", "protocol": 1, "argv": 5},
        {"type": "hello", "protocol": 1, "argv": 6},
        {"type": "steps", "source": "logging", "steps": [[7, 1, 0.5, None]]},
    )
    said = [text.partition(") was ")[0].partition(" (")[2] for text in outcome.document["notes"] if "left out" in text]
    assert said == ["rank", "hello"]
    assert outcome.document["steps"] == 7


MEASURED = """
import os, subprocess, sys
watching = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_pid, status, used = os.wait4(watching.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024)
"""
"""A small process that starts another: Linux counts the memory of the one that starts it among the other's peak."""


@pytest.mark.timeout(600)  # half a gigabyte through a socket, on few cores
def test_stacks_of_half_a_gigabyte_are_not_all_kept(home: Path, tmp_path: Path) -> None:
    path, name = 1800 * "p", 900 * "n"
    messages = (
        {
            "type": "stacks",
            "stacks": {
                f"{message}-{number}": [[f"{path}{message}/{number}.py", line, name] for line in range(10)]
                for number in range(80)
            },
        }
        for message in range(250)
    )
    command = (sys.executable, "-m", "gpudash", "watch", "--no-record", "--", *sent(tmp_path, messages))
    measured = run_python(home, "-c", MEASURED, *command, timeout=600)
    code, peak_bytes = (int(word) for word in measured.stdout.split())
    assert code == 0
    assert (tmp_path / "messages").stat().st_size > 500 * MIB
    assert peak_bytes < 450 * MIB


HANGS = """
import os
import sys
import time

stat = os.stat


def hanging(path, *args, **kwargs):
    if str(path).endswith("/hangs.py"):
        print("hangs", file=sys.stderr, flush=True)
        time.sleep(3600)
    return stat(path, *args, **kwargs)


os.stat = hanging
"""
"""For gpudash's own process: a file on a file system that does not answer, as one of NFS without its server."""


@pytest.mark.table
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_request_to_stop_is_answered_while_a_file_system_is_not(
    home: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HANGS, encoding="utf-8")
    command = sent(tmp_path, [*growing(Path("/nfs/hangs.py")), "sleep 3600"])
    arguments = ("-m", "gpudash", "watch", "--no-record", "--", *command)
    with start_python(home, *arguments, extra={"PYTHONPATH": str(folder)}, stdout=subprocess.DEVNULL) as watching:
        assert watching.stderr is not None
        while watching.stderr.readline() != "hangs\n":
            assert watching.poll() is None
        watching.send_signal(number)
        _nothing, printed = watching.communicate(timeout=TIMEOUT_S)
    assert "is still being processed, perhaps because a file system does not respond" in printed
    assert watching.returncode > 0
